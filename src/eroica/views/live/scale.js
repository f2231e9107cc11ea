// Round numbers for axes.

// At most `most` multiples of a round step within [0, high].
export function ticks(high, most) {
  const steps = [1, 2, 2.5, 5, 10];
  const power = 10 ** Math.floor(Math.log10(high / most));
  const step = power * steps.find(each => each * power >= high / most);
  const found = [];
  for (let value = 0; value <= high * 1.0001; value += step) found.push(value);
  return found;
}

const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

// Round times within [low, high] seconds.
export function times(low, high, most) {
  const step = TIMES.find(each => each >= (high - low) / most) ?? 604800;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}

export function timeLabel(s) {
  if (s === 0) return "start";
  if (s < 60) return `${s} s`;
  if (s < 3600) return s % 60 ? `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}` : `${s / 60} min`;
  if (s < 86400) return s % 3600 ? `${Math.floor(s / 3600)} h ${(s % 3600) / 60}` : `${s / 3600} h`;
  return `${(s / 86400).toFixed(s % 86400 ? 1 : 0)} d`;
}
