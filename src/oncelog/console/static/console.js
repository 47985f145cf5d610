// The script of the console: keeps a live page up to date, and says so when it cannot.
const state = document.getElementById("state");
const live = document.body.dataset.live;
const shown = {};

function say(text, good) {
  if (!state) return;
  state.textContent = text;
  state.className = good ? "pill ok" : "pill bad";
}

function put(patch) {
  for (const [id, html] of Object.entries(patch)) {
    const place = document.getElementById(id);
    if (id === "state" || !place) continue;
    // Somebody who has gone into a part with the keyboard keeps the place; what has not changed is left alone.
    if (place.dataset.paused || place.contains(document.activeElement) || shown[id] === html) continue;
    shown[id] = html;
    place.innerHTML = html; // made by the server, which escapes every value
  }
  if (patch.state === "live") say("● live", true);
  else if (patch.state) say(patch.state, false);
}

if (live) {
  let events = null;
  const open = () => {
    if (events) return;
    events = new EventSource(live);
    events.onmessage = (event) => put(JSON.parse(event.data));
    events.onerror = () => {
      say("stale: the server does not answer, trying again", false);
      if (events && events.readyState === EventSource.CLOSED) again();
    };
  };
  // A stream that was refused is not tried again by the browser: load the page again when it answers.
  const again = () => setTimeout(async () => {
    try { await fetch(location.href, { method: "HEAD" }); location.reload(); } catch { again(); }
  }, 1000);
  const close = () => { if (events) { events.close(); events = null; } };
  // A page that nobody looks at asks for nothing.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  open();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-pause]");
  if (!button) return;
  const place = document.getElementById(button.dataset.pause);
  const paused = !place.dataset.paused;
  if (paused) place.dataset.paused = "yes"; else delete place.dataset.paused;
  button.textContent = paused ? "Go on" : "Pause";
});

// "/" goes to the search, as people expect.
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, textarea, select")) return;
  const search = document.querySelector("[data-search]");
  if (search) { event.preventDefault(); search.focus(); }
});
