// Windows and verdicts as they come: the latest verdict large, all windows in a list.

import { count, make, percent } from "./words.js";

const SHOWN = 12;
const PURPOSES = {
  slow: "iterations got slower", expected: "slower than expected",
  seldom: "now and then one takes much longer", early: "it looked slow already", manual: "asked for by hand",
  baseline: "baseline while healthy", blocked: "the job stood still", trace: "recorded",
};
// What the collector calls the steps of a window, in words.
export const PHASES = {
  probe: "measuring one iteration", window: "capturing", patterns: "summaries are coming in", analysis: "being compared",
  looking: "looking at all workers", examining: "comparing the looks", passed: "went on by itself",
};
export const OVER = ["done", "given up", "failed", "lost", "passed", "restarted"];
const FINAL = 0;

export class Windows {
  constructor(list, card) {
    this.list = list;
    this.card = card;
    this.run = "";
    this.clear();
  }

  // The collector has ended: reports are no longer served, but lie in the run directory. Empty: it is back.
  over(run) {
    this.run = run;
    this.redraw();
  }

  report(address, words) {
    if (!address) return "";
    if (!this.run) return make("a", { href: address, target: "_blank", rel: "noopener" }, words);
    const window_id = address.match(/\d+(?=\/report$)/);
    return make("span", {}, "Report: ", make("code", {}, `${this.run}/${window_id ? `windows/${window_id}/` : ""}index.html`));
  }

  clear() {
    this.windows = new Map();
    this.verdicts = new Map();
    this.fresh = new Set();
  }

  takeWindow(record) {
    this.windows.set(record.window_id, record);
    this.redraw();
  }

  // `news`: it came while somebody was watching.
  takeVerdict(record, news) {
    this.verdicts.set(record.window_id, record);
    if (news) this.fresh.add(record.window_id);
    this.redraw();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    queueMicrotask(() => {
      this.waiting = false;
      this.paint();
    });
  }

  paint() {
    const records = [...this.windows.values()].sort((a, b) => b.window_id - a.window_id);
    const rows = records.map(record => this.row(record));
    const older = rows.splice(SHOWN);
    if (older.length) {
      const open = this.list.querySelector("details")?.open ?? false;
      const summary = make("summary", {}, `${older.length} older windows`);
      rows.push(make("li", {}, make("details", { open }, summary, make("ol", { class: "windows" }, ...older))));
    }
    if (rows.length) this.list.replaceChildren(...rows);
    this.paintCard();
  }

  row(record) {
    const open = OVER.includes(record.phase) ? "" : make("span", { class: "new" }, "◆");
    const verdict = record.verdict ? word(record.verdict) : open;
    const facts = [PURPOSES[record.purpose] ?? record.purpose, span(record), PHASES[record.phase] ?? record.phase];
    const head = make(
      "p", { class: "head" }, verdict, make("b", {}, `Window ${record.window_id}`),
      make("span", { class: "span" }, facts.filter(Boolean).join(" · ")),
      this.report(record.report, `Report of window ${record.window_id}`),
    );
    return make("li", { "data-window": record.window_id }, head, record.summary ? make("p", {}, record.summary) : "");
  }

  paintCard() {
    const latest = this.verdicts.get(FINAL) ?? this.verdicts.get(Math.max(...this.verdicts.keys()));
    this.card.hidden = !latest;
    if (!latest) return;
    this.card.setAttribute("data-word", latest.verdict);
    const fresh = this.fresh.has(latest.window_id) ? ", just now" : "";
    const title = latest.window_id === FINAL ? "The verdict on the job" : `Latest verdict, of window ${latest.window_id}${fresh}`;
    const facts = [
      latest.workers,
      latest.hosts?.length ? `on ${latest.hosts.join(", ")}` : "",
      latest.gain === null || latest.gain === undefined ? "" : `gain ${percent(latest.gain)} of the iteration`,
      latest.confidence === null || latest.confidence === undefined ? "" : `confidence ${percent(latest.confidence)}`,
    ].filter(Boolean).join(" · ");
    this.card.replaceChildren(
      make("h2", {}, word(latest.verdict), title),
      make("p", { class: "sentence" }, latest.summary),
      facts ? make("p", { class: "facts" }, facts) : "",
      latest.next_step ? make("p", { class: "next" }, make("strong", {}, "Next: "), latest.next_step) : "",
      latest.report ? make("p", { class: "next" }, this.report(latest.report, "Open the report")) : "",
    );
  }
}

function span({ purpose, first_iteration, last_iteration }) {
  if (purpose === "blocked") return `at iteration ${count(first_iteration)}`;
  return last_iteration ? `iterations ${count(first_iteration)}–${count(Math.max(last_iteration - 1, first_iteration))}` : "";
}

function word(verdict) {
  return make("strong", { class: "word", "data-word": verdict }, verdict);
}
