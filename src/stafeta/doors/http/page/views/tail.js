// The newest messages of a topic, live. What comes faster than one can look at it is passed over, and counted.

import { count, h, moment, rows, table, text } from "../dom.js";
import { Stream } from "../live.js";

const KEPT = 500;
const SHOWN = 100;
const LATE = 5000; // milliseconds behind the newest, after which the tail goes on at the end

export class Tail {
  constructor(name, onMessages) {
    this.name = name;
    this.onMessages = onMessages;
    this.messages = []; // the newest first
    this.fresh = [];
    this.next = null;
    this.passed = 0;
    this.body = h("tbody");
    this.none = h("p", { class: "empty" }, "Nothing yet.");
    this.state = h("span", { class: "muted", role: "status" });
    this.filter = h("input", { type: "search", placeholder: "Text in the message", "aria-label": "Show messages with this text", oninput: () => this.draw() });
    this.pause = h("button", { type: "button", "aria-pressed": "false", onclick: () => this.toggle() }, "Pause");
    this.element = h("section", { class: "card span-8", "aria-labelledby": "tail-title" },
      h("header", null, h("h2", { id: "tail-title" }, "Messages"), h("span", { class: "end" }, this.state)),
      h("div", { class: "row" }, h("div", { class: "search" }, this.filter), this.pause),
      this.none,
      h("div", { class: "tail", tabIndex: 0, role: "region", "aria-label": "Messages" },
        table("Messages, the newest first", ["Time", ["Offset", "number"], "Kind", "Payload"], this.body)));
  }

  // Messages that were there before, and where the stream begins.
  start(messages, next) {
    this.next = next;
    this.add(messages);
    this.stream = new Stream(() => this.address(), {
      message: (message) => {
        this.fresh.push(message);
        this.timer ??= setTimeout(() => this.flush(), 100);
      },
      error: (problem) => (this.none.textContent = problem.detail),
    });
  }

  address() {
    const where = this.next === null ? { from: "latest" } : { offset: this.next };
    return `/api/events?${new URLSearchParams({ topic: this.name, ...where })}`;
  }

  flush() {
    this.timer = null;
    const fresh = this.fresh;
    this.fresh = [];
    this.add(fresh);
    const last = fresh.at(-1);
    if (last && fresh.length > KEPT && Date.now() - Date.parse(last.time) > LATE) {
      this.next = null;
      this.stream.restart();
    }
  }

  add(messages) {
    const fresh = this.next === null ? messages : messages.filter((one) => one.offset >= this.next || !this.messages.length);
    if (!fresh.length) return;
    const newest = this.messages[0]?.offset;
    if (newest !== undefined && fresh[0].offset > newest + 1) this.passed += fresh[0].offset - newest - 1;
    this.next = fresh.at(-1).offset + 1;
    this.messages = [...fresh.slice(-KEPT).reverse(), ...this.messages].slice(0, KEPT);
    this.onMessages(fresh);
    this.draw();
  }

  toggle() {
    this.paused = this.paused ? null : this.messages;
    this.pause.setAttribute("aria-pressed", String(Boolean(this.paused)));
    this.pause.textContent = this.paused ? "Go on" : "Pause";
    this.draw();
  }

  draw() {
    const wanted = this.filter.value.toLowerCase();
    const from = this.paused ?? this.messages;
    const found = wanted ? from.filter((one) => one.payload.toLowerCase().includes(wanted)) : from;
    const waiting = this.paused ? (this.messages[0]?.offset ?? 0) - (this.paused[0]?.offset ?? 0) : 0;
    text(this.state, this.paused ? `paused, ${count(waiting)} new` : this.passed ? `live, ${count(this.passed)} passed over` : "live");
    this.none.hidden = found.length > 0;
    this.none.textContent = wanted && from.length ? "None of the newest messages has this text." : "Nothing yet.";
    rows(this.body, found.slice(0, SHOWN), (one) => one.offset, (one) => h("tr", { class: "fresh" },
      h("td", { class: "short muted" }, h("time", { dateTime: one.time }, moment(one.time))),
      h("td", { class: "number" }, one.offset),
      h("td", { class: "short muted" }, one.encoding ? `${one.kind}, base64` : one.kind),
      h("td", null, h("div", { class: "payload" }, one.payload.length > 2000 ? `${one.payload.slice(0, 2000)}…` : one.payload))));
  }

  close() {
    clearTimeout(this.timer);
    this.stream?.close();
  }
}
