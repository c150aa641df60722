// Before anything is drawn: light or dark, as was chosen here last, else as the system is.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("theme");
  } catch {
    // a browser that keeps nothing follows the system
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
