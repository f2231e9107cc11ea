// Puts what the collector tells into the page.

import { Chart } from "./chart.js";
import { follow } from "./stream.js";
import { OVER, PHASES, Windows } from "./windows.js";
import { clock, count, make, milliseconds } from "./words.js";
import { Workers } from "./workers.js";

const at = id => document.getElementById(id);
const WINDOW_PHASES = ["probe", "window", "patterns", "analysis"];
const STILL_PHASES = ["blocked", "looking", "examining", "standstill"];

for (const element of document.querySelectorAll(".scripted")) element.hidden = false;
at("jobs-section").hidden = true;
const chart = new Chart(at("chart"), "pace-title");
const workers = new Workers(at("map"), at("legend"), at("who"));
const windows = new Windows(at("windows"), at("verdict"));
let settled = false, asked = 0;

const takes = {
  hello({ resumed }) {
    if (!resumed) {
      windows.clear();
      chart.clear();
    }
    settled = resumed;
    setTimeout(() => { settled = true; }, 1000);
  },
  status(now) {
    document.title = `${now.job} · Eroica`;
    at("job").textContent = now.job;
    at("phase").dataset.phase = now.phase;
    at("phase").dataset.sort = WINDOW_PHASES.includes(now.phase) ? "window" : STILL_PHASES.includes(now.phase) ? "still" : "";
    at("phase").replaceChildren(make("strong", {}, PHASES[now.phase] ?? now.phase), " ", make("span", {}, now.message));
    at("iteration").textContent = count(now.iteration);
    at("mean").textContent = milliseconds(now.mean_ms);
    at("best").textContent = milliseconds(now.best_ms);
    at("count").textContent = count(now.workers);
    at("hosts").textContent = count(now.hosts);
  },
  roster: roster => workers.takeRoster(roster),
  workers({ letters, odd }) {
    workers.takeLetters(letters);
    list("odd", odd, oddWorker, "Nobody is silent, lost or has ended badly.");
  },
  window(record) {
    windows.takeWindow(record);
    if (record.window_id === asked && OVER.includes(record.phase)) at("asked").textContent = "";
  },
  verdict: record => windows.takeVerdict(record, settled),
  final: record => windows.takeVerdict(record, settled),
  pace: update => chart.take(update) && stream.anew(),
  notes(notes) {
    at("notes-section").hidden = notes.length === 0;
    list("notes", notes, note => [note], "");
  },
  jobs(jobs) {
    at("jobs-section").hidden = jobs.length === 0;
    list("jobs", jobs, job, "");
  },
};

function list(id, records, row, otherwise) {
  const rows = records.map(record => make("li", {}, ...row(record)));
  at(id).replaceChildren(...(rows.length || !otherwise ? rows : [make("li", { class: "none" }, otherwise)]));
}

function oddWorker({ rank, host, pid, words }) {
  return [make("strong", {}, `worker ${rank}`), ` ${host}, pid ${pid}: ${words}`];
}

function job({ name, running, verdict, summary }) {
  if (!running) return [make("strong", {}, name), ` ${verdict ? `${verdict}: ${summary}` : "ended without a verdict"}`];
  return [make("a", { href: `/v1/jobs/${encodeURIComponent(name)}` }, name), " is running"];
}

function connection(state, since, bye) {
  const link = at("link");
  link.dataset.state = state;
  if (state === "live") link.textContent = "live";
  if (state === "lost") link.textContent = `connection lost since ${clock(since)}; trying again`;
  if (state === "over") {
    link.textContent = `the collector ended at ${clock(since)}`;
    at("phase").dataset.phase = "ended";
    at("run").textContent = bye.run;
  }
  if (state !== "lost") windows.over(bye?.run ?? "");
  at("open").disabled = state !== "live";
}

const stream = follow((event, data) => takes[event]?.(data), connection);

// ------------------------------------------------------------- a window by hand

const dialog = at("ask");
at("open").hidden = false;
at("open").addEventListener("click", () => {
  dialog.returnValue = "no";
  dialog.showModal();
});
dialog.addEventListener("close", () => dialog.returnValue === "yes" && open());

async function open() {
  const said = at("asked"), wanted = { seconds: Number(at("ask-seconds").value), reason: at("ask-reason").value };
  said.textContent = "Asking the collector…";
  try {
    const answer = await fetch("/v1/window", {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(wanted),
    });
    const { window_id, refused, error } = await answer.json();
    asked = answer.ok ? window_id : 0;
    said.textContent = answer.ok
      ? `Window ${window_id} is opening; its verdict will appear here.`
      : `No window was opened: ${refused || error}.`;
  } catch {
    said.textContent = "The collector did not answer. Try again when the page is live.";
  }
}
