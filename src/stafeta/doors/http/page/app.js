// The page: who is there, which view is shown, keys, light and dark.

import { get, onLoggedOut, post } from "./api.js";
import { h } from "./dom.js";
import { Overview } from "./live.js";
import { login } from "./views/login.js";
import { overview } from "./views/overview.js";
import { pipeline } from "./views/pipeline.js";
import { subscriptions } from "./views/subscriptions.js";
import { topic } from "./views/topic.js";
import { topics } from "./views/topics.js";

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const live = document.getElementById("live");
const VIEWS = { "": overview, topics, subscriptions, pipeline };
const SAYS = { live: "live", away: "disconnected, trying again", connecting: "connecting", refused: "" };

const context = {
  overview: new Overview((state) => {
    live.textContent = SAYS[state];
    live.className = `live is-${state}`;
  }),
  session: null,
  notify,
  fail: (error) => notify(error.message, "bad"),
};
let shown = null;

function notify(sentence, kind = "") {
  const notice = h("p", { class: `notice ${kind}` }, sentence);
  document.getElementById("notices").append(notice);
  setTimeout(() => notice.remove(), kind === "bad" ? 9000 : 4000);
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { name, rest: rest.map(decodeURIComponent).join("/"), query: new URLSearchParams(query) };
}

function show(focus = true) {
  if (location.hash === "#main") return;
  const { name, rest, query } = route();
  shown?.close?.();
  const signedIn = context.session?.authenticated;
  nav.hidden = !signedIn;
  const make = !signedIn ? login : name === "topics" && rest ? topic : VIEWS[name] ?? missing;
  shown = make(context, { rest, query, after: begin });
  document.title = `${shown.title} · Stafeta`;
  main.replaceChildren(...[shown.element].flat());
  for (const link of nav.children) {
    const current = link.getAttribute("href").replace(/^#\/?/, "") === name;
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (focus) main.focus({ preventScroll: true });
  shown.shown?.();
}

function missing() {
  return { title: "Not found", element: h("p", null, "There is no such page. ", h("a", { href: "#/" }, "Overview")) };
}

function showUser() {
  const { users, user, authenticated } = context.session;
  const who = document.getElementById("who");
  who.replaceChildren();
  if (!users || !authenticated) return;
  who.append(h("span", null, user ?? ""), h("button", {
    type: "button", class: "quiet", onclick: async () => {
      try {
        await post("/api/logout");
      } catch (error) {
        context.fail(error);
      }
      begin();
    },
  }, "Log out"));
}

async function begin() {
  context.overview.stop();
  live.textContent = "";
  try {
    context.session = await get("/api/session");
  } catch (error) {
    live.textContent = SAYS.away;
    live.className = "live is-away";
    main.replaceChildren(h("p", null, `${error.message} The page tries again.`));
    setTimeout(begin, 2000);
    return;
  }
  showUser();
  if (context.session.authenticated) context.overview.start(context.session);
  show(false);
}

onLoggedOut(() => {
  if (context.session?.authenticated) begin();
});
addEventListener("hashchange", () => show());

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const search = main.querySelector('input[type="search"]');
    event.preventDefault();
    if (search) search.focus();
    else location.hash = "#/topics";
  }
  if (event.key === "Escape" && event.target.matches?.('input[type="search"]')) {
    event.target.value = "";
    event.target.dispatchEvent(new Event("input", { bubbles: true }));
    event.target.blur();
  }
});

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = document.getElementById("theme");
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";

function nameTheme() {
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", isDark() ? "Light: change to light colours" : "Dark: change to dark colours");
}

theme.addEventListener("click", () => {
  const chosen = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  try {
    localStorage.setItem("theme", chosen);
  } catch {
    // it holds until the page is left
  }
  nameTheme();
  document.dispatchEvent(new Event("themechange"));
});
dark.addEventListener("change", nameTheme);
nameTheme();
begin();
