// Timelines: drag, wheel, buttons and + − 0 look closer; the slices are those that are drawn already.

eroica.pictures["timeline"] = (figure, data) => {
  const svg = figure.querySelector("svg"), SPACE = "http://www.w3.org/2000/svg";
  const state = { from: data.low, to: data.high, drag: null };
  const right = data.width - 4, long = right - data.left;
  const scale = (ms) => data.left + ((ms - state.from) / (state.to - state.from)) * long;
  const back = (x) => state.from + ((x - data.left) / long) * (state.to - state.from);
  const place = (rect) => ({ rect, start: back(Number(rect.getAttribute("x"))), end: back(Number(rect.getAttribute("x")) + Number(rect.getAttribute("width"))) });
  const slices = [...svg.querySelectorAll(".one")].map((group) => {
    const rect = group.querySelector(".slice"), start = Number(rect.dataset.start);
    return { rect, start, end: start + Number(rect.dataset.long), name: rect.dataset.name, cover: group.querySelector(".waits"), label: group.querySelector("text"), group };
  });
  const grounds = [...svg.querySelectorAll(".idle")].map(place);
  const meeting = svg.querySelector(".meeting"), axis = svg.querySelector(".time-axis"), axisY = Number(axis.querySelector(".axis").getAttribute("y1"));
  const title = axis.querySelector(".axis-title");

  const make = (name, attributes, text) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  };
  const draw = (name, attributes, text = "") => {
    const element = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  };
  const tools = document.createElement("div");
  tools.className = "time-tools";
  for (const [text, label, does] of [["+", "Zoom in", () => zoom(0.5)], ["−", "Zoom out", () => zoom(2)], ["◂", "Earlier", () => move(-0.3)], ["▸", "Later", () => move(0.3)], ["All", "Show the whole iteration", () => show(data.low, data.high)]]) {
    const button = make("button", { type: "button", "aria-label": label }, text);
    button.addEventListener("click", does);
    tools.append(button);
  }
  tools.append(make("span", { class: "time-keys" }, "Drag to zoom into a stretch. Keys: + − zoom, Shift + arrows move, 0 shows all, arrows go from slice to slice."));
  figure.querySelector(".body").prepend(tools);
  const band = draw("rect", { class: "time-band", y: 4, height: axisY - 4, width: 0 });
  svg.append(band);

  function lay({ rect, start, end }, others = []) {
    const begin = Math.max(scale(start), data.left), stop = Math.min(scale(end), right), isSeen = stop >= data.left && begin <= right && stop >= begin;
    for (const one of [rect, ...others]) {
      one.setAttribute("visibility", isSeen ? "visible" : "hidden");
      one.setAttribute("x", begin);
      one.setAttribute("width", Math.max(stop - begin, 0.4));
    }
    rect.classList.toggle("thin", stop - begin < 3);
    return isSeen ? [begin, stop - begin] : [begin, 0];
  }

  function name(slice, begin, width) {
    const room = Math.floor((width - 8) / 6.7), whole = slice.name.length <= room ? slice.name : slice.name.split(".").at(-1);
    const text = whole.length <= room ? whole : room >= 8 ? `${whole.slice(0, Math.ceil(room * 0.6))}…${whole.slice(whole.length - Math.floor(room * 0.4) + 1)}` : "";
    if (!text) return slice.label?.setAttribute("visibility", "hidden");
    if (!slice.label) {
      const y = Number(slice.rect.getAttribute("y")) + Number(slice.rect.getAttribute("height")) / 2 + 4;
      slice.label = slice.group.appendChild(draw("text", { y, class: "slice-name" }));
    }
    slice.label.textContent = text;
    slice.label.setAttribute("x", begin + 4);
    slice.label.setAttribute("visibility", "visible");
  }

  function ticks() {
    const raw = (state.to - state.from) / 8, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw * 0.999);
    const largest = Math.max(Math.abs(state.from), Math.abs(state.to));
    const [factor, unit] = largest >= 2000 ? [1e-3, "s"] : step >= 0.05 ? [1, "ms"] : [1e3, "µs"];
    const marks = [draw("line", { x1: data.left, x2: right, y1: axisY, y2: axisY, class: "axis" })];
    for (let at = Math.ceil(state.from / step - 1e-9); at * step <= state.to + 1e-9; at++) {
      const x = scale(at * step), value = Number((at * step * factor).toPrecision(6));
      marks.push(draw("line", { x1: x, x2: x, y1: axisY, y2: axisY + 4, class: "tick" }),
        draw("text", { x, y: axisY + 16, "text-anchor": "middle", class: "tick-text" }, value ? `${String(value).replace("-", "−")} ${unit}` : "0"));
    }
    axis.replaceChildren(...marks, title);
  }

  function paint() {
    grounds.forEach((ground) => lay(ground));
    for (const slice of slices) name(slice, ...lay(slice, slice.cover ? [slice.cover] : []));
    if (meeting) {
      const x = scale(0), isSeen = x >= data.left && x <= right;
      meeting.setAttribute("visibility", isSeen ? "visible" : "hidden");
      meeting.setAttribute("x1", x);
      meeting.setAttribute("x2", x);
    }
    ticks();
  }

  function show(from, to) {
    const whole = data.high - data.low, length = Math.min(Math.max(to - from, whole / 5000), whole);
    state.from = Math.min(Math.max((from + to - length) / 2, data.low), data.high - length);
    state.to = state.from + length;
    paint();
  }
  const zoom = (factor, around = (state.from + state.to) / 2) => show(around - (around - state.from) * factor, around + (state.to - around) * factor);
  const move = (share) => show(state.from + share * (state.to - state.from), state.to + share * (state.to - state.from));
  const where = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.min(Math.max(((event.clientX - box.left) / box.width) * data.width, data.left), right);
  };

  svg.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 0) state.drag = where(event);
  });
  svg.addEventListener("pointermove", (event) => {
    if (state.drag === null) return;
    const [begin, end] = [state.drag, where(event)].sort((a, b) => a - b);
    band.setAttribute("x", begin);
    band.setAttribute("width", end - begin);
  });
  window.addEventListener("pointerup", (event) => {
    if (state.drag === null) return;
    const [begin, end] = [state.drag, where(event)].sort((a, b) => a - b);
    state.drag = null;
    band.setAttribute("width", 0);
    if (end - begin > 6) show(back(begin), back(end));
  });
  svg.addEventListener("dblclick", () => show(data.low, data.high));
  svg.addEventListener("wheel", (event) => {
    if (document.activeElement !== svg && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return move(event.deltaX / 600);
    zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 240))), back(where(event)));
  }, { passive: false });
  svg.addEventListener("keydown", (event) => {
    const does = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => show(data.low, data.high) }[event.key]
      ?? (event.shiftKey && { ArrowLeft: () => move(-0.3), ArrowRight: () => move(0.3) }[event.key]);
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    does();
  });
};
