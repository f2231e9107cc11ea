// What jobs have in common: sentences and tables.

import { count, make, percent } from "/assets/words.js";
import { ago } from "/assets/jobs.js";

function table(place, heads, rows, none) {
  if (!rows.length) return place.replaceChildren(make("p", { class: "none" }, none));
  const head = make("tr", {}, ...heads.map(([text, figure]) => make("th", { scope: "col", class: figure ? "figure" : "" }, text)));
  const body = rows.map(({ cells, mark }) => make("tr", { class: mark ?? "" },
    ...cells.map((cell, at) => make("td", { class: heads[at][1] ? "figure" : "" }, cell))));
  place.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

function odds(chance) {
  if (chance >= 0.1) return "chance does that";
  if (chance >= 0.001) return `1 in ${count(Math.round(1 / chance))}`;
  return chance > 0 ? `1 in 10${superscript(Math.round(-Math.log10(chance)))}` : "never";
}

function superscript(number) {
  return String(number).replace(/\d/g, digit => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
}

export function showHosts(place, counted, answer) {
  counted.textContent = answer.all ? count(answer.all) : "";
  const rows = answer.hosts.map(host => ({
    mark: host.suspicious ? "suspicious" : "",
    cells: [
      make("a", { href: `/?q=${encodeURIComponent(host.host)}` }, host.host), `${host.named} of ${host.runs}`,
      count(host.jobs), host.expected.toFixed(1), odds(host.of_any),
      host.causes.join(", "), `${host.again ? "named again after its repair, " : ""}${ago(host.last_at)}`,
    ],
  }));
  const heads = [["host"], ["runs", 1], ["jobs", 1], ["expected", 1], ["by chance"], ["for"], ["last"]];
  table(place, heads, rows, "No host was named.");
}

export function showFunctions(place, answer) {
  const rows = answer.functions.map(one => ({
    cells: [one.function, one.cause, `${one.jobs} of ${one.of_jobs}`, percent(one.gain), ago(one.first_at), one.names.join(", ")],
  }));
  table(place, [["function"], ["cause"], ["jobs", 1], ["costs", 1], ["first"], ["where"]], rows, "None is slow in two jobs or more.");
}

export function showNotable(section, list, trends, hosts) {
  const items = trends.trends.map(one => make("li", {},
    make("strong", {}, one.cause), ` began in ${one.jobs} of ${one.running} running jobs ${ago(one.began_at)}: ${one.function} (${one.names.join(", ")})`));
  for (const host of hosts.hosts.filter(one => one.suspicious).slice(0, 5)) {
    items.push(make("li", {}, make("strong", {}, host.host), ` was named by ${host.named} of ${host.runs} runs, in ${host.jobs} jobs; by chance ${host.expected.toFixed(1)} would`));
  }
  for (const run of trends.slower.slice(0, 5)) items.push(make("li", {}, make("a", { href: `/runs/${run.run}` }, run.summary)));
  section.hidden = !items.length;
  list.replaceChildren(...items);
}
