// One topic: its values, its newest messages, who reads it, and publishing to it.

import { get, pause, post, topicPath } from "../api.js";
import { bytes, card, count, duration, figure, h, rows, table, text, value } from "../dom.js";
import { Plot } from "../plot.js";
import { retentionFigure } from "./retention.js";
import { Tail } from "./tail.js";

const POINTS = 1000;
const NUMBERS = new Set(["int", "short_real", "float"]);
const KINDS = ["string", "json", "float", "int", "short_real"];

export function topic(context, { rest: name }) {
  const figures = { held: figure("held", true), published: figure("published", true), size: figure("stored", true), keep: retentionFigure(context, name, () => look()) };
  const trouble = h("div", { class: "banner warn", hidden: true, role: "alert" });
  const values = valuesCard();
  const rollups = rollupsCard(name);
  const readers = readersCard(name);
  const plots = h("div", { class: "grid", hidden: true }, values.element, rollups.element);
  const tail = new Tail(name, (messages) => {
    if (values.add(messages)) plots.hidden = false;
  });
  const publish = publishCard(context, name, () => look());
  let timer = null;
  let closed = false;

  // A topic that is not there yet is no error. What follows it makes it be there.
  let first = exists();
  async function exists() {
    const { topics } = await get("/api/topics", { filter: name, limit: 1 });
    return topics.length > 0;
  }

  async function begin() {
    try {
      if (!(await first)) {
        if (!closed) tail.start([], null);
        return;
      }
      const { messages, end } = await get(`${topicPath(name)}/messages`, { last: POINTS });
      if (!closed) tail.start(messages, end);
      trouble.hidden = true;
    } catch (error) {
      trouble.hidden = false;
      trouble.textContent = error.message;
    }
  }

  async function look() {
    clearTimeout(timer);
    const began = performance.now();
    try {
      const asked = first ?? exists();
      first = null;
      const there = await asked;
      const info = there ? await get(topicPath(name)) : { published: 0 };
      if (there) {
        figures.held.set(count(info.messages));
        figures.published.set(count(info.published));
        figures.size.set(bytes(info.bytes));
        figures.keep.show(info.keep);
      }
      trouble.hidden = info.published > 0 && !info.skipped.length;
      trouble.textContent = info.published
        ? `${info.skipped.length} damaged ranges are passed over.`
        : "Nothing has been published here yet; publish the first message.";
    } catch (error) {
      trouble.hidden = false;
      trouble.textContent = error.message;
    }
    await readers.look();
    await rollups.look();
    if (!closed) timer = setTimeout(look, pause(3000, began));
  }

  begin();
  look();
  return {
    title: name,
    element: [
      h("div", { class: "head" }, h("a", { href: "#/topics" }, "Topics"), h("h1", null, name)),
      trouble,
      h("div", { class: "figures" }, Object.values(figures)),
      plots,
      h("div", { class: "grid" }, tail.element, h("div", { class: "span-4 stack" }, publish, readers.element)),
    ],
    close() {
      closed = true;
      clearTimeout(timer);
      for (const part of [tail, values, rollups]) part.close();
    },
  };
}

function numberOf(message) {
  if (message.encoding || !(NUMBERS.has(message.kind) || message.kind === "json")) return null;
  const number = message.kind === "json" && !/^-?[\d.]/.test(message.payload) ? NaN : Number(message.payload);
  return Number.isFinite(number) ? number : null;
}

function valuesCard() {
  const place = h("div");
  const last = h("b");
  const element = card("Values", "span-7", place);
  element.end.append("last ", last);
  const times = [];
  const numbers = [];
  let plot = null;
  return {
    element,
    // Whether there are numbers among them.
    add(messages) {
      for (const message of messages) {
        const number = numberOf(message);
        if (number === null) continue;
        times.push(Date.parse(message.time) / 1000);
        numbers.push(number);
      }
      if (!times.length) return false;
      times.splice(0, times.length - POINTS);
      numbers.splice(0, numbers.length - POINTS);
      text(last, value(numbers.at(-1)));
      // The plot needs a place that has a size.
      requestAnimationFrame(() => {
        if (!element.isConnected) return;
        plot ??= new Plot(place, "Values of the newest messages over time", {
          zero: false, height: 220, series: [{ label: "value", colour: "--accent", points: times.length < 60 }],
        });
        plot.set([times, numbers]);
      });
      return true;
    },
    close: () => plot?.close(),
  };
}

function rollupsCard(name) {
  const place = h("div");
  const none = h("p", { class: "empty" }, "No rollups of this topic: the job rollup makes them.");
  const sizes = h("select", { "aria-label": "Size of the windows", hidden: true, onchange: () => look() });
  const element = card("Rollups", "span-5", none, place);
  element.end.append(h("span", { class: "legend" }, "mean"), h("span", { class: "legend third" }, "min and max"), sizes);
  let plot = null;
  async function look() {
    try {
      const { topics } = await get("/api/topics", { filter: `rollup/+/${name}`, limit: 20 });
      if (!topics.length) return;
      const known = topics.map((one) => one.topic);
      const chosen = known.includes(sizes.value) ? sizes.value : known[0];
      sizes.replaceChildren(...known.map((one) => h("option", { value: one, selected: one === chosen }, one.split("/")[1])));
      sizes.hidden = false;
      const { messages } = await get(`${topicPath(chosen)}/messages`, { last: 300 });
      const windows = messages.map((one) => JSON.parse(one.payload)).sort((a, b) => a.start.localeCompare(b.start));
      none.hidden = windows.length > 0;
      if (!windows.length || !element.isConnected) return;
      plot ??= new Plot(place, "Mean, min and max of each window", {
        zero: false, height: 220,
        series: [{ label: "most", colour: "--muted", width: 0.75 }, { label: "least", colour: "--muted", width: 0.75 },
          { label: "mean", colour: "--accent", points: windows.length < 40 }],
        bands: [[1, 2]],
      });
      plot.set([windows.map((one) => Date.parse(one.start) / 1000), ...["max", "min", "mean"].map((key) => windows.map((one) => one[key]))]);
    } catch (error) {
      none.hidden = false;
      none.textContent = error.message;
    }
  }
  return { element, look, close: () => plot?.close() };
}

function readersCard(name) {
  const body = h("tbody");
  const none = h("p", { class: "empty" }, "Nobody subscribes to it.");
  const found = h("div", { class: "scroll" }, table("Subscribers", ["Client", ["Behind", "number"], ["Lag", "number"]], body));
  const element = card("Subscribers", "", none, found);
  element.end.append(h("a", { href: `#/subscriptions?topic=${encodeURIComponent(name)}` }, "Move or acknowledge"));
  return {
    element,
    async look() {
      try {
        const { subscriptions } = await get("/api/subscriptions", { sort: "seconds", topic: name, limit: 20 });
        const readers = subscriptions.filter((one) => one.durable || one.door !== "http-stream");
        none.hidden = readers.length > 0;
        found.hidden = !readers.length;
        rows(body, readers, (one) => JSON.stringify([one.user, one.door, one.client, one.filter]),
          (one) => h("tr", null, h("td", { class: "name" }, one.client, h("span", { class: "sub" }, `${one.door}, ${one.filter}`)),
            h("td", { class: "number" }), h("td", { class: "number" })),
          (row, one) => {
            text(row.cells[1], count(one.behind));
            text(row.cells[2], duration(one.seconds));
          });
      } catch (error) {
        none.hidden = false;
        none.textContent = error.message;
      }
    },
  };
}

function publishCard(context, name, after) {
  const payload = h("textarea", { name: "payload", required: true, spellcheck: false });
  const kind = h("select", { name: "kind" }, KINDS.map((one) => h("option", { value: one }, one)));
  const keep = h("input", { type: "checkbox", name: "keep" });
  const wrong = h("p", { class: "wrong", role: "alert" });
  const form = h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      wrong.textContent = "";
      try {
        const done = await post(`${topicPath(name)}/messages`, [{ payload: payload.value, kind: kind.value }],
          { batch: "true", keep_last: keep.checked ? "true" : undefined });
        context.notify(`Published as message ${done.first}.`);
        payload.select();
        after();
      } catch (error) {
        wrong.textContent = error.message;
      }
    },
    onkeydown: (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    },
  },
  h("label", null, "Payload", payload),
  h("div", { class: "row" }, h("label", null, "Kind", kind), h("button", { type: "submit", class: "main" }, "Publish")),
  h("label", { class: "beside" }, keep, "Keep it as the topic's last message"),
  wrong);
  return card("Publish", "", form);
}
