// Follows the collector's events. What was missed while the connection was lost is asked for by the id of the last one.

const SILENT_MS = 15000;
const AGAIN_MS = [500, 1000, 2000, 3000];
const HIDDEN_MS = 30000;
// A collector that said goodbye may be followed by another one: after an interruption, or for a job of the same name.
const AFTER_END_MS = 15000;
const EVENTS = ["status", "roster", "workers", "window", "verdict", "final", "pace", "notes", "jobs", "beat"];

// `heard(event, data)` for each event; `connection(state, since)` with "live", "lost" or "over".
export function follow(heard, connection) {
  let source = null, last = "", tries = 0, timer = 0, watch = 0, hide = 0, over = false, lostAt = null;

  function connect() {
    clearTimeout(timer);
    source?.close();
    source = new EventSource(`/v1/events?after=${encodeURIComponent(last)}`);
    source.addEventListener("hello", event => {
      tries = 0;
      over = false;
      lostAt = null;
      connection("live", null);
      take(event);
    });
    for (const name of EVENTS) source.addEventListener(name, take);
    source.addEventListener("bye", event => {
      over = true;
      stop();
      connection("over", new Date(), JSON.parse(event.data));
      timer = setTimeout(connect, AFTER_END_MS);
    });
    source.onerror = lose;
    expect();
  }

  function take(event) {
    if (event.lastEventId) last = event.lastEventId;
    expect();
    heard(event.type, JSON.parse(event.data));
  }

  // A connection that died without a word: something comes at least every 5 s.
  function expect() {
    clearTimeout(watch);
    watch = setTimeout(lose, SILENT_MS);
  }

  function lose() {
    stop();
    if (!over) connection("lost", lostAt ??= new Date());
    timer = setTimeout(connect, over ? AFTER_END_MS : AGAIN_MS[Math.min(tries++, AGAIN_MS.length - 1)]);
  }

  function stop() {
    clearTimeout(timer);
    clearTimeout(watch);
    source?.close();
    source = null;
  }

  // A browser opens few connections to one host, so a page that nobody sees gives its own back.
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hide);
    if (over) return;
    if (document.hidden) hide = setTimeout(stop, HIDDEN_MS);
    else if (source === null) connect();
  });
  window.addEventListener("online", () => source === null && !over && connect());
  connect();
  // Iteration times from the beginning, thinned by the collector.
  return { anew() { last = last.replace(/\d+$/, "0"); connect(); } };
}
