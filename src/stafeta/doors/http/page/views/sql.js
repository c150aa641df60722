// A box for SQL, which the Spark of a running pipeline carries out.

import { get, post } from "../api.js";
import { card, exact, h, table, text } from "../dom.js";

const AGAIN = 5000; // milliseconds between two looks for a Spark
const NUMBER = /^(u?int|float|double|half|decimal)/;
const EXAMPLES = [
  ["Messages by topic", "SELECT topic, count(*) AS messages, max(timestamp) AS newest\nFROM messages GROUP BY topic ORDER BY messages DESC"],
  ["Readings of the last hour", "SELECT topic, min(number), round(avg(number), 2) AS mean, max(number)\nFROM readings WHERE timestamp > now() - INTERVAL 1 HOUR\nGROUP BY topic ORDER BY topic"],
  ["Newest messages", "SELECT timestamp, topic, offset, text\nFROM messages ORDER BY timestamp DESC LIMIT 20"],
  ["Columns", "DESCRIBE messages"],
];
let statement = EXAMPLES[0][1]; // stays while one looks at other pages

export function sql(context) {
  if (!context.session.sql) {
    return { element: card("SQL", "", h("p", { class: "muted" }, "SQL is for those who administer the broker and may read every topic.")), close() {} };
  }
  const box = h("textarea", { id: "statement", rows: 4, spellcheck: false, autocomplete: "off", maxLength: 16384, value: statement });
  const run = h("button", { type: "submit", class: "main" }, "Run");
  const stop = h("button", { type: "button", hidden: true, onclick: () => asking?.abort() }, "Cancel");
  const said = h("span", { class: "muted", role: "status" });
  const wrong = h("pre", { class: "wrong", role: "alert" });
  const place = h("div", { class: "tail", tabIndex: 0, role: "region", "aria-label": "Result", hidden: true });
  const form = h("form", { onsubmit: ask },
    h("label", null, "Statement", box),
    h("div", { class: "row" }, run, stop, said, h("span", { class: "end" },
      EXAMPLES.map(([name, example]) => h("button", { type: "button", class: "quiet", onclick: () => fill(example) }, name)))));
  const absent = h("div", { class: "empty" },
    h("p", null, "No Spark is at hand. A pipeline that runs on the broker's machine, as its user, answers SQL on lake and log:"),
    h("p", null, h("code", null, "stafeta pipeline run archive rollup")));
  const element = card("SQL", "", absent, form, wrong, place);
  let asking = null;
  let timer = null;
  form.hidden = true;
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });

  function fill(example) {
    box.value = example;
    box.focus();
  }

  async function look() {
    timer = null;
    let there = false;
    try {
      there = document.hidden ? !form.hidden : (await get("/api/sql")).available;
    } catch (error) {
      if (error.status === 401) return;
    }
    absent.hidden = there || asking !== null;
    form.hidden = !absent.hidden;
    if (!closed) timer = setTimeout(look, AGAIN);
  }

  async function ask(event) {
    event.preventDefault();
    statement = box.value;
    if (asking || !statement.trim()) return;
    const mine = (asking = new AbortController());
    run.disabled = true;
    stop.hidden = false;
    text(wrong, "");
    text(said, "Spark works.");
    try {
      show(await post("/api/sql", { statement }, {}, mine.signal));
    } catch (error) {
      const cancelled = error.name === "AbortError";
      text(said, cancelled ? "Cancelled." : "");
      if (!cancelled) text(wrong, error.message);
      place.hidden = true;
    }
    asking = null;
    run.disabled = false;
    stop.hidden = true;
  }

  function show({ columns, rows, cut, seconds, notes }) {
    const kinds = columns.map(({ type }) => (NUMBER.test(type) ? "number" : ""));
    text(said, [`${cut ? "The first " : ""}${exact(rows.length)} ${rows.length === 1 ? "row" : "rows"}, ${seconds.toFixed(1)} s.`, ...notes].join(" "));
    place.hidden = !columns.length;
    place.replaceChildren(table("Result", columns.map(({ name }, at) => [name, kinds[at]]), h("tbody", null,
      rows.map((row) => h("tr", null, row.map((cell, at) => h("td", { class: cell === null ? "muted" : kinds[at] || "value" }, written(cell))))))));
  }

  let closed = false;
  look();
  return {
    element,
    close() {
      closed = true;
      statement = box.value;
      clearTimeout(timer);
      asking?.abort();
    },
  };
}

function written(cell) {
  if (cell === null) return "NULL";
  return typeof cell === "object" ? JSON.stringify(cell) : String(cell);
}
