// Numbers and times in words, and elements whose text is always text: names from the job are never markup.

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("data-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter(child => child !== null && child !== ""));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function draw(tag, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

export function milliseconds(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms >= 10000) return `${(ms / 1000).toFixed(1)} s`;
  return `${ms >= 1000 ? ms.toFixed(0) : ms >= 100 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}

// Seconds after the job's start.
export function duration(s) {
  if (s < 60) return `${s.toFixed(0)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
}

export function clock(date = new Date()) {
  return date.toTimeString().slice(0, 8);
}

export function count(number) {
  return number.toLocaleString("en-US");
}

export function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}
