// Server-sent events that come back: after the broker was away, and after the page was hidden. A hidden page holds no
// connection, since a browser has only a few to one host.

import { get } from "./api.js";

const WAITS = [1000, 2000, 5000];

export class Stream {
  // `address` is called for each connection, so that one can go on where the last one ended.
  constructor(address, handlers, onState = () => {}) {
    this.address = address;
    this.handlers = handlers;
    this.onState = onState;
    this.failures = 0;
    this.visible = () => (document.hidden ? this.drop() : this.open());
    document.addEventListener("visibilitychange", this.visible);
    this.open();
  }

  open() {
    if (this.source || this.closed) return;
    clearTimeout(this.timer);
    const source = (this.source = new EventSource(this.address()));
    source.addEventListener("open", () => {
      this.failures = 0;
      this.onState("live");
    });
    for (const [name, handle] of Object.entries(this.handlers)) {
      if (name !== "error") source.addEventListener(name, (event) => handle(JSON.parse(event.data), event.lastEventId));
    }
    source.addEventListener("error", (event) => {
      if (event.data) this.handlers.error?.(JSON.parse(event.data));
      this.drop();
      this.onState("away");
      this.again();
    });
  }

  async again() {
    const wait = WAITS[Math.min(this.failures, WAITS.length - 1)];
    this.failures += 1;
    this.timer = setTimeout(async () => {
      if (this.failures > 1) {
        try {
          await get("/api/session");
        } catch {
          return this.closed || this.again();
        }
      }
      if (!document.hidden) this.open();
    }, wait);
  }

  restart() {
    this.drop();
    this.open();
  }

  drop() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  close() {
    this.closed = true;
    this.drop();
    document.removeEventListener("visibilitychange", this.visible);
  }
}

// The figures of the whole broker: one stream for all that the page shows of them.
export class Overview {
  constructor(onState) {
    this.listeners = new Set();
    this.sample = null;
    this.history = null;
    this.state = "connecting";
    this.onState = onState;
  }

  async start() {
    try {
      this.take(await get("/api/overview"));
    } catch (problem) {
      if (problem.status === 403) {
        this.state = "refused"; // who may not see the whole broker sees what is his
        this.onState(this.state);
        this.tell();
        return;
      }
      if (problem.status === 401) return;
    }
    this.stream?.close();
    this.stream = new Stream(() => "/api/overview/events", {
      history: (history) => {
        this.history = history;
        this.tell();
      },
      sample: (sample) => this.take(sample),
    }, (state) => {
      this.state = state;
      this.onState(state);
    });
  }

  take(sample) {
    this.sample = sample;
    const history = this.history;
    if (history && history.time.at(-1) < sample.time) {
      for (const name of Object.keys(history)) {
        history[name].push(name === "time" || name.endsWith("_ms") ? sample[name] : sample.rates[name]);
        if (history[name].length > 300) history[name].shift();
      }
    }
    this.tell();
  }

  tell() {
    for (const listener of this.listeners) listener(this);
  }

  watch(listener) {
    this.listeners.add(listener);
    if (this.sample || this.state === "refused") listener(this);
    return () => this.listeners.delete(listener);
  }

  stop() {
    this.stream?.close();
    this.stream = null;
    this.sample = this.history = null;
    this.state = "connecting";
  }
}
