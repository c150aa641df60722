// All topics: searched and paged by the broker, so that ten thousand are as quick as ten.

import { get, pause } from "../api.js";
import { count, h, rows, table, text } from "../dom.js";
import { question } from "../dialog.js";

const PAGE = 50;

export function topics(context, { query }) {
  const search = h("input", { type: "search", placeholder: "Part of a name", "aria-label": "Search topics", value: query.get("search") ?? "" });
  const own = h("input", { type: "checkbox" });
  const body = h("tbody");
  const found = h("div", { class: "scroll" }, table("Topics", ["Topic", ["Held", "number"], ["Published", "number"], ["Subscriptions", "number"]], body));
  const none = h("p", { class: "empty", hidden: true });
  const before = h("button", { type: "button", onclick: () => turn(-1) }, "Previous");
  const next = h("button", { type: "button", onclick: () => turn(1) }, "Next");
  const place = h("span", { class: "muted", role: "status" });
  let starts = [""]; // what each page begins after
  let after = null;
  let timer = null;
  let asking = null;

  function turn(by) {
    if (by > 0) starts.push(after);
    else starts.pop();
    look();
  }

  async function look() {
    clearTimeout(timer);
    asking?.abort();
    const mine = (asking = new AbortController());
    const began = performance.now();
    try {
      const page = await get("/api/topics", {
        search: search.value, after: starts.at(-1), limit: PAGE, filter: own.checked ? "$sys/#" : "#",
      }, mine.signal);
      after = page.after;
      rows(body, page.topics, (one) => one.topic,
        (one) => h("tr", null,
          h("td", { class: "name" }, h("a", { href: `#/topics/${encodeURIComponent(one.topic)}` }, one.topic)),
          h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "number" })),
        (row, one) => [one.messages, one.next - 1, one.subscriptions].forEach((number, at) => text(row.cells[at + 1], count(number))));
      found.hidden = !page.topics.length;
      none.hidden = page.topics.length > 0;
      none.textContent = search.value ? `No topic has “${search.value}” in its name.` : "There are no topics yet.";
      before.disabled = starts.length === 1;
      next.disabled = after === null;
      const begin = (starts.length - 1) * PAGE;
      text(place, page.topics.length ? `${begin + 1} to ${begin + page.topics.length}` : "");
    } catch (error) {
      if (error.name === "AbortError") return;
      none.hidden = false;
      none.textContent = error.message;
    }
    timer = setTimeout(look, pause(3000, began));
  }

  function again() {
    starts = [""];
    clearTimeout(timer);
    timer = setTimeout(look, 150);
    history.replaceState(null, "", `#/topics${search.value ? `?search=${encodeURIComponent(search.value)}` : ""}`);
  }
  search.addEventListener("input", again);
  own.addEventListener("change", again);
  look();

  const create = h("button", {
    type: "button", onclick: () => question("Publish to a topic", {
      action: "Go on",
      children: [h("label", null, "Name", h("input", { name: "name", required: true, placeholder: "sensors/kitchen", autocomplete: "off" })),
        h("p", { class: "muted" }, "A topic is there as soon as something is published to it.")],
      run: (data) => {
        location.hash = `#/topics/${encodeURIComponent(data.get("name").trim())}`;
      },
    }),
  }, "Publish…");
  return {
    title: "Topics",
    element: [
      h("div", { class: "head" }, h("h1", null, "Topics"), h("div", { class: "end" }, create)),
      h("section", { class: "card", "aria-label": "Topics" },
        h("div", { class: "row" }, h("div", { class: "search" }, search), h("label", { class: "beside" }, own, "The broker's own ($sys)")),
        found, none, h("div", { class: "pages" }, before, next, place)),
    ],
    close() {
      clearTimeout(timer);
      asking?.abort();
    },
  };
}
