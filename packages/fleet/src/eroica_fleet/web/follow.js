// Asking the service, and following what is new in it.

export async function ask(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== ""));
  const answer = await fetch(`${path}?${query}`, { headers: { accept: "application/json" } });
  if (answer.status === 401) location.assign("/login");
  const record = await answer.json();
  if (!answer.ok) throw new Error(record.error ?? String(answer.status));
  return record;
}

const SILENT_MS = 15000;
const AGAIN_MS = [1000, 2000, 5000, 10000, 30000];

// Calls `heard` with runs of which something is new; says at `link` whether the service is there.
export function follow(link, heard) {
  let since = Date.now() - 10000, source = null, watch = null, tries = 0;

  function connect() {
    source = new EventSource(`/v1/events?since=${since}`);
    source.addEventListener("hello", () => { tries = 0; show("live", "live"); expect(); });
    source.addEventListener("beat", expect);
    source.addEventListener("runs", event => {
      const runs = JSON.parse(event.data);
      since = Math.max(since, ...runs.map(run => run.changed));
      expect();
      heard(runs);
    });
    source.onerror = lose;
    expect();
  }

  function show(state, text) {
    if (link.dataset.state === state) return;
    link.dataset.state = state;
    link.textContent = text;
  }

  function expect() {
    clearTimeout(watch);
    watch = setTimeout(lose, SILENT_MS);
  }

  function lose() {
    clearTimeout(watch);
    source?.close();
    source = null;
    if (tries > 0) show("lost", "the service does not answer");
    setTimeout(connect, AGAIN_MS[Math.min(tries++, AGAIN_MS.length - 1)]);
  }

  connect();
}
