/* The live tail: its events, pausing, clearing, and a bound on the rows that the page keeps. */
"use strict";
(() => {
  const place = document.querySelector("[data-tail]");
  if (!place || place.dataset.armed) return;
  place.dataset.armed = "1";
  const KEPT = 20;
  const rows = place.querySelector("tbody");
  const state = place.querySelector("[data-tail-state]");
  const absence = place.querySelector("[data-tail-absence]");
  const pause = place.querySelector("[data-tail-pause]");
  let shown = 0, leftOut = 0, isPaused = false, waiting = [];

  function show(html) {
    htmx.swap(rows, html, { swapStyle: "afterbegin" });
    while (rows.children.length > Number(place.dataset.rows)) rows.lastElementChild.remove();
  }
  function tell() {
    const more = leftOut ? `, ${leftOut.toLocaleString()} more left out` : "";
    state.textContent = isPaused ? `Paused${waiting.length ? "; new messages wait" : ""}.`
      : shown ? `${shown.toLocaleString()} new${more}.` : "Waiting for messages.";
  }

  const stream = new EventSource(place.dataset.tail);
  const on = (name, work) => stream.addEventListener(name, (event) => work(JSON.parse(event.data)));
  on("html", (data) => {
    if (isPaused) { waiting.push(data.html); waiting = waiting.slice(-KEPT); } else { show(data.html); }
    tell();
  });
  on("state", (data) => { state.textContent = data.text; });
  on("absence", (data) => { absence.textContent = data.text; absence.hidden = !data.text; });
  on("looked", (data) => { shown += data.shown; leftOut += data.all - data.shown; tell(); });
  on("dropped", (data) => { leftOut += data.count; tell(); });
  on("failed", (data) => { stream.close(); state.textContent = data.text; });
  on("ended", () => { stream.close(); state.textContent = "The session has ended. Sign in again."; });
  stream.addEventListener("error", () => {
    state.textContent = stream.readyState === EventSource.CLOSED
      ? "The session has ended. Sign in again." : "The console does not answer; trying again.";
  });
  stream.addEventListener("open", tell);
  addEventListener("pagehide", () => stream.close());

  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
    if (!isPaused) { waiting.forEach(show); waiting = []; }
    tell();
  });
  place.querySelector("[data-tail-clear]").addEventListener("click", () => {
    rows.replaceChildren();
    shown = leftOut = 0;
    tell();
  });
})();
