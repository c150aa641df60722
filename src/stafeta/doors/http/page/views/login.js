import { get, post } from "../api.js";
import { h } from "../dom.js";

export function login(context, { after }) {
  const wrong = h("p", { class: "wrong", role: "alert" });
  const user = h("input", { name: "user", autocomplete: "username", required: true, autocapitalize: "none" });
  const form = h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      wrong.textContent = "";
      const data = new FormData(form);
      try {
        await post("/api/login", { user: data.get("user"), password: data.get("password") });
        const session = await get("/api/session");
        if (!session.authenticated) {
          wrong.textContent = "The browser did not keep the session's cookie; the page needs it.";
          return;
        }
        after();
      } catch (error) {
        wrong.textContent = error.message;
      }
    },
  },
  h("label", null, "User", user),
  h("label", null, "Password", h("input", { name: "password", type: "password", autocomplete: "current-password", required: true })),
  wrong,
  h("button", { type: "submit", class: "main" }, "Log in"));
  const element = h("section", { class: "card narrow", "aria-labelledby": "login-title" },
    h("h1", { id: "login-title" }, "Log in"), form);
  return { title: "Log in", element, shown: () => user.focus() };
}
