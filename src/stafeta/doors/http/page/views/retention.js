// How long a topic keeps what nobody waits for: shown among its figures, and changed after a question.

import { ask, topicPath } from "../api.js";
import { bytes, count, duration, figure, h, text } from "../dom.js";
import { question } from "../dialog.js";

const AGES = [["seconds", 1], ["minutes", 60], ["hours", 3600], ["days", 86400]];
const COUNTS = [["messages", 1]];
const SIZES = [["bytes", 1], ["KB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]];

export function retentionFigure(context, name, after) {
  const element = figure("kept for", true);
  const label = h("span", null, "kept for");
  const button = h("button", { type: "button", class: "link", hidden: true, "aria-label": "Change how long messages are kept" }, "Change…");
  let known = null;
  button.addEventListener("click", () => change(context, name, known, after));
  element.lastChild.replaceChildren(label, " ", button);
  return Object.assign(element, {
    show(keep) {
      known = keep;
      element.set(written(keep) || "its readers");
      text(label, keep.own ? "kept for, as set here" : "kept for");
      button.hidden = false;
    },
  });
}

const written = ({ seconds, bytes: size, messages }) => [
  seconds !== null && duration(seconds), size !== null && bytes(size), messages !== null && `${count(messages)} messages`,
].filter(Boolean).join(", ");

// A number with a unit; empty where there is no such limit. The largest unit is taken that writes it exactly.
function limit(name, label, units, known, choose) {
  const at = known === null ? units.length - 2 : units.findLastIndex(([, size]) => known % size === 0 && known >= size);
  const [, size] = units[Math.max(at, 0)];
  const number = h("input", {
    name, type: "number", min: 0, step: "any", value: known === null ? "" : known / size, placeholder: "no limit",
    "aria-label": label, oninput: choose,
  });
  const unit = h("select", { name: `${name}-unit`, "aria-label": `${label}, unit`, onchange: choose },
    units.map(([word], index) => h("option", { value: word, selected: index === Math.max(at, 0) }, word)));
  return h("div", { class: "limit" }, h("span", { "aria-hidden": "true" }, label), number, units.length > 1 ? unit : h("span", { class: "muted" }, units[0][0]));
}

function taken(data, name, units) {
  const written = data.get(name).trim();
  if (!written) return null;
  const unit = units.length > 1 ? units.find(([word]) => word === data.get(`${name}-unit`))[1] : 1;
  return Number(written) * unit;
}

function change(context, name, keep, after) {
  const own = h("input", { type: "radio", name: "of", value: "own", checked: keep.own });
  const choose = () => (own.checked = true);
  const configured = keep.own ? "" : keep.rule ? ` (${keep.rule}: ${written(keep)})` : " (no limit is set: until its readers have it)";
  question("How long messages are kept", {
    action: "Change",
    danger: true,
    children: [
      h("p", null, `What is beyond one of the limits goes from ${name}, unless a durable subscription waits for it.`),
      h("fieldset", null, h("legend", null, "Limits"),
        h("label", { class: "beside" }, h("input", { type: "radio", name: "of", value: "configured", checked: !keep.own }), `as the configuration says${configured}`),
        h("label", { class: "beside" }, own, "as set here:"),
        limit("seconds", "Age", AGES, keep.seconds, choose),
        limit("bytes", "Size", SIZES, keep.bytes, choose),
        limit("messages", "Count", COUNTS, keep.messages, choose)),
    ],
    run: async (data) => {
      let wanted = null;
      if (data.get("of") === "own") {
        wanted = { seconds: taken(data, "seconds", AGES), bytes: taken(data, "bytes", SIZES), messages: taken(data, "messages", COUNTS) };
        if (Object.values(wanted).every((one) => one === null)) throw new Error("Name at least one limit: an age, a size or a count.");
        for (const key of ["bytes", "messages"]) if (wanted[key] !== null) wanted[key] = Math.round(wanted[key]);
      }
      await ask("PUT", topicPath(name), { body: { keep: wanted } });
      context.notify(wanted ? `${name} keeps ${written(wanted)}.` : `${name} keeps what the configuration says.`);
      after();
    },
  });
}
