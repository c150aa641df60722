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

  again() {
    const wait = WAITS[Math.min(this.failures, WAITS.length - 1)];
    this.failures += 1;
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      const refused = this.failures > 1 && (await this.refusal());
      if (this.closed || document.hidden) return;
      if (refused) this.handlers.error?.(refused);
      else this.open();
    }, wait);
  }

  // An EventSource does not say why it fails. What is refused is not asked for again.
  async refusal() {
    const asking = new AbortController();
    try {
      const response = await fetch(this.address(), { signal: asking.signal });
      if (response.status >= 400 && response.status < 500 && response.status !== 429) return await response.json();
    } catch {
      // the broker is away
    } finally {
      asking.abort();
    }
    return null;
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

  start(session) {
    if (!session.sees_all) {
      this.state = "refused"; // who may not see the whole broker sees what is his
      this.onState(this.state);
      this.tell();
      return;
    }
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
