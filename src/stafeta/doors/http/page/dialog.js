// A question before something is changed. Escape and Cancel change nothing.

import { h } from "./dom.js";

export function question(title, { children = [], action = "OK", danger = false, run }) {
  const wrong = h("p", { class: "wrong", role: "alert" });
  const confirm = h("button", { type: "submit", class: danger ? "danger" : "main" }, action);
  const form = h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      wrong.textContent = "";
      confirm.disabled = true;
      try {
        await run(new FormData(form));
        dialog.close();
      } catch (error) {
        wrong.textContent = error.message;
      }
      confirm.disabled = false;
    },
  },
  h("h2", { id: "dialog-title" }, title), children, wrong,
  h("div", { class: "choices" },
    h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), confirm));
  const dialog = h("dialog", { "aria-labelledby": "dialog-title", onclose: () => dialog.remove() }, form);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
