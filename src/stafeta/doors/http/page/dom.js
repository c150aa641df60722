// Elements, and how figures are written.

export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && name !== "list" && name !== "form") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function text(element, value) {
  const written = String(value);
  if (element.textContent !== written) element.textContent = written;
}

// Rows of a table that stay the same elements for as long as their keys do: focus and selection survive.
export function rows(body, items, key, make, update) {
  const known = body.known ?? new Map();
  const next = new Map();
  let at = body.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let row = known.get(name);
    if (!row) row = make(item);
    known.delete(name);
    next.set(name, row);
    update?.(row, item);
    if (row === at) at = at.nextElementSibling;
    else body.insertBefore(row, at);
  }
  for (const row of known.values()) row.remove();
  body.known = next;
}

export function table(label, heads, body) {
  return h("table", { "aria-label": label },
    h("thead", null, h("tr", null, heads.map((head) => {
      const [name, kind] = [head].flat();
      return h("th", { scope: "col", class: kind ?? "" },
        kind === "hidden" ? h("span", { class: "seen-by-readers" }, name) : name);
    }))),
    body);
}

export function card(title, span, ...children) {
  const id = `card-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  const end = h("span", { class: "end" });
  const section = h("section", { class: `card ${span}`, "aria-labelledby": id },
    h("header", null, h("h2", { id }, title), end), children);
  section.end = end;
  return section;
}

export function figure(name, small) {
  const value = h("b", null, "–");
  const element = h("div", { class: small ? "figure small" : "figure" }, value, h("span", null, name));
  element.set = (written) => text(value, written);
  return element;
}

export function spark(points) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 120 24");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const area = document.createElementNS(space, "polygon");
  const line = document.createElementNS(space, "polyline");
  svg.append(area, line);
  svg.set = (values) => {
    const known = values.map((value, at) => [at, value]).filter(([, value]) => value !== null);
    const top = Math.max(1, ...known.map(([, value]) => value));
    const step = 120 / Math.max(values.length - 1, 1);
    const drawn = known.map(([at, value]) => `${(at * step).toFixed(1)},${(22.5 - (value / top) * 21).toFixed(1)}`);
    line.setAttribute("points", drawn.join(" "));
    area.setAttribute("points", drawn.length > 1
      ? `${(known[0][0] * step).toFixed(1)},24 ${drawn.join(" ")} ${(known.at(-1)[0] * step).toFixed(1)},24` : "");
  };
  svg.set(points ?? []);
  return svg;
}

// --- figures

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
const precise = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });

export const count = (value) => (Math.abs(value) < 1_000_000 ? whole.format(Math.round(value)) : short.format(value));
export const exact = (value) => whole.format(value);
export const value = (number) => precise.format(number);

export function rate(number) {
  if (number === 0) return "0";
  return number < 10 ? number.toFixed(1) : count(number);
}

export function bytes(size) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (size >= 1000 && at < units.length - 1) {
    size /= 1000;
    at += 1;
  }
  return `${at === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return seconds > 0.0005 ? `${Math.round(seconds * 1000)} ms` : "0 s";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = parts.findIndex(([, size]) => Math.round(seconds) >= size);
  let rest = Math.round(seconds);
  const said = [];
  for (const [name, size] of parts.slice(first, first + 2)) {
    const many = Math.floor(rest / size);
    rest -= many * size;
    if (many) said.push(`${many} ${name}`);
  }
  return said.join(" ");
}

export function moment(time) {
  const date = new Date(time);
  const today = date.toDateString() === new Date().toDateString();
  const clock = date.toLocaleTimeString("en-GB");
  return today ? clock : `${date.toLocaleDateString("en-CA")} ${clock}`;
}
