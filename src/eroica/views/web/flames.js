// Flame graphs: click or Enter looks closer at a frame, on both sides; the box marks frames by name.

eroica.pictures["flames"] = (figure, data) => {
  const ROW = 18, HEAD = 30, FOOT = 30, SPACE = "http://www.w3.org/2000/svg";
  const grow = ([name, own, peers, below], parent) => {
    const frame = { name, own, peers, parent, children: [] };
    frame.children = below.map((one) => grow(one, frame));
    return frame;
  };
  const root = grow(data.tree, null);
  const state = { focus: root, at: root.children[0] ?? root, words: "" };
  const SIDES = data.peers ? ["own", "peers"] : ["own"];

  const time = (ms) => {
    if (ms >= 10000) return `${(ms / 1000).toFixed(1)} s`;
    if (ms > 0 && ms < 0.01) return `${(1000 * ms).toFixed(1)} µs`;
    return `${ms.toFixed(ms >= 100 || !ms ? 0 : ms >= 1 ? 1 : 2)} ms`;
  };
  const apart = (frame) => frame.own - frame.peers;
  const difference = (frame) => (Math.abs(apart(frame)) < 0.005 ? "the same"
    : `${apart(frame) > 0 ? "▲" : "▼"} ${time(Math.abs(apart(frame)))} ${apart(frame) > 0 ? "more" : "less"}`);
  const tone = (frame, side) => {
    if (!data.peers || (side === "peers" && apart(frame) > 0)) return "same";
    const strength = data.steps.filter((step) => Math.abs(apart(frame)) >= step * data.top).length;
    return strength ? `${apart(frame) > 0 ? "more" : "less"}-${strength}` : "same";
  };
  const tell = (frame) => (data.peers
    ? `${frame.name}: ${time(frame.own)} an iteration, peers ${time(frame.peers)}, ${difference(frame)}`
    : `${frame.name}: ${time(frame.own)} an iteration`);
  const matches = (frame) => state.words && frame.name.toLowerCase().includes(state.words);

  const make = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, text] of Object.entries(attributes)) element.setAttribute(key, text);
    element.append(...children);
    return element;
  };
  const draw = (name, attributes, text) => {
    const element = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };

  const search = make("input", { type: "search", placeholder: "function or file", "aria-label": "Mark frames by name", autocomplete: "off" });
  const reset = make("button", { type: "button" }, "All stacks");
  const tools = make("div", { class: "flame-tools" }, make("label", {}, "Mark ", search), reset);
  const canvas = draw("svg", { class: "flames moving", tabindex: "0", role: "img",
    "aria-label": `${figure.querySelector("svg").getAttribute("aria-label")}; arrow keys go from frame to frame, Enter looks closer, Escape goes back` });
  const now = make("p", { class: "flame-now", role: "status" });
  const legend = figure.querySelector(".flame-legend")?.cloneNode(true);
  const body = figure.querySelector(".body");
  eroica.replace(body, tools, canvas, now);

  const depthBelow = (frame) => frame.children.reduce((most, child) => Math.max(most, 1 + depthBelow(child)), 0);
  const callers = (frame) => (frame.parent && frame.parent !== root ? [...callers(frame.parent), frame.parent] : []);

  function paint() {
    const whole = body.clientWidth;
    if (!whole) return;
    const stacked = whole < 640 || SIDES.length === 1, width = stacked ? whole : (whole - 16) / 2;
    const above = state.focus === root ? [] : [...callers(state.focus), state.focus];
    const rows = above.length + depthBelow(state.focus), tall = HEAD + ROW * rows + 10;
    canvas.replaceChildren();
    canvas.setAttribute("width", whole);
    canvas.setAttribute("height", tall * (stacked ? SIDES.length : 1) + FOOT);
    SIDES.forEach((side, number) => {
      const x = stacked ? 0 : number * (width + 16), y = stacked ? number * tall : 0;
      head(side, x, y, width);
      const most = Math.max(state.focus.own, state.focus.peers) || 1;
      above.forEach((frame, depth) => box(frame, side, x, y + HEAD + ROW * depth, width * (frame === state.focus ? state.focus[side] / most : 1), frame !== state.focus));
      below(state.focus, side, x, y + HEAD + ROW * above.length, width / most);
    });
    if (legend) {
      legend.setAttribute("transform", `translate(0 ${Number(canvas.getAttribute("height")) - 6})`);
      canvas.append(legend);
    }
  }

  function head(side, x, y, width) {
    const name = data.names[side === "own" ? 0 : 1], text = `${name}: ${time(root[side])} an iteration`;
    const made = draw("text", { x, y: y + 16, class: side === "own" ? "strong culprit-text" : "strong" }, text);
    canvas.append(made);
    if (made.getComputedTextLength() > width) made.textContent = `${name.slice(0, 22)}…: ${time(root[side])}`;
  }

  function below(frame, side, x, y, scale) {
    let at = x;
    for (const child of frame.children) {
      const width = child[side] * scale;
      if (width >= 0.7) {
        box(child, side, at, y, width, false);
        below(child, side, at, y + ROW, scale);
      }
      at += width;
    }
  }

  function box(frame, side, x, y, width, isCaller) {
    const color = tone(frame, side), marked = [matches(frame) ? "found" : state.words ? "faded" : "", frame === state.at ? "at" : ""].join(" ");
    const made = draw("rect", { x, y, width: Math.max(width - 1, 0.6), height: ROW - 1, class: `frame ${color} ${marked}`, "data-tip": tell(frame) });
    made.addEventListener("click", () => look(isCaller || frame === state.focus ? frame.parent ?? root : frame, frame));
    canvas.append(made);
    const sign = color.startsWith("more") ? "▲ " : color.startsWith("less") ? "▼ " : "";
    const room = Math.floor((width - 8) / 6.7) - sign.length, short = frame.name.split(" (")[0];
    const text = short.length <= room ? short : room >= 7 ? `${short.slice(0, room - 1)}…` : "";
    if (text) canvas.append(draw("text", { x: x + 4, y: y + 13, class: `frame-name on-${color} ${state.words && !matches(frame) ? "faded" : ""}` }, sign + text));
  }

  function look(frame, at = frame) {
    state.focus = frame;
    state.at = at === root ? root.children[0] ?? root : at;
    eroica.tip.hide();
    update();
  }

  function update() {
    const found = [];
    const gather = (frame) => (matches(frame) ? found.push(frame) : frame.children.forEach(gather));
    if (state.words) root.children.forEach(gather);
    const isInside = (frame) => frame === state.focus || (frame.parent && isInside(frame.parent));
    if (found.length && !found.some(isInside)) state.focus = root;
    const sum = (side) => time(found.reduce((all, frame) => all + frame[side], 0));
    now.textContent = !state.words ? tell(state.at)
      : found.length ? `“${search.value}”: ${sum("own")} an iteration${data.peers ? `, peers ${sum("peers")}` : ""}` : `No frame is called “${search.value}”.`;
    paint();
  }

  search.addEventListener("input", () => { state.words = search.value.trim().toLowerCase(); update(); });
  reset.addEventListener("click", () => { search.value = state.words = ""; look(root); });
  canvas.addEventListener("keydown", (event) => {
    const { at } = state, siblings = at.parent?.children ?? [at], place = siblings.indexOf(at);
    const does = {
      ArrowDown: () => { state.at = at.children[0] ?? at; },
      ArrowUp: () => { state.at = at.parent && at.parent !== root ? at.parent : at; },
      ArrowRight: () => { state.at = siblings[Math.min(place + 1, siblings.length - 1)]; },
      ArrowLeft: () => { state.at = siblings[Math.max(place - 1, 0)]; },
      Enter: () => { state.focus = at === state.focus ? at.parent ?? root : at; },
      Escape: () => { state.focus = state.focus.parent ?? root; },
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
    update();
  });
  new ResizeObserver(paint).observe(body);
  update();
};
