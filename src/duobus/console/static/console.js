/* What the pages of the console do by themselves: dialogs, keys, colours, times in the viewer's zone, live events. */
"use strict";
(() => {
  const csrf = () => document.body.dataset.csrf || "";

  /* Every request of htmx brings the token. */
  document.addEventListener("htmx:configRequest", (event) => {
    event.detail.headers["X-CSRF-Token"] = csrf();
    /* What a page asks for by itself must not keep a session alive that nobody uses. */
    if (Date.now() - lastInput > 60000) event.detail.headers["X-Unattended"] = "true";
  });
  let lastInput = Date.now();
  for (const kind of ["keydown", "pointerdown", "pointermove", "scroll", "wheel"]) {
    document.addEventListener(kind, () => { lastInput = Date.now(); }, { capture: true, passive: true });
  }
  document.addEventListener("htmx:sendError", () => notify("The console does not answer. Is it still running?"));
  document.addEventListener("htmx:timeout", () => notify("The console did not answer in time."));

  function notify(text) {
    const place = document.getElementById("notices");
    const line = document.createElement("p");
    line.className = "notice notice-error";
    line.setAttribute("role", "alert");
    line.textContent = text;
    place.replaceChildren(line);
  }

  /* Times: the viewer's zone on the page, the exact instant on hover. */
  const shown = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const exact = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    fractionalSecondDigits: 3, timeZoneName: "short",
  });
  function localize(root) {
    for (const element of root.querySelectorAll("time[datetime]:not([data-local])")) {
      const instant = new Date(element.dateTime);
      if (Number.isNaN(instant.getTime())) continue;
      element.dataset.local = "";
      element.title = `${exact.format(instant)} – ${element.dateTime}`;
      element.textContent = shown.format(instant);
    }
  }

  /* Fields of times: the server speaks UTC, the person sees and types times of their zone. A hidden field under the name
     of the field carries what is sent; without a script the field itself does, and its label says UTC. */
  function wallClock(instant) {
    return new Date(instant - instant.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
  }
  function zone(root) {
    for (const field of root.querySelectorAll("input[data-utc][name]")) {
      const sent = document.createElement("input");
      sent.type = "hidden";
      sent.name = field.name;
      sent.value = field.value;
      const instant = new Date(`${field.value}Z`);
      if (!Number.isNaN(instant.getTime())) field.value = wallClock(instant);
      field.removeAttribute("name");
      field.after(sent);
      field.addEventListener("input", () => {
        sent.value = field.value ? new Date(field.value).toISOString().slice(0, 16) : "";
      });
      const named = field.labels[0]?.querySelector("[data-zone]");
      if (named) named.textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;
    }
  }

  /* Live events: <div data-events="/tail/orders/events"> gets each event of the stream as an event of the page. */
  const streams = new Map();
  function listen(root) {
    for (const [element, stream] of streams) {
      if (!element.isConnected) {
        stream.close();
        streams.delete(element);
      }
    }
    for (const element of root.querySelectorAll("[data-events]")) {
      if (streams.has(element)) continue;
      const stream = new EventSource(element.dataset.events);
      streams.set(element, stream);
      watch(stream);
      element.querySelector("[data-stop]")?.closest("p").removeAttribute("hidden");
      const names = (element.dataset.eventNames || "").split(" ").filter(Boolean);
      for (const name of new Set(["html", "failed", "dropped", "ended", ...names])) {
        stream.addEventListener(name, (event) => receive(element, stream, name, JSON.parse(event.data)));
      }
    }
  }
  /* <button data-stop> inside the element ends its stream; the button is shown as long as there is something to end. */
  function stop(element) {
    streams.get(element)?.close();
    element.querySelector("[data-stop]")?.closest("p").setAttribute("hidden", "");
  }

  /* The browser tries again by itself while the console is away; an answer that is no stream ends that. */
  function watch(stream) {
    let isAway = false;
    stream.addEventListener("open", () => {
      if (isAway) document.getElementById("notices").replaceChildren();
      isAway = false;
    });
    stream.addEventListener("error", () => {
      if (stream.readyState === EventSource.CLOSED) notify(ENDED);
      else if (!isAway) notify("The console does not answer; this page shows what was last known, and tries again.");
      isAway = true;
    });
  }
  const ENDED = "Your session has ended. This page is not live any more; load the page anew to sign in again.";

  function receive(element, stream, name, data) {
    if (name === "failed") notify(data.text);
    if (name === "ended") notify(ENDED);
    if (name === "failed" || name === "ended" || name === "done") stop(element);
    if (name === "html") {
      const target = data.target ? document.querySelector(data.target) : element;
      if (!target) return;
      /* Who moves by the keyboard stays at the link that has the focus. */
      const focused = target.contains(document.activeElement) && document.activeElement.getAttribute("href");
      htmx.swap(target, data.html, { swapStyle: data.swap || "innerHTML" });
      if (focused) target.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
      return;
    }
    element.dispatchEvent(new CustomEvent(`console:${name}`, { bubbles: true, detail: data }));
  }

  /* Charts: <div class="chart" data-chart="id-of-a-script"> with a <script type="application/json"> that holds
     {"x": [seconds…], "series": [{"label": …, "values": […]}], "unit": "/s"}. A chart has a table beside it for those
     who cannot see it. */
  const charts = new Map();
  /* A canvas takes a plain colour, not the pair of a light and a dark one: an element resolves the pair. */
  function colour(name) {
    const probe = document.documentElement.appendChild(document.createElement("span"));
    probe.style.color = `var(${name})`;
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }
  function draw(root) {
    for (const element of root.querySelectorAll("[data-chart]")) {
      if (charts.has(element) || typeof uPlot === "undefined") continue;
      const source = document.getElementById(element.dataset.chart);
      if (!source) continue;
      const data = JSON.parse(source.textContent);
      const palette = ["--series-1", "--series-2", "--series-3", "--series-4"].map(colour);
      const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
      const chart = new uPlot({
        width: Math.max(200, element.clientWidth), height: Number(element.dataset.height || 180),
        cursor: { drag: { x: false, y: false } },
        axes: [axis, { ...axis, size: 60 }],
        series: [{}, ...data.series.map((one, index) => ({
          label: one.label, stroke: palette[index % palette.length], width: 2, points: { show: false },
          dash: index % 2 ? [6, 3] : undefined,
          value: (_, value) => value == null ? "–" : value.toLocaleString() + (data.unit || ""),
        }))],
      }, [data.x, ...data.series.map((one) => one.values)], element);
      charts.set(element, chart);
    }
    for (const [element, chart] of charts) {
      if (!element.isConnected) { chart.destroy(); charts.delete(element); }
    }
  }
  new ResizeObserver(() => {
    for (const [element, chart] of charts) {
      const width = Math.max(200, element.clientWidth);
      if (width !== chart.width) chart.setSize({ width, height: chart.height });
    }
  }).observe(document.body);

  function begin(root) { localize(root); zone(root); listen(document); draw(root); countDown(); arm(root); }

  /* Locks and other ends: <span data-until="ISO time">; and what began: <span data-since="milliseconds">. */
  function spoken(seconds) {
    return seconds >= 86400 ? `${Math.floor(seconds / 86400)} d ${Math.floor(seconds % 86400 / 3600)} h`
      : seconds >= 3600 ? `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} m`
      : seconds >= 60 ? `${Math.floor(seconds / 60)} m ${seconds % 60} s` : `${seconds} s`;
  }
  function countDown() {
    for (const element of document.querySelectorAll("[data-since]")) {
      const written = spoken(Math.max(0, Math.floor((Date.now() - Number(element.dataset.since)) / 1000)));
      if (element.textContent !== written) element.textContent = written;
    }
    for (const element of document.querySelectorAll("[data-until]")) {
      const left = Math.max(0, Math.floor((new Date(element.dataset.until) - Date.now()) / 1000));
      const written = left ? spoken(left) : element.dataset.over || "over";
      if (element.textContent !== written) element.textContent = written;
      element.classList.toggle("over", !left);
    }
  }
  setInterval(countDown, 1000);

  /* A name has to be typed before something is destroyed; the server asks for it, too. */
  function arm(root) {
    for (const field of root.querySelectorAll("input[data-confirm]")) {
      const button = field.form.querySelector("button.danger");
      const check = () => { button.disabled = field.value !== field.dataset.confirm; };
      if (!field.dataset.armed) { field.dataset.armed = "1"; field.addEventListener("input", check); }
      check();
    }
  }

  document.addEventListener("click", (event) => {
    const open = event.target.closest("[data-open]");
    if (open) document.querySelector(open.dataset.open)?.showModal();
    event.target.closest("[data-dismiss]")?.closest("dialog")?.close();
    event.target.closest("[data-close]")?.closest(".notice")?.remove();
    const ending = event.target.closest("[data-stop]");
    if (ending) stop(ending.closest("[data-events]"));
    const copy = event.target.closest("[data-copy]");
    if (copy) copyText(copy);
    if (event.target.closest("[data-theme-switch]")) switchTheme();
    if (event.target instanceof HTMLDialogElement) event.target.close();
  });

  /* <button data-copy="#id-of-an-element"> copies its text. */
  async function copyText(button) {
    const source = document.querySelector(button.dataset.copy);
    if (!source) return;
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText("value" in source ? source.value : source.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => { button.textContent = before; }, 2000);
  }

  function switchTheme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = `duobus-console-theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
    for (const [element, chart] of charts) { chart.destroy(); charts.delete(element); }
    draw(document);
  }

  /* Keys, while no field has the focus. */
  let isLeading = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const inField = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && inField) { event.target.blur(); return; }
    if (inField || document.querySelector("dialog[open]")) return;
    if (isLeading) {
      isLeading = false;
      const key = CSS.escape(event.key);
      const link = key && document.querySelector(`nav.screens a[data-key="${key}"], nav.screens a[data-index="${key}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === "g") { isLeading = true; setTimeout(() => { isLeading = false; }, 1500); }
    if (event.key === "?") { event.preventDefault(); document.getElementById("keys").showModal(); }
    if (event.key === "/") {
      const search = document.querySelector("main input[type=search]");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
    }
    if (event.key === "r") location.reload();
  });

  /* The console's own start opens the sign-in page with the access code behind the #, which no request carries. */
  function takeCode() {
    const found = /^#code=([\w=-]+)$/.exec(location.hash);
    const form = document.querySelector("#code-form form");
    if (!found || !form) return;
    history.replaceState(null, "", location.pathname + location.search);
    form.querySelector("[name=code]").value = found[1];
    form.submit();
  }

  document.addEventListener("htmx:load", (event) => begin(event.detail.elt.parentElement || document));
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => begin(document));
  else begin(document);
  if (document.readyState === "complete") takeCode();
  else window.addEventListener("load", takeCode);
  window.addEventListener("hashchange", takeCode);
})();
