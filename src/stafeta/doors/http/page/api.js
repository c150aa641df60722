// Requests to the broker. What goes wrong is a sentence.

export class Problem extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

let loggedOut = () => {};
export function onLoggedOut(listener) {
  loggedOut = listener;
}

export async function ask(method, path, { query, body, signal } = {}) {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") parts.append(name, value);
  }
  const address = parts.size ? `${path}?${parts}` : path;
  const options = { method, signal, headers: { Accept: "application/json" } };
  if (method !== "GET") {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body ?? {});
  }
  let response;
  try {
    response = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The broker cannot be reached.");
  }
  let found = {};
  try {
    found = await response.json();
  } catch {
    // a proxy has answered, or nobody
  }
  if (response.ok) return found;
  if (response.status === 401 && path !== "/api/login") loggedOut();
  throw new Problem(response.status, found.detail ?? `The broker has answered with status ${response.status}.`);
}

export const get = (path, query, signal) => ask("GET", path, { query, signal });
export const post = (path, body, query, signal) => ask("POST", path, { body, query, signal });
export const topicPath = (name) => `/api/topics/${encodeURIComponent(name)}`;

// How long to wait before the same is asked again: what is much work for the broker is asked for less often.
export const pause = (least, began) => Math.max(least, 20 * (performance.now() - began));
