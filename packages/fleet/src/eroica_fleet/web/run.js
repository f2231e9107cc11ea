// A run's page: its iteration times, windows and verdicts, and what its earlier runs say.

import { count, draw, make, milliseconds, percent } from "/assets/words.js";
import { ask, follow } from "/assets/follow.js";
import { ago, word } from "/assets/jobs.js";

const at = id => document.getElementById(id);
const id = Number(document.body.dataset.run);
const WIDTH = 1000, HEIGHT = 260, LEFT = 70, BOTTOM = 28, TOP = 12;

function chart(course) {
  const { at_s: times, mean_ms: means, slowest_ms: slowest } = course.times;
  if (times.length < 2) return make("p", { class: "wait" }, "No iteration times yet.");
  const first = times[0], last = times.at(-1), top = 1.05 * quantile(slowest, 0.99), span = Math.max(last - first, 1e-9);
  const x = s => LEFT + (WIDTH - LEFT) * (s - first) / span;
  const y = ms => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.min(ms, top) / top);
  const path = values => `M${values.map((ms, at) => `${x(times[at]).toFixed(1)} ${y(ms).toFixed(1)}`).join("L")}`;
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Iteration times over the run" });
  for (const part of [0, 0.5, 1]) {
    svg.append(draw("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y(part * top), y2: y(part * top) }));
    svg.append(draw("text", { x: LEFT - 8, y: y(part * top) + 4, "text-anchor": "end" }, milliseconds(part * top)));
  }
  for (const verdict of course.verdicts) {
    const s = verdict.judged_at - course.run.began_at;
    if (verdict.window_id && s >= first && s <= last) svg.append(draw("line", { class: "cursor", x1: x(s), x2: x(s), y1: TOP, y2: HEIGHT - BOTTOM }));
  }
  svg.append(draw("path", { class: "slowest", d: path(slowest) }), draw("path", { class: "mean", d: path(means) }));
  for (const s of [first, last]) {
    const anchor = s === first ? "start" : "end";
    svg.append(draw("text", { x: x(s), y: HEIGHT - 6, "text-anchor": anchor }, new Date(1000 * (course.run.began_at + s)).toLocaleString()));
  }
  return svg;
}

function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

function windowItem(verdict) {
  const name = verdict.window_id ? `Window ${verdict.window_id}` : "The verdict on the job";
  const facts = [
    verdict.gain === null ? "" : `costs ${percent(verdict.gain)}`,
    verdict.cause ? `confidence ${percent(verdict.confidence)}` : "", ago(verdict.judged_at),
  ].filter(Boolean).join(", ");
  return make("li", {},
    make("p", { class: "head" }, make("b", {}, name), word(verdict.verdict), make("span", { class: "span" }, facts),
      make("a", { href: `/runs/${id}/windows/${verdict.window_id}/report` }, "report")),
    make("p", {}, verdict.summary));
}

function numbers(run) {
  const facts = [
    ["state", run.state], ["iteration", count(run.iteration)], ["slowest worker’s mean", milliseconds(run.mean_ms)],
    ["best before", milliseconds(run.best_ms)], ["workers", count(run.workers)], ["hosts", count(run.hosts)],
    ["commit", run.commit || "–"], ["heard", ago(run.heard_at)],
  ];
  at("numbers").replaceChildren(...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

async function load() {
  const course = await ask(`/v1/runs/${id}`);
  const run = course.run;
  numbers(run);
  at("phase").replaceChildren(make("strong", {}, run.phase || run.state), " ", make("span", {}, course.message));
  at("verdict").hidden = !run.verdict;
  at("verdict").dataset.word = at("word").dataset.word = at("word").textContent = run.verdict;
  at("sentence").textContent = run.summary;
  at("chart").replaceChildren(chart(course));
  if (course.verdicts.length) at("windows").replaceChildren(...course.verdicts.map(windowItem));
  const more = run.hosts > course.names.length ? `, and ${count(run.hosts - course.names.length)} more` : "";
  at("hosts").textContent = course.names.length ? course.names.join(", ") + more : "None known yet.";
  const { earlier } = await ask(`/v1/runs/${id}/earlier`);
  at("earlier-section").hidden = !earlier;
  at("earlier").textContent = earlier?.summary ?? "";
}

at("open")?.addEventListener("click", async event => {
  event.target.disabled = true;
  const answer = await fetch(`/v1/runs/${id}/window`, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ reason: "asked for on the fleet’s page" }),
  });
  const record = await answer.json();
  at("asked").textContent = answer.ok ? "A window is asked for; it opens when the job reports next." : `No window: ${record.error}`;
  event.target.disabled = false;
});
load().catch(error => { at("asked").textContent = `The service does not say: ${error.message}`; });
follow(at("link"), runs => { if (runs.some(run => run.id === id)) load().catch(() => {}); });
