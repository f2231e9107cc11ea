// How long a byte waits from host to host: a table of cells, the darker the longer. Hover and focus name both ends.

import { make, milliseconds } from "./words.js";

const STEPS = 6;
const MOST_NUMBERED = 12;

export function showWays(section, place, { hosts, delay_s, usual_s }) {
  section.hidden = hosts.length < 2;
  if (section.hidden) return;
  const top = Math.max(...delay_s.flat().map(delay => delay ?? 0), 1e-9);
  const head = make("tr", {}, make("th", { scope: "col" }, "from ↓ to →"), ...hosts.map(host => make("th", { scope: "col" }, host)));
  const rows = hosts.map((host, i) =>
    make("tr", {}, make("th", { scope: "row" }, host), ...hosts.map((other, j) => {
      const delay = delay_s[i][j];
      if (delay === null) return make("td", { class: "none" });
      const usual = usual_s?.[i]?.[j] ?? null;
      const before = usual === null ? "" : `, usually ${milliseconds(usual * 1000)}`;
      const words = `a byte from ${host} to ${other} waits ${milliseconds(delay * 1000)}${before}`;
      const step = Math.max(1, Math.round(Math.sqrt(delay / top) * STEPS));
      const text = hosts.length <= MOST_NUMBERED ? milliseconds(delay * 1000) : "";
      return make("td", { class: `way-${step}`, title: words, ariaLabel: words }, text);
    })));
  place.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}
