// Who waits for what, the slowest first; and moving a cursor.

import { get, pause, post } from "../api.js";
import { count, duration, h, rows, table, text } from "../dom.js";
import { question } from "../dialog.js";

const MOST = 200;
const CURSORS = 100;

export function subscriptions(context, { query }) {
  const topic = query.get("topic") ?? "";
  const search = h("input", { type: "search", placeholder: "Client or filter", "aria-label": "Search subscriptions", value: query.get("search") ?? "" });
  const sort = h("select", { name: "sort" },
    [["seconds", "Lag in seconds"], ["behind", "Messages behind"], ["client", "Client"]].map(([value, label]) => h("option", { value }, label)));
  const body = h("tbody");
  const found = h("div", { class: "scroll" }, table("Subscriptions",
    ["Filter", "Client", "State", ["Topics", "number"], ["Behind", "number"], ["Lag", "number"], ["Actions", "hidden"]], body));
  const none = h("p", { class: "empty", hidden: true });
  const more = h("p", { class: "muted", hidden: true });
  const cursors = h("div");
  let timer = null;
  let asking = null;

  const aim = (one) => ({ client: one.client, filter: one.filter, door: one.door, user: one.user ?? undefined });

  function draw(shown) {
    found.hidden = !shown.length;
    none.hidden = shown.length > 0;
    none.textContent = search.value ? `No subscription has “${search.value}” in its client or filter.`
      : topic ? `Nobody subscribes to ${topic}.` : "There are no subscriptions.";
    rows(body, shown, (one) => JSON.stringify([one.user, one.door, one.client, one.filter]), make, update);
  }

  function make(one) {
    const row = h("tr", null,
      h("td", { class: "name" }, one.filter),
      h("td", { class: "name" }, one.client, h("span", { class: "sub" }, one.user ? `${one.door}, ${one.user}` : one.door)),
      h("td", null, h("span", { class: "tag" })),
      h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "number" }),
      h("td", { class: "actions" }, one.durable ? [
        h("button", { type: "button", "aria-label": `Cursors of ${one.client} on ${one.filter}`, onclick: () => showCursors(one) }, "Cursors"), " ",
        h("button", { type: "button", "aria-label": `Move ${one.client} on ${one.filter}`, onclick: () => move(one) }, "Move…")] : ""));
    return row;
  }

  function update(row, one) {
    const tag = row.cells[2].firstChild;
    text(tag, one.connected ? "connected" : "away");
    tag.className = `tag ${one.connected ? "good" : one.behind ? "warn" : ""}`;
    text(row.cells[3], count(one.topics));
    text(row.cells[4], count(one.behind));
    text(row.cells[5], one.behind ? duration(one.seconds) : "0 s");
  }

  async function look() {
    clearTimeout(timer);
    asking?.abort();
    const mine = (asking = new AbortController());
    const began = performance.now();
    try {
      const page = await get("/api/subscriptions", { sort: sort.value, limit: MOST, topic, search: search.value }, mine.signal);
      more.hidden = page.subscriptions.length < MOST;
      more.textContent = sort.value === "client" ? `The first ${MOST} are shown.` : `The ${MOST} that are furthest behind are shown.`;
      draw(page.subscriptions.filter((one) => one.durable || one.door !== "http-stream"));
    } catch (error) {
      if (error.name === "AbortError") return;
      none.hidden = false;
      none.textContent = error.message;
    }
    timer = setTimeout(look, pause(2000, began));
  }

  function again() {
    clearTimeout(timer);
    timer = setTimeout(look, 150);
  }

  async function showCursors(one) {
    try {
      const page = await get("/api/subscriptions/cursors", { ...aim(one), limit: CURSORS });
      const list = h("tbody", null, page.cursors.map((cursor) => h("tr", null,
        h("td", { class: "name" }, h("a", { href: `#/topics/${encodeURIComponent(cursor.topic)}` }, cursor.topic)),
        h("td", { class: "number" }, count(cursor.next)), h("td", { class: "number" }, count(cursor.end - 1)), h("td", { class: "number" }, count(cursor.behind)),
        h("td", { class: "actions" },
          h("button", { type: "button", disabled: cursor.behind === 0, "aria-label": `Acknowledge ${cursor.topic}`, onclick: () => acknowledge(one, cursor) }, "Acknowledge…"), " ",
          h("button", { type: "button", "aria-label": `Move on ${cursor.topic}`, onclick: () => move(one, cursor) }, "Move…")))));
      cursors.replaceChildren(h("section", { class: "card", "aria-labelledby": "cursors-title", tabIndex: -1 },
        h("header", null, h("h2", { id: "cursors-title" }, `Cursors of ${one.client} on ${one.filter}`),
          h("span", { class: "end" }, h("button", { type: "button", class: "quiet", onclick: () => cursors.replaceChildren() }, "Close"))),
        page.cursors.length
          ? h("div", { class: "scroll" }, table("Cursors", ["Topic", ["Next", "number"], ["Last", "number"], ["Behind", "number"], ["Actions", "hidden"]], list))
          : h("p", { class: "empty" }, "It matches no topic yet."),
        page.after && h("p", { class: "muted" }, `The first ${CURSORS} topics are shown.`)));
      cursors.firstChild.focus();
    } catch (error) {
      context.fail(error);
    }
  }

  function acknowledge(one, cursor) {
    question("Acknowledge messages", {
      action: "Acknowledge",
      danger: true,
      children: [h("p", null, `${count(cursor.behind)} messages of ${cursor.topic}, up to ${cursor.end - 1}, are done with for ${one.client}. It is not given them any more.`)],
      run: async () => {
        await post("/api/subscriptions/ack", { ...aim(one), ranges: [{ topic: cursor.topic, last: cursor.end - 1 }] });
        context.notify(`Acknowledged up to ${cursor.end - 1}.`);
        await showCursors(one);
        look();
      },
    });
  }

  function move(one, cursor = null) {
    const radio = (value, label, checked = false) => h("label", { class: "beside" }, h("input", { type: "radio", name: "to", value, checked }), label);
    const name = cursor?.topic ?? (one.topics === 1 && !/[+#*]/.test(one.filter) ? one.filter : "");
    const offset = h("input", { name: "offset", type: "number", min: 0, value: cursor?.next ?? 1, "aria-label": "Offset", onfocus: () => choose("offset") });
    const time = h("input", { name: "time", type: "datetime-local", step: 1, "aria-label": "Time", onfocus: () => choose("time") });
    const choose = (value) => (dialog.querySelector(`input[value="${value}"]`).checked = true);
    const where = name ? `on ${name}` : `on all ${count(one.topics)} topics that match`;
    const dialog = question("Move a subscription", {
      action: "Move",
      danger: true,
      children: [
        h("p", null, `${one.client} goes on elsewhere ${where}. Backwards it is given messages again; forwards, those between are done with.`),
        h("fieldset", null, h("legend", null, `${one.filter}: go on at`),
          radio("earliest", "the earliest message that is held", true),
          radio("latest", "the end: all there is now is done with"),
          name && h("div", { class: "row" }, radio("offset", "offset"), offset),
          h("div", { class: "row" }, radio("time", "time"), time)),
      ],
      run: async (data) => {
        const to = data.get("to");
        const body = { ...aim(one), topic: name || undefined };
        if (to === "offset") body.offset = Number(data.get("offset"));
        else if (to === "time") {
          if (!data.get("time")) throw new Error("Say at which time it goes on.");
          body.time = new Date(data.get("time")).toISOString();
        } else body.to = to;
        const done = await post("/api/subscriptions/move", body);
        context.notify(`Moved on ${count(done.topics)} ${done.topics === 1 ? "topic" : "topics"}` +
          (done.collected ? `; ${count(done.collected)} of the messages are not held any more.` : "."));
        if (cursor) await showCursors(one);
        look();
      },
    });
  }

  search.addEventListener("input", again);
  sort.addEventListener("change", look);
  look();
  return {
    title: "Subscriptions",
    element: [
      h("div", { class: "head" }, h("h1", null, "Subscriptions"),
        topic && h("span", { class: "muted" }, `to ${topic} `, h("a", { href: "#/subscriptions" }, "show all"))),
      h("section", { class: "card", "aria-label": "Subscriptions" },
        h("div", { class: "row" }, h("div", { class: "search" }, search), h("label", { class: "fit" }, h("span", { class: "seen-by-readers" }, "Sort by"), sort)),
        found, none, more),
      cursors,
    ],
    close() {
      clearTimeout(timer);
      asking?.abort();
    },
  };
}
