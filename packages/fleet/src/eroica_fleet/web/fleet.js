// The fleet's page: jobs as they change, a search, hosts and functions.

import { count } from "/assets/words.js";
import { ask, follow } from "/assets/follow.js";
import { Jobs } from "/assets/jobs.js";
import { showFunctions, showHosts, showNotable } from "/assets/insights.js";

const at = id => document.getElementById(id);
const jobs = new Jobs(at("jobs"));
const TYPED_MS = 200, INSIGHTS_MS = 60000, LIMIT = "25";
let after = "", asked = 0, typed = null;

function wish() {
  return { q: at("q").value.trim(), state: at("state").value };
}

async function load(more = false) {
  const mine = ++asked;
  try {
    const answer = await ask("/v1/runs", { ...wish(), limit: LIMIT, after: more ? after : "" });
    if (mine !== asked) return;
    if (!more) jobs.clear("No job is like that.");
    jobs.put(answer.runs);
    after = answer.after;
    at("more").hidden = !after;
    at("jobs-count").textContent = count(answer.all);
  } catch (error) {
    if (mine === asked && !more) jobs.clear(`The service does not say: ${error.message}`);
  }
}

async function insights() {
  const q = wish().q;
  const [hosts, functions, trends] = await Promise.all([
    ask("/v1/hosts", { q, limit: "50" }), ask("/v1/functions", { q, limit: "50" }), ask("/v1/trends"),
  ]);
  showHosts(at("hosts"), at("hosts-count"), hosts);
  showFunctions(at("functions"), functions);
  showNotable(at("notable-section"), at("notable"), trends, hosts);
}

function search() {
  const { q, state } = wish();
  const query = new URLSearchParams(Object.entries({ q, state }).filter(([, value]) => value));
  history.replaceState(null, "", query.size ? `/?${query}` : "/");
  load();
  insights().catch(() => {});
}

function heard(runs) {
  const { q, state } = wish();
  const fresh = q || state ? runs.filter(run => jobs.items.has(run.id)) : runs;
  jobs.put(fresh.filter(run => jobs.items.has(run.id) || run.workers > 0 || run.verdict), true);
}

const given = new URLSearchParams(location.search);
at("q").value = given.get("q") ?? "";
at("state").value = given.get("state") ?? "";
at("search").addEventListener("submit", event => { event.preventDefault(); search(); });
at("state").addEventListener("change", search);
at("q").addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(search, TYPED_MS); });
at("more").addEventListener("click", () => load(true));
document.addEventListener("keydown", event => {
  const inField = event.target.matches("input, select");
  if (event.key === "/" && !inField) { event.preventDefault(); at("q").focus(); }
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && (event.target.closest("#jobs") || event.target.id === "q") && jobs.move(step)) event.preventDefault();
  if (event.key === "Escape" && event.target.id === "q") event.target.blur();
});
await load();
insights().catch(() => {});
setInterval(() => insights().catch(() => {}), INSIGHTS_MS);
follow(at("link"), heard);
