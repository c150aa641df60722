// Shows what the OpenAPI document says, and sends the requests that somebody fills in.
const made = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

const field = (parameter) => {
  const schema = parameter.schema;
  const input = schema.enum
    ? made("select", {}, made("option", { value: "", textContent: "" }),
        ...schema.enum.map((word) => made("option", { value: word, textContent: word })))
    : made("input", { type: "text" });
  input.name = parameter.name;
  input.required = Boolean(parameter.required);
  input.dataset.place = parameter.in;
  return made("label", {}, parameter.name, input, made("small", { textContent: parameter.description ?? "" }));
};

const send = async (method, path, form, output) => {
  const query = new URLSearchParams();
  const headers = { accept: "application/json" };
  let url = path;
  for (const input of form.querySelectorAll("[data-place]")) {
    if (input.value === "") continue;
    if (input.dataset.place === "path") url = url.replace(`{${input.name}}`, encodeURIComponent(input.value));
    else if (input.dataset.place === "header") headers[input.name] = input.value;
    else query.append(input.name, input.value);
  }
  if (query.size) url += `?${query}`;
  const options = { method: method.toUpperCase(), headers };
  const body = form.elements.namedItem("body");
  if (method !== "get") {
    headers["content-type"] = form.elements.namedItem("type")?.value ?? "application/json";
    if (body?.value) options.body = body.value;
  }
  output.hidden = false;
  try {
    const answer = await fetch(url, options);
    const text = await answer.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* it is not JSON */ }
    output.textContent = `${options.method} ${url}\n${answer.status} ${answer.statusText}\n\n${shown}`;
  } catch (error) {
    output.textContent = String(error);
  }
};

const operation = (method, path, about) => {
  const output = made("pre", { hidden: true, tabIndex: 0 });
  const form = made("form", {}, made("p", { textContent: about.description ?? "" }));
  for (const parameter of about.parameters ?? []) form.append(field(parameter));
  if (about.requestBody) {
    const types = Object.keys(about.requestBody.content);
    form.append(made("label", {}, "media type",
      made("select", { name: "type" }, ...types.map((type) => made("option", { value: type, textContent: type })))));
    form.append(made("label", {}, "body", made("textarea", { name: "body", spellcheck: false })));
  }
  const stream = "text/event-stream" in (about.responses["200"]?.content ?? {});
  if (!stream) form.append(made("button", { textContent: "Send" }), output);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(method, path, form, output);
  });
  const summary = made("summary", {}, made("span", { className: "method", textContent: method.toUpperCase() }),
    made("span", { className: "path", textContent: path }), made("span", { textContent: about.summary }));
  return made("details", { id: about.operationId }, summary, form);
};

const found = await (await fetch("/api/openapi.json")).json();
document.querySelector("#about").textContent = `${found.info.title} ${found.info.version}. ${found.info.description}`;
const list = document.querySelector("#operations");
list.replaceChildren();
const tags = new Map();
for (const [path, methods] of Object.entries(found.paths)) {
  for (const [method, about] of Object.entries(methods)) {
    const [tag] = about.tags;
    if (!tags.has(tag)) {
      tags.set(tag, made("section", {}, made("h2", { textContent: tag })));
      list.append(tags.get(tag));
    }
    tags.get(tag).append(operation(method, path, about));
  }
}
