// The front page: what goes through the broker, and who is behind.

import { get } from "../api.js";
import { bytes, card, count, duration, figure, h, moment, rate, rows, spark, table, text } from "../dom.js";
import { Stream } from "../live.js";
import { Plot } from "../plot.js";

const ALERTS = 30;
const HOUR = 3600_000;
const CALM = { running: "good", starting: "", finished: "", stopped: "" };

export function overview(context) {
  const problems = h("div", { class: "banner", role: "alert", hidden: true });
  const first = beginning(context);
  const rates = ratesCard();
  const slow = slowCard();
  const alerts = alertsCard(context.session.sees_all);
  const jobs = jobsCard();
  const doors = doorsCard();
  const store = storeCard();
  const uptime = h("span", { class: "muted" });
  const grid = h("div", { class: "grid" }, rates.element, alerts.element, slow.element, jobs.element, doors.element, store.element);
  const own = ownCard(context);

  const unwatch = context.overview.watch(({ sample, history, state }) => {
    own.element.hidden = state !== "refused";
    grid.hidden = state === "refused";
    if (state === "refused") {
      own.start();
      return;
    }
    if (!sample) return;
    first.hidden = sample.totals.topics > 0;
    text(uptime, `version ${sample.version}, up for ${duration(sample.totals.uptime)}, ` +
      `${count(sample.totals.topics)} topics, ${count(sample.totals.subscriptions)} subscriptions, ${count(sample.totals.clients)} clients`);
    const wrong = [
      sample.refusing && "Messages are refused: they cannot be stored. The broker's log says why.",
      sample.held && "Nothing is collected, since a part of the store is damaged: run stafeta check.",
      sample.store.free < 1e9 && `Only ${bytes(sample.store.free)} are free on the disk.`,
    ].filter(Boolean);
    problems.hidden = !wrong.length;
    text(problems, wrong.join(" "));
    for (const part of [rates, slow, jobs, doors, store]) part.update(sample, history);
  });
  return {
    title: "Overview",
    element: [h("div", { class: "head" }, h("h1", null, "Overview"), uptime), problems, first, grid, own.element],
    close() {
      unwatch();
      rates.close();
      alerts.close();
      own.close();
    },
  };
}

// --- an empty broker

function beginning(context) {
  const commands = [
    "stafeta sub sensors/#",
    "stafeta put sensors/kitchen 21.5",
    `curl ${location.origin}/api/topics/sensors/kitchen/messages?kind=float -H 'Content-Type: text/plain' -d 21.6`,
  ];
  return h("section", { class: "card", hidden: true, "aria-labelledby": "begin-title" },
    h("h2", { id: "begin-title" }, "Nothing has been published yet"),
    h("p", { class: "muted" }, "Subscribe, so that messages are held, then publish: from a terminal, or ",
      h("a", { href: "#/topics" }, "on the page of topics"), "."),
    h("div", { class: "commands" }, commands.map((command) => h("div", { class: "command" },
      h("code", { tabIndex: 0 }, command),
      h("button", {
        type: "button", "aria-label": `Copy: ${command}`, onclick: async () => {
          try {
            await navigator.clipboard.writeText(command);
            context.notify("Copied.");
          } catch {
            context.notify("The browser does not let the page copy.", "bad");
          }
        },
      }, "Copy")))));
}

// --- rates

function ratesCard() {
  const into = figure("in per second");
  const out = figure("out per second");
  const acknowledged = figure("acknowledged", true);
  const commits = figure("commits", true);
  const again = figure("delivered again", true);
  const place = h("div");
  const element = card("Rates", "span-8", h("div", { class: "figures" }, into, out, acknowledged, again, commits), place);
  element.end.append(h("span", { class: "legend" }, "in"), h("span", { class: "legend second" }, "out"));
  const plot = new Plot(place, "Messages in and out per second, over the last five minutes", {
    height: 210,
    span: 60,
    series: [
      { label: "in", colour: "--accent", fill: "--accent-soft" },
      { label: "out", colour: "--second" },
    ],
  });
  return {
    element,
    update({ rates }, history) {
      into.set(rate(rates.published));
      out.set(rate(rates.delivered));
      acknowledged.set(rate(rates.acknowledged));
      again.set(rate(rates.redelivered));
      commits.set(rate(rates.commits));
      if (history) plot.set([history.time, history.published, history.delivered]);
    },
    close: () => plot.close(),
  };
}

// --- who is behind

function slowCard() {
  const body = h("tbody");
  const found = h("div", { class: "scroll" }, table("Slowest subscriptions",
    ["Subscription", ["Behind", "number"], ["Lag", "number"], "Trend", "State"], body));
  const none = h("p", { class: "empty" }, "Nobody is behind.");
  const element = card("Slowest subscriptions", "span-8", found, none);
  element.end.append(h("a", { href: "#/subscriptions" }, "All subscriptions"));
  const make = (one) => {
    const name = h("span");
    const row = h("tr", null,
      h("td", { class: "name" }, h("a", { href: `#/subscriptions?search=${encodeURIComponent(one.filter)}` }, one.filter), name),
      h("td", { class: "number" }), h("td", { class: "number" }), h("td"), h("td", { class: "short" }));
    name.className = "sub";
    name.textContent = one.user ? `${one.name} of ${one.user}` : one.name;
    row.spark = spark();
    row.cells[3].append(row.spark);
    row.tag = h("span", { class: "tag" });
    row.cells[4].append(row.tag);
    return row;
  };
  const update = (row, one) => {
    text(row.cells[1], count(one.behind));
    text(row.cells[2], duration(one.seconds));
    row.spark.set(one.trend);
    row.classList.toggle("is-stalled", one.stalled);
    const [state, kind] = one.stalled
      ? [one.connected ? "stalled" : "stalled, away", "bad"]
      : [one.connected ? "catching up" : "behind", ""];
    text(row.tag, state);
    row.tag.className = `tag ${kind}`;
  };
  return {
    element,
    update({ lag }) {
      const slowest = [...lag.slowest].sort((a, b) => (b.seconds ?? 0) - (a.seconds ?? 0) || b.behind - a.behind).slice(0, 8);
      found.hidden = !slowest.length;
      none.hidden = slowest.length > 0;
      text(none, lag.subscriptions ? `Nobody is behind, of ${count(lag.subscriptions)} durable subscriptions.` : "There are no durable subscriptions.");
      rows(body, slowest, (one) => JSON.stringify([one.user, one.name, one.filter]), make, update);
    },
  };
}

// Who may not see the whole broker sees his own subscriptions.
function ownCard(context) {
  const body = h("tbody");
  const none = h("p", { class: "empty" }, "You have no subscriptions.");
  const element = card("Your subscriptions", "span-12",
    h("p", { class: "muted" }, "Figures of the whole broker are for those who administer it, or may list every topic."),
    none, h("div", { class: "scroll" }, table("Your subscriptions", ["Filter", "Client", ["Behind", "number"], ["Lag", "number"]], body)));
  element.hidden = true;
  let timer = null;
  const look = async () => {
    try {
      const { subscriptions } = await get("/api/subscriptions", { sort: "seconds", limit: 20 });
      none.hidden = subscriptions.length > 0;
      rows(body, subscriptions, (one) => JSON.stringify([one.door, one.client, one.filter]),
        (one) => h("tr", null, h("td", { class: "name" }, one.filter), h("td", null, one.client), h("td", { class: "number" }), h("td", { class: "number" })),
        (row, one) => {
          text(row.cells[2], count(one.behind));
          text(row.cells[3], duration(one.seconds));
        });
    } catch (error) {
      if (error.status !== 401) none.textContent = error.message;
    }
    timer = setTimeout(look, 3000);
  };
  return { element, start: () => timer ?? look(), close: () => clearTimeout(timer) };
}

// --- alerts, jobs, doors, store

function alertsCard(open) {
  const list = h("ul", { class: "alerts" });
  const none = h("p", { class: "empty" }, "No alerts in the last hour.");
  const element = card("Alerts", "span-4", none, list);
  const known = [];
  let timer = null;
  const draw = () => {
    timer = null;
    known.sort((a, b) => b.position - a.position);
    known.splice(ALERTS);
    none.hidden = known.length > 0;
    rows(list, known, (one) => one.position, (one) => h("li", { class: "fresh" },
      h("span", { class: `tag ${one.state === "cleared" ? "good" : one.severity === "info" ? "" : one.severity === "critical" ? "bad" : "warn"}` },
        one.state === "cleared" ? "cleared" : one.severity ?? "raised"),
      h("span", null, one.message ?? `${one.rule}: ${one.topic}`),
      h("time", { class: "muted", dateTime: one.at }, moment(one.at))));
  };
  const seen = new Set();
  const began = Date.now() - HOUR;
  let last = "";
  const stream = open && new Stream(
    () => `/api/events?${new URLSearchParams(last ? { filter: "alerts/#", last_id: last } : { filter: "alerts/#", time: began })}`,
    {
      message: (message, id) => {
        last = id;
        let alert = null;
        try {
          alert = JSON.parse(message.payload);
        } catch {
          // somebody else has written there
        }
        if (alert === null || typeof alert !== "object") alert = { message: `${message.topic}: ${message.payload}` };
        if (seen.has(message.position)) return;
        seen.add(message.position);
        known.push({ ...alert, position: message.position, at: message.time });
        timer ??= setTimeout(draw, 100);
      },
      error: (problem) => text(none, problem.detail),
    });
  return {
    element,
    close() {
      clearTimeout(timer);
      if (stream) stream.close();
    },
  };
}

export function jobTag(job) {
  const silent = job.age > 10 && job.state in CALM && job.state !== "finished" && job.state !== "stopped";
  const kind = silent || job.state === "failed" ? "bad" : job.state === "waiting" ? "warn" : CALM[job.state] ?? "";
  return [silent ? `silent for ${duration(job.age)}` : job.state, kind];
}

function jobsCard() {
  const body = h("tbody");
  const found = h("div", { class: "scroll" }, table("Jobs", ["Job", ["Lag", "number"], ["Rows/s", "number"], "State"], body));
  const none = h("p", { class: "empty" }, "No job of a pipeline has reported: ", h("code", null, "stafeta pipeline run archive rollup"));
  const element = card("Jobs", "span-4", found, none);
  element.end.append(h("a", { href: "#/pipeline" }, "Pipeline"));
  return {
    element,
    update({ jobs }) {
      found.hidden = !jobs.length;
      none.hidden = jobs.length > 0;
      rows(body, jobs, (job) => job.job,
        (job) => h("tr", null, h("td", null, job.job), h("td", { class: "number" }), h("td", { class: "number" }), h("td", null, h("span"))),
        (row, job) => {
          const [state, kind] = jobTag(job);
          text(row.cells[1], count(job.lag));
          text(row.cells[2], rate(job.rows_per_second));
          text(row.cells[3].firstChild, state);
          row.cells[3].firstChild.className = `tag ${kind}`;
        });
    },
  };
}

function doorsCard() {
  const body = h("tbody");
  const element = card("Doors", "span-6 half", h("div", { class: "scroll" }, table("Doors",
    ["Door", ["Connections", "number"], ["Accepted", "number"], ["Refused", "number"], ["Dropped", "number"]], body)));
  return {
    element,
    update({ doors }) {
      rows(body, doors, (one) => one.door,
        (one) => h("tr", null, h("td", null, one.door), ...Array.from({ length: 4 }, () => h("td", { class: "number" }))),
        (row, one) => [one.connections, one.accepted, one.rejected, one.dropped].forEach((number, at) => text(row.cells[at + 1], count(number))));
    },
  };
}

function storeCard() {
  const shown = ["Messages in files", "Index and cursors", "In memory", "Free on the disk", "Commit, on average", "Of that, writing and syncing"]
    .map((name) => [h("dt", null, name), h("dd", null, "–")]);
  const element = card("Store", "span-6 half", h("dl", { class: "list" }, shown.flat()));
  const last = {};
  return {
    element,
    update({ store, commit_ms, sync_ms }) {
      last.commit = commit_ms ?? last.commit;
      last.sync = sync_ms ?? last.sync;
      const ms = (number) => (number === undefined ? "–" : `${number.toFixed(number < 10 ? 2 : 0)} ms`);
      [bytes(store.segments), bytes(store.database + store.wal), bytes(store.tail), bytes(store.free), ms(last.commit), ms(last.sync)]
        .forEach((written, at) => text(shown[at][1], written));
    },
  };
}
