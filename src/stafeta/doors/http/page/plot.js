// Plots over time, drawn by uPlot in the colours of the page.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
// Seconds between two times that an axis names.
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];

export class Plot {
  // series: [{ label, colour: "--accent", fill, width, points }], bands: [[upper, lower]] by their numbers, span: seconds
  // that are shown at least
  constructor(parent, label, { series, bands = [], height = 180, zero = true, span = 1 }) {
    this.parent = parent;
    this.options = { series, bands, height, zero, span };
    this.data = [[], ...series.map(() => [])];
    parent.classList.add("plot");
    parent.setAttribute("role", "img");
    parent.setAttribute("aria-label", label);
    this.sizes = new ResizeObserver(() => this.drawn?.setSize({ width: this.width(), height }));
    this.sizes.observe(parent);
    this.redraw = () => this.make();
    document.addEventListener("themechange", this.redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", this.redraw);
    this.make();
  }

  width() {
    return Math.max(this.parent.clientWidth, 120);
  }

  make() {
    this.drawn?.destroy();
    const { series, bands, height, zero, span } = this.options;
    const axis = {
      stroke: colour("--muted"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
    this.drawn = new uPlot({
      width: this.width(),
      height,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      padding: [8, 4, 0, 0],
      scales: {
        x: { range: (_, low, high) => (low === null ? [0, 1] : [Math.min(low, high - span), Math.max(high, low + 1)]) },
        y: { range: (_, low, high) => range(low, high, zero) },
      },
      axes: [
        { ...axis, space: 90, size: 26, incrs: STEPS, values: (_, splits) => splits.map((time) => new Date(time * 1000).toLocaleTimeString("en-GB")) },
        { ...axis, size: 52, space: 34, values: (_, splits) => splits.map((one) => compact.format(one)) },
      ],
      series: [{}, ...series.map((one) => ({
        label: one.label,
        stroke: colour(one.colour),
        width: one.width ?? 1.75,
        fill: one.fill ? colour(one.fill) : undefined,
        points: { show: one.points ?? false },
        spanGaps: true,
      }))],
      bands: bands.map((pair) => ({ series: pair, fill: colour("--accent-soft") })),
    }, this.data, this.parent);
  }

  set(data) {
    this.data = data;
    this.drawn.setData(data);
  }

  close() {
    document.removeEventListener("themechange", this.redraw);
    matchMedia("(prefers-color-scheme: dark)").removeEventListener("change", this.redraw);
    this.sizes.disconnect();
    this.drawn.destroy();
  }
}

function range(low, high, zero) {
  if (low === null || low === undefined) return [0, 1];
  if (zero) return [0, Math.max(high * 1.12, 1)];
  const room = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
  return [low - room, high + room];
}
