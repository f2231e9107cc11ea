// Iteration times over the job's life, as an SVG: the mean of all workers, the slowest one, and what happened when.

import { ticks, times, timeLabel } from "./scale.js";
import { clock, count, draw, duration, make, milliseconds } from "./words.js";

const LEFT = 56, RIGHT = 12, TOP = 14, LANE = 26, BOTTOM = 24;
const MOST_STRETCHES = 4000;
const COLUMNS = ["at_s", "iteration", "mean_ms", "slowest_ms", "slowest_worker"];
const SPANS = [["10 minutes", 600], ["1 hour", 3600], ["all", Infinity]];
const SIGNS = { trigger: "▲", window: "◆", baseline: "◇", verdict: "●", blocked: "■" };
const NAMES = { trigger: "slow", window: "window", baseline: "baseline window", verdict: "verdict", blocked: "stood still" };
// A first iteration that compiles for a minute would press all others flat: what is far above most is cut off, and said.
const CUT = 2.5;

export class Chart {
  constructor(place, label) {
    this.data = Object.fromEntries(COLUMNS.map(name => [name, []]));
    this.marks = new Map();
    this.began = 0;
    this.span = Infinity;
    this.at = null;
    this.waiting = false;
    this.wait = make("p", { class: "wait" }, "No iteration has been counted yet.");
    this.svg = draw("svg", { tabindex: 0, role: "slider", "aria-labelledby": label, "aria-valuenow": 0, "aria-valuemin": 0 });
    this.said = make("output");
    this.keys = key();
    this.spans = make("li", { class: "spans" });
    place.append(this.wait, this.keys, this.svg, this.said);
    this.chooseSpan();
    new ResizeObserver(() => this.redraw()).observe(this.svg);
    this.svg.addEventListener("pointermove", event => this.point(event));
    this.svg.addEventListener("pointerdown", event => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.look(null));
    this.svg.addEventListener("keydown", event => this.walk(event));
    this.svg.addEventListener("blur", () => this.look(null));
    this.redraw();
  }

  // News of the collector; true if there is more here than anybody needs, and everything should be asked for anew.
  take({ whole, news }) {
    if (whole) this.clear();
    this.began = news.began;
    for (const name of COLUMNS) this.data[name].push(...(news[name] ?? []));
    for (const mark of news.marks ?? []) {
      this.marks.set(`${mark.kind} ${mark.window_id ?? 0} ${mark.at_s}`, mark);
      this.keys.querySelector(`[data-kind="${mark.kind}"]`).hidden = false;
    }
    this.redraw();
    return this.data.at_s.length > MOST_STRETCHES;
  }

  clear() {
    for (const name of COLUMNS) this.data[name] = [];
    this.marks.clear();
    this.at = null;
    this.redraw();
  }

  chooseSpan() {
    for (const [name, seconds] of SPANS) {
      const button = make("button", { type: "button" }, name);
      button.setAttribute("aria-pressed", seconds === this.span);
      button.addEventListener("click", () => {
        this.span = seconds;
        for (const other of this.spans.children) other.setAttribute("aria-pressed", other === button);
        this.redraw();
      });
      this.spans.append(button);
    }
    this.keys.append(this.spans);
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  paint() {
    const { at_s } = this.data;
    const empty = at_s.length === 0;
    this.wait.hidden = !empty;
    this.svg.toggleAttribute("hidden", empty);
    this.keys.hidden = this.said.hidden = empty;
    if (empty) return;
    const { width, height } = this.svg.getBoundingClientRect();
    if (!width) return;
    const end = at_s.at(-1);
    const low = Math.max(at_s[0] - 1, end - this.span, 0);
    const from = Math.max(at_s.findIndex(at => at >= low), 0);
    const floor = height - BOTTOM - LANE;
    const shown = this.data.slowest_ms.slice(from);
    const highest = Math.max(...shown);
    const most = [...shown].sort((a, b) => a - b)[Math.floor(0.9 * (shown.length - 1))];
    const high = Math.min(highest * 1.08, most * CUT);
    this.x = at => LEFT + (width - LEFT - RIGHT) * (at - low) / Math.max(end - low, 1e-9);
    this.y = ms => TOP + (floor - TOP) * (1 - Math.min(ms / high, 1));
    this.view = { width, height, low, end, from, floor, high };
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(
      ...this.bands(), ...this.axes(), this.line("slowest"), this.line("mean"), ...this.signs(),
      ...(highest > high ? [this.cutOff(highest)] : []), (this.pointer = draw("g")),
    );
    this.spans.hidden = end - at_s[0] < SPANS[0][1];
    this.svg.setAttribute("aria-valuemax", at_s.length - 1);
    this.say();
  }

  axes() {
    const { width, height, low, end, floor, high } = this.view;
    const found = [];
    for (const value of ticks(high, 4)) {
      const y = this.y(value);
      found.push(draw("line", { class: value ? "grid" : "axis", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }));
      found.push(draw("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, value ? short(value) : "0"));
    }
    for (const at of times(low, end, Math.max(width / 110, 2))) {
      const x = this.x(at);
      found.push(draw("line", { class: "axis", x1: x, x2: x, y1: floor, y2: floor + 4 }));
      const anchor = x > width - 40 ? "end" : x < LEFT + 20 ? "start" : "middle";
      found.push(draw("text", { x, y: height - 6, "text-anchor": anchor }, timeLabel(at)));
    }
    return found;
  }

  line(name) {
    const { from } = this.view, values = this.data[`${name}_ms`];
    let path = "";
    for (let i = from; i < values.length; i++) {
      path += `${path ? "L" : "M"}${this.x(this.data.at_s[i]).toFixed(1)} ${this.y(values[i]).toFixed(1)}`;
    }
    return draw("path", { class: name, d: path });
  }

  bands() {
    const { low, end, floor } = this.view, found = [];
    for (const mark of this.marks.values()) {
      const until = mark.until_s ?? end;
      if (!["window", "baseline", "blocked"].includes(mark.kind) || until < low) continue;
      const x = this.x(Math.max(mark.at_s, low));
      const width = Math.max(this.x(Math.min(until, end)) - x, 2);
      found.push(draw("rect", { class: `band ${mark.kind}`, x, y: TOP, width, height: floor - TOP }));
    }
    return found;
  }

  // Signs stand in a lane of their own, so that they never hide the line; numbers only where there is room.
  signs() {
    const { low, end, floor } = this.view, found = [], free = {};
    const marks = [...this.marks.values()].filter(mark => mark.at_s >= low && mark.at_s <= end + 5);
    for (const mark of marks.sort((a, b) => a.at_s - b.at_s)) {
      const x = Math.min(this.x(mark.at_s), this.view.width - RIGHT);
      const sign = draw("text", { class: `sign ${mark.kind}`, x, y: floor + 20, "text-anchor": "middle" }, SIGNS[mark.kind]);
      if (x < (free[mark.kind] ?? 0)) continue;
      free[mark.kind] = x + 9;
      found.push(sign);
    }
    return found;
  }

  cutOff(highest) {
    const words = `cut off above ${short(this.view.high)}; the slowest was ${milliseconds(highest)}`;
    return draw("text", { x: LEFT + 6, y: TOP - 3 }, words);
  }

  // ------------------------------------------------------------- one stretch

  point(event) {
    const left = this.svg.getBoundingClientRect().left;
    const wanted = event.clientX - left, { at_s } = this.data;
    let best = this.view?.from ?? 0;
    for (let i = best; i < at_s.length; i++) {
      if (Math.abs(this.x(at_s[i]) - wanted) < Math.abs(this.x(at_s[best]) - wanted)) best = i;
    }
    this.look(best);
  }

  walk(event) {
    const last = this.data.at_s.length - 1, at = this.at ?? last;
    const to = {
      ArrowLeft: at - 1, ArrowRight: at + 1, ArrowDown: at - 1, ArrowUp: at + 1,
      PageDown: at - 20, PageUp: at + 20, Home: this.view?.from ?? 0, End: last,
    }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.look(Math.min(Math.max(to, this.view?.from ?? 0), last));
  }

  look(index) {
    this.at = index;
    this.say();
  }

  say() {
    const { at_s, iteration, mean_ms, slowest_ms, slowest_worker } = this.data;
    if (!at_s.length || !this.pointer) return;
    const i = this.at ?? at_s.length - 1;
    const moment = clock(new Date(1000 * (this.began + at_s[i])));
    const when = `${this.at === null ? "latest, " : ""}${duration(at_s[i])} after the start (${moment})`;
    const near = [...this.marks.values()].filter(mark => covers(mark, at_s[i], at_s[i - 1] ?? 0, at_s.at(-1)));
    const what = near.slice(0, 3).map(describe);
    const slowest = `slowest ${milliseconds(slowest_ms[i])} (worker ${slowest_worker[i]})`;
    const words = `iteration ${count(iteration[i])}, mean ${milliseconds(mean_ms[i])}, ${slowest}`;
    this.said.textContent = [`${when}: ${words}`, ...what].join(" · ");
    this.svg.setAttribute("aria-valuenow", i);
    this.svg.setAttribute("aria-valuetext", this.said.textContent);
    this.pointer.replaceChildren();
    if (this.at === null) return;
    const x = this.x(at_s[i]);
    this.pointer.append(
      draw("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: this.view.floor }),
      draw("circle", { class: "dot", cx: x, cy: this.y(slowest_ms[i]), r: 3.5 }),
      draw("circle", { class: "dot", cx: x, cy: this.y(mean_ms[i]), r: 3.5 }),
    );
  }
}

function describe({ kind, window_id, text }) {
  return `${SIGNS[kind]} ${NAMES[kind]}${window_id ? ` ${window_id}` : ""}${text ? `: ${text}` : ""}`;
}

// Whether a mark touches the stretch from `before` to `at`; what lasts and has no end yet lasts until `end`.
function covers(mark, at, before, end) {
  const lasts = mark.kind !== "verdict" && mark.kind !== "trigger";
  return mark.at_s <= at && (mark.until_s ?? (lasts ? end : mark.at_s)) > before;
}

function short(ms) {
  return ms >= 1000 ? `${+(ms / 1000).toPrecision(3)} s` : `${+ms.toPrecision(3)} ms`;
}

function key() {
  const list = make("ul", { class: "key" });
  for (const [name, words] of [["mean", "mean of all workers"], ["slowest", "the slowest worker"]]) {
    const sample = draw("svg", { viewBox: "0 0 30 10", "aria-hidden": true });
    sample.append(draw("path", { class: name, d: "M0 5H30" }));
    list.append(make("li", {}, sample, words));
  }
  for (const [kind, sign] of Object.entries(SIGNS)) {
    list.append(make("li", { "data-kind": kind, hidden: true }, make("span", { class: `sign-${kind}` }, sign), ` ${NAMES[kind]}`));
  }
  return list;
}
