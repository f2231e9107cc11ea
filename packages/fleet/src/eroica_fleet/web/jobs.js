// The list of jobs: one line each, kept while it is shown, so that news change it in place and the focus stays.

import { draw, make, milliseconds } from "/assets/words.js";

export function ago(at) {
  const s = Math.max(0, Date.now() / 1000 - at);
  if (s < 90) return `${s.toFixed(0)} s ago`;
  if (s < 5400) return `${(s / 60).toFixed(0)} min ago`;
  if (s < 129600) return `${(s / 3600).toFixed(0)} h ago`;
  return `${(s / 86400).toFixed(0)} d ago`;
}

export function word(verdict) {
  return verdict ? make("span", { class: "word", "data-word": verdict }, verdict) : null;
}

function spark(values) {
  const svg = draw("svg", { class: "spark", viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" });
  if (values.length < 2) return svg;
  const middle = (Math.min(...values) + Math.max(...values)) / 2;
  const span = Math.max(Math.max(...values) - Math.min(...values), 0.05 * middle, 1e-9), low = middle - span / 2;
  const step = 100 / (values.length - 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)} ${(19 - 18 * (value - low) / span).toFixed(1)}`);
  svg.append(draw("path", { d: `M${points.join("L")}` }));
  return svg;
}

function line(run) {
  const size = `${run.workers} worker${run.workers === 1 ? "" : "s"}, ${run.hosts} host${run.hosts === 1 ? "" : "s"}`;
  const commit = run.commit ? `, ${run.commit}` : "";
  const link = make("a", { href: `/runs/${run.id}` },
    make("span", { class: "how" }, make("span", { class: "state", "data-state": run.state }, run.state)),
    make("span", { class: "job" }, make("b", {}, run.job), make("small", {}, `${size}${commit}, ${ago(run.heard_at)}`)),
    spark(run.spark),
    make("span", { class: "ms" }, milliseconds(run.mean_ms)),
    make("span", { class: "says" }, word(run.verdict), run.summary));
  return link;
}

export class Jobs {
  constructor(list) {
    this.list = list;
    this.items = new Map();
  }

  clear(text) {
    this.items.clear();
    this.list.replaceChildren(make("li", { class: "none" }, text));
  }

  // Adds runs at the end, or, where they are new, at the beginning; those that are shown are drawn anew.
  put(runs, first = false) {
    if (runs.length && !this.items.size) this.list.replaceChildren();
    for (const run of runs) {
      const known = this.items.get(run.id);
      const item = known ?? make("li");
      const hadFocus = known?.contains(document.activeElement);
      item.replaceChildren(line(run));
      if (hadFocus) item.firstChild.focus({ preventScroll: true });
      if (known) continue;
      this.items.set(run.id, item);
      if (first) this.list.prepend(item); else this.list.append(item);
    }
  }

  // Arrow keys walk from job to job.
  move(step) {
    const links = [...this.list.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    const next = links[Math.min(Math.max(at + step, 0), links.length - 1)];
    next?.focus();
    return next !== undefined;
  }
}
