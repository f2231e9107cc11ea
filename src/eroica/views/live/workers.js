// All workers on one canvas, a cell each, host by host: ten thousand fit. Every state has a shape, not only a color.

import { count, make } from "./words.js";

export const STATES = {
  t: "training", l: "learning", c: "capturing", v: "saving", e: "ended in order",
  u: "agent not heard", f: "not watched", s: "silent", x: "ended badly",
};
const SIZES = [[64, 22], [256, 17], [1100, 13], [4500, 8], [Infinity, 5]];
const MOST_LABELS = 40;

export class Workers {
  constructor(map, legend, who) {
    this.map = map;
    this.legend = legend;
    this.who = who;
    this.roster = { hosts: [], heard: [], rank: [], host: [] };
    this.letters = "";
    this.order = [];
    this.cells = [];
    this.at = null;
    this.canvas = make("canvas", { tabIndex: 0 });
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", "Workers by host. Arrow keys go from one to the next.");
    map.append(this.canvas);
    new ResizeObserver(() => this.redraw()).observe(map);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.explained = "";
      this.explain();
      this.redraw();
    });
    this.canvas.addEventListener("pointermove", event => this.look(this.under(event)));
    this.canvas.addEventListener("pointerdown", event => this.look(this.under(event)));
    this.canvas.addEventListener("pointerleave", () => this.look(null));
    this.canvas.addEventListener("keydown", event => this.walk(event));
  }

  takeRoster(roster) {
    this.roster = roster;
    const { host, rank } = roster;
    this.order = [...rank.keys()].sort((a, b) => host[a] - host[b] || rank[a] - rank[b]);
    this.redraw();
  }

  takeLetters(letters) {
    this.letters = letters;
    this.redraw();
    this.explain();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  // Where each worker's cell is: blocks of one host side by side, at most as wide as the page.
  place(width) {
    const { host, hosts } = this.roster, size = SIZES.find(([most]) => host.length <= most)[1];
    const sizes = new Map();
    for (const each of host) sizes.set(each, (sizes.get(each) ?? 0) + 1);
    const largest = Math.max(...sizes.values(), 1);
    const columns = Math.max(Math.min(largest, Math.floor(width / size)), 1);
    const labels = hosts.length <= MOST_LABELS && columns * size >= 60 ? 16 : 0;
    const block = columns * size, gap = Math.max(size, labels ? 12 : 4);
    const blocks = Math.max(Math.floor((width + gap) / (block + gap)), 1);
    const tall = Math.ceil(largest / columns) * size + labels + (labels ? 8 : Math.max(2, size / 3));
    const cells = [], seen = new Map(), names = [];
    for (const index of this.order) {
      const which = host[index];
      if (!seen.has(which)) seen.set(which, { turn: seen.size, filled: 0 });
      const { turn, filled } = seen.get(which);
      const x = (turn % blocks) * (block + gap), y = Math.floor(turn / blocks) * tall;
      if (labels && filled === 0) names.push({ x, y: y + 11, which, block });
      cells.push({ index, x: x + (filled % columns) * size, y: y + labels + Math.floor(filled / columns) * size });
      seen.get(which).filled += 1;
    }
    return { cells, size, names, height: Math.ceil(seen.size / blocks) * tall };
  }

  paint() {
    const width = this.map.clientWidth;
    if (!width) return;
    const { cells, size, names, height } = this.place(width);
    Object.assign(this, { cells, size });
    const scale = devicePixelRatio || 1, pen = this.canvas.getContext("2d");
    this.canvas.width = width * scale;
    this.canvas.height = Math.max(height, 1) * scale;
    this.canvas.style.height = `${Math.max(height, 1)}px`;
    pen.scale(scale, scale);
    const color = colors();
    pen.font = `12px ${color("--text-face")}`;
    pen.fillStyle = color("--soft");
    for (const { x, y, which, block } of names) pen.fillText(clip(pen, this.roster.hosts[which], block), x, y);
    for (const { index, x, y } of cells) sign(pen, color, this.letters[index] ?? "t", x, y, size - Math.max(1, size / 9));
    const here = this.cells[this.at];
    if (here) {
      pen.strokeStyle = color("--ink");
      pen.lineWidth = 2;
      pen.strokeRect(here.x - 1, here.y - 1, size, size);
    }
  }

  explain() {
    const counts = new Map();
    for (const letter of this.letters) counts.set(letter, (counts.get(letter) ?? 0) + 1);
    const key = JSON.stringify([...counts]);
    if (key === this.explained) return;
    this.explained = key;
    const color = colors();
    this.legend.replaceChildren(...Object.keys(STATES).filter(letter => counts.has(letter)).map(letter => {
      const sample = make("canvas", { width: 28, height: 28 });
      sample.setAttribute("aria-hidden", "true");
      sign(sample.getContext("2d"), color, letter, 1, 1, 26);
      return make("li", {}, sample, `${count(counts.get(letter))} ${STATES[letter]}`);
    }));
  }

  // ------------------------------------------------------------- one worker

  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const found = this.cells.findIndex(cell => x >= cell.x && x < cell.x + this.size && y >= cell.y && y < cell.y + this.size);
    return found < 0 ? null : found;
  }

  walk(event) {
    const last = this.cells.length - 1, at = this.at ?? -1, { host } = this.roster;
    const block = step => {
      if (at < 0) return 0;
      const here = host[this.cells[at].index];
      for (let i = at + step; i >= 0 && i <= last; i += step) if (host[this.cells[i].index] !== here) return i;
      return at;
    };
    const moves = {
      ArrowLeft: () => at - 1, ArrowRight: () => at + 1, ArrowUp: () => block(-1), ArrowDown: () => block(1),
      Home: () => 0, End: () => last,
    };
    if (!(event.key in moves) || last < 0) return;
    event.preventDefault();
    this.look(Math.min(Math.max(moves[event.key](), 0), last));
  }

  look(position) {
    if (position === this.at) return;
    this.at = position;
    this.redraw();
    clearTimeout(this.asking);
    const cell = this.cells[position];
    if (!cell) {
      this.who.textContent = "";
      return;
    }
    const rank = this.roster.rank[cell.index], host = this.roster.hosts[this.roster.host[cell.index]];
    this.who.textContent = `worker ${rank} on ${host}: ${STATES[this.letters[cell.index]] ?? ""}`;
    this.asking = setTimeout(() => this.ask(position, rank, host), 150);
  }

  async ask(position, rank, host) {
    const answer = await fetch(`/v1/workers/${rank}`).catch(() => null);
    if (!answer?.ok || this.at !== position) return;
    const found = (await answer.json()).find(each => each.status.worker.host === host);
    if (!found || this.at !== position) return;
    const { worker, iteration = 0 } = found.status;
    const process = `pid ${worker.pid ?? 0}, ${worker.device ?? "cpu"}`;
    this.who.textContent = `worker ${rank} on ${host} (${process}): iteration ${count(iteration)}, ${found.words}`;
  }
}

function colors() {
  const style = getComputedStyle(document.documentElement);
  const known = {};
  return name => known[name] ??= style.getPropertyValue(name).trim();
}

function clip(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let kept = text.slice(0, 60);
  while (kept && pen.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
  return `${kept}…`;
}

function sign(pen, color, letter, x, y, size) {
  const fill = (name, inset = 0) => {
    pen.fillStyle = color(name);
    pen.fillRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset);
  };
  const outline = (name, thick) => {
    pen.strokeStyle = color(name);
    pen.lineWidth = thick;
    pen.strokeRect(x + thick / 2, y + thick / 2, size - thick, size - thick);
  };
  const strokes = (name, thick, ...lines) => {
    pen.strokeStyle = color(name);
    pen.lineWidth = thick;
    pen.beginPath();
    for (const [x1, y1, x2, y2] of lines) {
      pen.moveTo(x + x1 * size, y + y1 * size);
      pen.lineTo(x + x2 * size, y + y2 * size);
    }
    pen.stroke();
  };
  const thick = Math.max(1.2, size / 7);
  if (letter === "t") fill("--calm");
  else if (letter === "l") outline("--faint", Math.max(1, size / 12));
  else if (letter === "c") {
    fill("--window");
    pen.fillStyle = color("--window-edge");
    pen.beginPath();
    pen.moveTo(x + size / 2, y);
    pen.lineTo(x + size, y + size / 2);
    pen.lineTo(x + size / 2, y + size);
    pen.lineTo(x, y + size / 2);
    pen.fill();
  } else if (letter === "v") {
    fill("--window");
    outline("--window-edge", thick);
  } else if (letter === "e") fill("--faint", size / 3);
  else if (letter === "u") {
    outline("--unsure", Math.max(1, size / 10));
    strokes("--unsure", Math.max(1, size / 10), [0, 1, 1, 0]);
  } else if (letter === "f") outline("--unsure", size / 4);
  else if (letter === "s") {
    fill("--blocked");
    strokes("--paper", Math.max(1.2, size / 6), [0.5, 0.15, 0.5, 0.62], [0.5, 0.74, 0.5, 0.9]);
  } else strokes("--blocked", Math.max(1.5, size / 5), [0.08, 0.08, 0.92, 0.92], [0.92, 0.08, 0.08, 0.92]);
}
