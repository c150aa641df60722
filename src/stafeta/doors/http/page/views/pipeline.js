// The jobs of a pipeline, as they report in the topics $sys/pipeline/<job>.

import { card, count, duration, h, moment, rate, rows, table, text } from "../dom.js";
import { Stream } from "../live.js";
import { Plot } from "../plot.js";
import { jobTag } from "./overview.js";
import { sql } from "./sql.js";

const REPORTS = 300; // of one job
const COMMITS = 30;
const COLOURS = ["--accent", "--second", "--warn", "--good", "--bad", "--muted"];
const KNOWN = new Set(["job", "state", "since", "batch", "rows", "rows_per_second", "lag", "restarts", "error", "runner", "connect"]);
const ENDED = ["failed", "stopped", "finished"];

export function pipeline(context) {
  const jobs = new Map(); // name: reports, the oldest first
  const none = h("section", { class: "card" }, h("h2", null, "No job has reported yet"),
    h("p", { class: "muted" }, "Jobs archive topics into a lake, roll readings up and raise alerts:"),
    h("p", null, h("code", null, "stafeta pipeline run archive rollup alerts")));
  const body = h("tbody");
  const list = card("Jobs", "span-12", h("div", { class: "scroll" },
    table("Jobs", ["Job", "State", ["Lag", "number"], ["Rows/s", "number"], ["Rows", "number"], ["Restarts", "number"], "Since", "More"], body)));
  const plotPlace = h("div");
  const throughput = card("Throughput", "span-7", plotPlace);
  const commitBody = h("tbody");
  const commits = card("Last commits", "span-5", h("div", { class: "tail low", tabIndex: 0, role: "region", "aria-label": "Last commits" },
    table("Last commits", ["Time", "Job", ["Batch", "number"], ["Rows", "number"]], commitBody)));
  const grid = h("div", { class: "grid", hidden: true }, list, throughput, commits);
  const questions = sql(context);
  let plot = null;
  let plotted = "";
  let timer = null;

  function take(message) {
    let report;
    try {
      report = JSON.parse(message.payload);
    } catch {
      return;
    }
    if (!report || typeof report.job !== "string" || typeof report.state !== "string" || message.topic !== `$sys/pipeline/${report.job}`) return;
    const reports = jobs.get(report.job) ?? [];
    if (reports.length && reports.at(-1).position >= message.position) return;
    reports.push({ ...report, at: Date.parse(message.time), position: message.position });
    jobs.set(report.job, reports.slice(-REPORTS));
    timer ??= setTimeout(draw, 150);
  }

  function draw() {
    clearTimeout(timer);
    timer = null;
    none.hidden = jobs.size > 0;
    grid.hidden = !jobs.size;
    if (!jobs.size) return;
    const last = [...jobs.values()].map((reports) => reports.at(-1)).sort((a, b) => a.job.localeCompare(b.job));
    rows(body, last, (job) => job.job, (job) => h("tr", null,
      h("td", null, job.job), h("td", null, h("span")), ...Array.from({ length: 4 }, () => h("td", { class: "number" })),
      h("td", { class: "short muted" }), h("td")), update);
    rows(commitBody, done(), (one) => `${one.job} ${one.batch}`, (one) => h("tr", { class: "fresh" },
      h("td", { class: "short muted" }, moment(one.at)), h("td", null, one.job), h("td", { class: "number" }, count(one.batch)), h("td", { class: "number" }, count(one.rows))));
    drawPlot(last.map((job) => job.job));
  }

  function update(row, job) {
    const [state, kind] = jobTag({ ...job, age: ENDED.includes(job.state) ? 0 : (Date.now() - job.at) / 1000 });
    text(row.cells[1].firstChild, state);
    row.cells[1].firstChild.className = `tag ${kind}`;
    [count(job.lag ?? 0), rate(job.rows_per_second ?? 0), count(job.rows ?? 0), count(job.restarts ?? 0)].forEach((written, at) => text(row.cells[at + 2], written));
    text(row.cells[6], job.since ? moment(job.since) : "");
    const figures = Object.entries(job).filter(([name, value]) => !KNOWN.has(name) && !["at", "position"].includes(name) && typeof value !== "object")
      .map(([name, value]) => `${name} ${typeof value === "number" ? count(value) : value}`);
    text(row.cells[7], job.error || figures.join(", "));
    row.cells[7].className = `value ${job.error ? "bad" : "muted"}`;
  }

  // A report with another batch than the one before it is a commit, with the rows that were added since.
  function done() {
    const found = [];
    for (const reports of jobs.values()) {
      for (let at = 1; at < reports.length; at += 1) {
        const [before, after] = [reports[at - 1], reports[at]];
        if (after.batch > before.batch && after.rows > before.rows) found.push({ ...after, rows: after.rows - before.rows });
      }
    }
    return found.sort((a, b) => b.at - a.at).slice(0, COMMITS);
  }

  function drawPlot(names) {
    if (names.join() !== plotted) {
      plotted = names.join();
      plot?.close();
      plotPlace.replaceChildren();
      plot = new Plot(plotPlace, "Rows per second of each job", {
        height: 240, series: names.map((name, at) => ({ label: name, colour: COLOURS[at % COLOURS.length] })),
      });
      throughput.end.replaceChildren(...names.map((name, at) => h("span", { class: `legend job-${at % COLOURS.length}` }, name)));
    }
    const times = [...new Set([...jobs.values()].flat().map((one) => Math.floor(one.at / 1000)))].sort((a, b) => a - b);
    plot.set([times, ...names.map((name) => {
      const known = new Map(jobs.get(name).map((one) => [Math.floor(one.at / 1000), one.rows_per_second ?? 0]));
      return times.map((time) => known.get(time) ?? null);
    })]);
  }

  let id = "";
  const stream = new Stream(
    () => `/api/events?${new URLSearchParams({ filter: "$sys/pipeline/+", ...(id ? { last_id: id } : { time: Date.now() - 86400_000 }) })}`,
    {
      message: (message, last) => {
        id = last;
        take(message);
      },
      error: (problem) => text(none, problem.detail),
    });
  const ages = setInterval(draw, 3000);
  return {
    title: "Pipeline",
    element: [h("div", { class: "head" }, h("h1", null, "Pipeline")), none, grid, questions.element],
    close() {
      clearTimeout(timer);
      clearInterval(ages);
      stream.close();
      questions.close();
      plot?.close();
    },
  };
}
