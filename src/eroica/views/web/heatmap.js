// The heat map on a canvas: hover and arrow keys read a cell, wheel, buttons and dragging zoom along the workers.
// Where workers share a pixel, the one farthest from its row's median is drawn, as in the image without a script.

eroica.pictures["heatmap"] = (figure, data) => {
  const LEFT = 236, TOP = 34, ROW = 18, BAND = 15, BOTTOM = 44, NO_VALUE = 65535, LEVELS = 256;
  const rows = data.names.length, workers = data.workers;
  const raw = Uint8Array.from(atob(data.cells), (letter) => letter.charCodeAt(0));
  const cells = new Uint16Array(raw.buffer);
  const culprits = new Set(data.culprits);
  const state = { from: 0, to: workers, row: 0, worker: data.culprits[0] ?? 0, mode: "time", drag: null };
  const hostOf = new Uint32Array(workers), hostStart = [];
  data.hosts.reduce((at, [, count], host) => {
    hostStart.push(at);
    return hostOf.fill(host, at, at + count) && at + count;
  }, 0);

  const rank = (worker) => (data.ranks ? data.ranks[worker] : data.first + worker);
  const value = (row, worker) => {
    const cell = cells[row * workers + worker];
    return cell === NO_VALUE ? NaN : (cell / (NO_VALUE - 1)) * data.highest[row];
  };
  const time = (ms) => {
    const size = Math.abs(ms);
    if (size >= 10000) return `${(ms / 1000).toFixed(1)} s`;
    if (size > 0 && size < 0.01) return `${(1000 * ms).toFixed(1)} µs`;
    return `${ms.toFixed(size >= 100 || !size ? 0 : size >= 1 ? 1 : 2)} ms`;
  };

  const signed = (ms) => (Math.abs(ms) < 0.0005 ? "0" : (ms > 0 ? "+" : "−") + time(Math.abs(ms)));

  // ------------------------------------------------------------ the frame around it

  const make = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, text] of Object.entries(attributes)) element.setAttribute(key, text);
    element.append(...children);
    return element;
  };
  const canvas = make("canvas", {
    class: "heat-canvas", tabindex: "0", role: "img",
    "aria-label": `Heat map of ${rows} functions on ${workers} workers; arrow keys read cells, plus and minus zoom`,
  });
  const button = (text, label, does) => {
    const made = make("button", { type: "button", "aria-label": label }, text);
    made.addEventListener("click", does);
    return made;
  };
  const mode = make("select", { "aria-label": "What colors show" },
    make("option", { value: "time" }, "time"), make("option", { value: "difference" }, "difference from the row's median"));
  const number = make("input", { type: "text", inputmode: "numeric", placeholder: "number", "aria-label": "Go to worker", autocomplete: "off" });
  const now = make("p", { class: "heat-now", role: "status" });
  const tools = make("div", { class: "heat-tools" },
    make("label", {}, "Show ", mode), make("label", {}, "Worker ", number),
    button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)), button("All", "Show all workers", () => show(0, workers)));
  const keys = make("p", { class: "heat-keys" },
    "Drag to zoom into a range; the wheel zooms once the map is clicked. Keys: arrows read cells, + − zoom, Shift + arrows move, 0 shows all, C goes to the next marked worker.");
  const body = figure.querySelector(".body");
  eroica.replace(body, tools, canvas, now, keys);

  // ------------------------------------------------------------ colors

  const color = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const ramp = (stops) => Uint32Array.from({ length: LEVELS }, (_, level) => {
    if (!level) return 0;
    const at = ((level - 1) / (LEVELS - 2)) * (stops.length - 1), first = Math.min(Math.floor(at), stops.length - 2);
    const [a, b] = [color(stops[first]), color(stops[first + 1])];
    const mixed = a.map((part, channel) => Math.round(part + (b[channel] - part) * (at - first)));
    return (255 << 24) | (mixed[2] << 16) | (mixed[1] << 8) | mixed[0];
  });
  const DIVERGING = { light: ["#0d5ea6", "#78aed6", "#f1f2f0", "#f0a36b", "#b03a08"], dark: ["#7fc4ff", "#2e6ea3", "#1a222c", "#a4562a", "#ffab78"] };
  const ramps = Object.fromEntries(["light", "dark"].map((paper) =>
    [paper, { time: ramp(data[paper]), difference: ramp(DIVERGING[paper]) }]));
  const most = Math.max(...data.highest.map((high, row) => Math.max(high - data.middle[row], data.middle[row])), 1e-6);
  const level = (row, shown) => {
    if (Number.isNaN(shown)) return 0;
    if (state.mode === "time") return 1 + Math.round(Math.sqrt(Math.min(shown / data.top, 1)) * (LEVELS - 2));
    const apart = shown - data.middle[row];
    return 1 + Math.round((0.5 + 0.5 * Math.sign(apart) * Math.sqrt(Math.min(Math.abs(apart) / most, 1))) * (LEVELS - 2));
  };

  // ------------------------------------------------------------ drawing

  let left = LEFT, width = 0, paper = "light";
  const pens = {};
  const x = (worker) => left + ((worker - state.from) / (state.to - state.from)) * width;
  const buffer = document.createElement("canvas");

  function farthest(row, first, last) {
    let found = first, distance = -1;
    const high = data.highest[row] / (NO_VALUE - 1), base = row * workers;
    for (let worker = first; worker < last; worker++) {
      const cell = cells[base + worker];
      const apart = cell === NO_VALUE ? -0.5 : Math.abs(cell * high - data.middle[row]);
      if (apart > distance) [found, distance] = [worker, apart];
    }
    return found;
  }

  /* One column for each worker in sight, or for each pixel where there are more workers than pixels. */
  function pixels(most) {
    const begin = Math.floor(state.from), end = Math.min(Math.ceil(state.to), workers), isSingle = end - begin <= most;
    const [from, to] = isSingle ? [begin, end] : [state.from, state.to], count = isSingle ? end - begin : most;
    const image = new ImageData(count, rows), words = new Uint32Array(image.data.buffer), table = ramps[paper][state.mode];
    const step = (to - from) / count;
    for (let row = 0; row < rows; row++) {
      for (let at = 0; at < count; at++) {
        const first = Math.floor(from + at * step), last = Math.min(Math.max(Math.ceil(from + (at + 1) * step), first + 1), workers);
        words[row * count + at] = table[level(row, value(row, isSingle ? begin + at : farthest(row, first, last)))];
      }
    }
    [buffer.width, buffer.height] = [count, rows];
    buffer.getContext("2d").putImageData(image, 0, 0);
    return [x(from), x(to) - x(from)];
  }

  function fitted(pen, text, room) {
    if (pen.measureText(text).width <= room) return text;
    let keep = text.length - 1;
    while (keep > 3 && pen.measureText(cut(text, keep)).width > room) keep--;
    return keep > 3 ? cut(text, keep) : "";
  }
  const cut = (text, keep) => `${text.slice(0, Math.ceil(keep * 0.6))}…${text.slice(text.length - Math.floor(keep * 0.4))}`;

  function draw() {
    const scale = window.devicePixelRatio || 1, whole = canvas.clientWidth, bottom = TOP + ROW * rows;
    if (!whole) return;
    const style = getComputedStyle(figure);
    for (const name of ["paper", "ink", "soft", "faint", "grid", "rule", "culprit", "link"]) pens[name] = style.getPropertyValue(`--${name}`).trim();
    paper = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    left = whole < 620 ? Math.round(whole * 0.36) : LEFT;
    width = whole - left - 1;
    canvas.width = Math.round(whole * scale);
    canvas.height = Math.round((bottom + BOTTOM + 34) * scale);
    canvas.style.height = `${bottom + BOTTOM + 34}px`;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = `12px ${style.fontFamily}`;
    const [begin, wide] = pixels(Math.max(1, Math.round(width * scale)));
    pen.imageSmoothingEnabled = false;
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, width + 1, bottom + 2);
    pen.clip();
    pen.drawImage(buffer, begin, TOP, wide, ROW * rows);
    gaps(pen, bottom);
    marks(pen, bottom);
    pen.restore();
    names(pen);
    numbers(pen);
    hosts(pen, bottom);
    legend(pen, bottom + BOTTOM + 22, whole);
    cursor(pen);
  }

  function gaps(pen, bottom) {
    pen.fillStyle = pens.paper;
    for (let row = 1; row < rows; row++) pen.fillRect(left, TOP + ROW * row - 0.5, width, 1);
    if (width / (state.to - state.from) < 6) return;
    for (let worker = Math.ceil(state.from); worker < state.to; worker++) pen.fillRect(x(worker) - 0.5, TOP, 1, bottom - TOP);
  }

  function names(pen) {
    pen.textAlign = "right";
    data.names.forEach((name, row) => {
      const order = data.orders[row], plain = order ? `(${order}) ${name}` : name;
      pen.font = pen.font.replace(/^(650 )?/, order ? "650 " : "");
      pen.fillStyle = data.standing[row] === "cause" ? pens.culprit : order || row === state.row ? pens.ink : pens.soft;
      pen.fillText(fitted(pen, plain, left - 12), left - 8, TOP + ROW * (row + 0.5) + 4);
    });
    pen.font = pen.font.replace(/^650 /, "");
  }

  function numbers(pen) {
    if (width / (state.to - state.from) < 52) return;
    pen.textAlign = "center";
    for (let row = 0; row < rows; row++) {
      for (let worker = Math.floor(state.from); worker < state.to; worker++) {
        const shown = value(row, worker);
        if (!(shown > 0)) continue;
        const middle = (Math.max(x(worker), left) + Math.min(x(worker + 1), left + width)) / 2, at = level(row, shown);
        const far = state.mode === "time" ? at > LEVELS * 0.5 : Math.abs(at - LEVELS / 2) > LEVELS * 0.33;
        pen.fillStyle = (paper === "dark") === far ? "#0b1016" : "#ffffff";
        const text = state.mode === "time" ? time(shown) : signed(shown - data.middle[row]);
        if (Math.min(x(worker + 1), left + width) - Math.max(x(worker), left) > 50) pen.fillText(text, middle, TOP + ROW * (row + 0.5) + 4);
      }
    }
  }

  function marks(pen, bottom) {
    const each = width / (state.to - state.from);
    pen.strokeStyle = pen.fillStyle = pens.culprit;
    pen.lineWidth = 1.5;
    pen.textAlign = "center";
    let free = -1e9;
    for (const worker of data.culprits) {
      if (worker < state.from - 1 || worker >= state.to) continue;
      const middle = x(worker + 0.5);
      if (each >= 3) pen.strokeRect(x(worker), TOP, each, bottom - TOP);
      pen.beginPath();
      pen.moveTo(middle, TOP - 13);
      [[middle + 5, TOP - 8], [middle, TOP - 3], [middle - 5, TOP - 8]].forEach(([px, py]) => pen.lineTo(px, py));
      pen.fill();
      const text = `worker ${rank(worker)}`, room = pen.measureText(text).width;
      const place = Math.min(Math.max(middle, left + room / 2), left + width - room / 2);
      if (place - room / 2 > free + 8) {
        pen.fillText(text, place, TOP - 18);
        free = place + room / 2;
      }
    }
  }

  function hosts(pen, bottom) {
    pen.textAlign = "center";
    const first = hostOf[Math.floor(state.from)], last = hostOf[Math.ceil(state.to) - 1];
    for (let host = first; host <= last; host++) {
      const begin = Math.max(x(hostStart[host]), left), end = Math.min(x(hostStart[host] + data.hosts[host][1]), left + width);
      if (!data.hosts[host][0]) continue;
      pen.fillStyle = host % 2 ? pens.rule : pens.grid;
      pen.fillRect(begin, bottom + 3, Math.max(end - begin, 0.5), BAND);
      const text = end - begin > 20 ? fitted(pen, data.hosts[host][0], end - begin - 6) : "";
      pen.fillStyle = pens.soft;
      if (text) pen.fillText(text, (begin + end) / 2, bottom + 14);
    }
    pen.fillStyle = pens.soft;
    const rough = (state.to - state.from) / Math.max(Math.floor(width / 90), 1), power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    const step = Math.max([1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough), 1);
    for (let worker = Math.ceil(state.from / step) * step; worker < state.to; worker += step) {
      const middle = x(worker + 0.5);
      if (middle > left && middle < left + width) pen.fillText(String(rank(worker)), middle, bottom + 32);
    }
    pen.fillStyle = pens.faint;
    pen.textAlign = "right";
    pen.fillText("worker", left - 8, bottom + 32);
  }

  function legend(pen, y, whole) {
    const long = Math.min(220, whole * 0.4), start = whole - long - 1, table = ramps[paper][state.mode];
    for (let at = 0; at < long; at++) {
      const word = table[1 + Math.floor((at / long) * (LEVELS - 1))];
      pen.fillStyle = `rgb(${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255})`;
      pen.fillRect(start + at, y, 1.5, 8);
    }
    const stops = state.mode === "time"
      ? [[0, "0"], [0.5, time(data.top / 4)], [1, time(data.top)]]
      : [[0, `−${time(most)}`], [0.5, "0"], [1, `+${time(most)}`]];
    pen.fillStyle = pens.soft;
    for (const [share, text] of long < 190 ? [stops[0], stops[2]] : stops) {
      pen.textAlign = share === 0 ? "left" : share === 1 ? "right" : "center";
      pen.fillText(text, start + share * long, y - 4);
    }
    pen.textAlign = "right";
    pen.fillStyle = pens.faint;
    const title = state.mode === "time" ? "critical time per iteration" : "more or less than the row's median";
    pen.fillText(fitted(pen, title, start - 16), start - 10, y + 8);
  }

  function cursor(pen) {
    if (state.drag) {
      const [begin, end] = [state.drag.from, state.drag.to].sort((a, b) => a - b);
      pen.fillStyle = pens.link;
      pen.globalAlpha = 0.2;
      pen.fillRect(begin, TOP, end - begin, ROW * rows);
      pen.globalAlpha = 1;
    }
    if (state.worker < state.from - 1 || state.worker >= state.to) return;
    const each = Math.max(width / (state.to - state.from), 3);
    pen.strokeStyle = pens.ink;
    pen.lineWidth = 2;
    pen.strokeRect(x(state.worker + 0.5) - each / 2, TOP + ROW * state.row, each, ROW);
  }

  // ------------------------------------------------------------ what people do

  function tell() {
    const shown = value(state.row, state.worker), middle = data.middle[state.row], host = data.hosts[hostOf[state.worker]][0];
    const sign = culprits.has(state.worker) ? "◆ " : "";
    const text = Number.isNaN(shown) ? "does not run here" : `${time(shown)} per iteration (median of the row ${time(middle)})`;
    now.textContent = `${sign}worker ${rank(state.worker)}${host ? ` on ${host}` : ""} · ${data.full[state.row]}: ${text}`;
  }

  let asked = 0;
  function refresh() {
    tell();
    if (!asked) asked = requestAnimationFrame(() => { asked = 0; draw(); });
  }

  function show(from, to) {
    const length = Math.min(Math.max(to - from, Math.min(4, workers)), workers);
    state.from = Math.min(Math.max(from + (to - from - length) / 2, 0), workers - length);
    state.to = state.from + length;
    refresh();
  }

  function zoom(factor, around = state.worker + 0.5) {
    const inside = Math.min(Math.max(around, state.from), state.to);
    show(inside - (inside - state.from) * factor, inside + (state.to - inside) * factor);
  }

  function go(worker) {
    state.worker = Math.min(Math.max(worker, 0), workers - 1);
    const length = state.to - state.from;
    if (state.worker < state.from || state.worker + 1 > state.to) show(state.worker + 0.5 - length / 2, state.worker + 0.5 + length / 2);
    else refresh();
  }

  /* What lies under the pointer; of several workers in a pixel the one that is drawn. */
  function under(event) {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, row = Math.floor((event.clientY - box.top - TOP) / ROW);
    const each = (state.to - state.from) / width, at = state.from + (px - left) * each;
    if (row < 0 || row >= rows || at < state.from || at >= state.to) return null;
    const first = Math.floor(at), last = Math.min(Math.ceil(at + each), workers);
    return { px, row, at, worker: each <= 1 ? first : farthest(row, first, Math.max(last, first + 1)) };
  }

  canvas.addEventListener("pointermove", (event) => {
    if (state.drag) state.drag.to = Math.min(Math.max(event.clientX - canvas.getBoundingClientRect().left, left), left + width);
    const found = under(event);
    if (found) [state.row, state.worker] = [found.row, found.worker];
    if (found || state.drag) refresh();
  });
  canvas.addEventListener("pointerdown", (event) => {
    const found = under(event);
    if (!found) return;
    [state.row, state.worker] = [found.row, found.worker];
    if (event.pointerType === "mouse") {
      state.drag = { from: found.px, to: found.px };
      canvas.setPointerCapture(event.pointerId);
    }
    refresh();
  });
  canvas.addEventListener("pointerup", () => {
    const { drag } = state;
    state.drag = null;
    if (!drag) return;
    const [begin, end] = [drag.from, drag.to].sort((a, b) => a - b), each = (state.to - state.from) / width;
    if (end - begin > 5) show(state.from + (begin - left) * each, state.from + (end - left) * each);
    else refresh();
  });
  canvas.addEventListener("dblclick", () => show(0, workers));
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const each = (state.to - state.from) / width;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      const by = (event.deltaX || event.deltaY) * each;
      return show(state.from + by, state.to + by);
    }
    const at = state.from + (event.clientX - canvas.getBoundingClientRect().left - left) * each;
    zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 240))), at);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const quarter = (state.to - state.from) / 4, shift = event.shiftKey;
    const does = {
      ArrowLeft: () => (shift ? show(state.from - quarter, state.to - quarter) : go(state.worker - 1)),
      ArrowRight: () => (shift ? show(state.from + quarter, state.to + quarter) : go(state.worker + 1)),
      ArrowUp: () => { state.row = Math.max(state.row - 1, 0); refresh(); },
      ArrowDown: () => { state.row = Math.min(state.row + 1, rows - 1); refresh(); },
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => show(0, workers),
      Home: () => go(0), End: () => go(workers - 1),
      c: () => data.culprits.length && go(data.culprits.find((one) => one > state.worker) ?? data.culprits[0]),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    does();
  });
  mode.addEventListener("change", () => { state.mode = mode.value; refresh(); });
  number.addEventListener("change", () => {
    const wanted = parseInt(number.value, 10), found = data.ranks ? data.ranks.indexOf(wanted) : wanted - data.first;
    if (found >= 0 && found < workers) {
      go(found);
      show(found - 16, found + 17);
    } else now.textContent = `There is no worker ${number.value} in this window.`;
  });

  new ResizeObserver(draw).observe(body);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  tell();
  draw();
};
