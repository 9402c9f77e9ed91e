// Live updates, keyboard, colors and long timelines of the console. All pages work without it.
"use strict";
(() => {
  const root = document.documentElement;
  const storage = (name, value) => {
    // A browser may forbid storage.
    try {
      if (value === undefined) return localStorage.getItem(`headwater-${name}`) ?? "";
      localStorage.setItem(`headwater-${name}`, value);
    } catch { /* It is only remembered for this page. */ }
    return value ?? "";
  };
  // Before anything is drawn; otherwise a page would flash in the other colors.
  if (storage("colors")) root.dataset.colors = storage("colors");

  const get = async (url) => {
    const answer = await fetch(url, { headers: { accept: "text/html" }, cache: "no-store" });
    if (new URL(answer.url).pathname === "/console/login") throw new Error("ended");
    if (!answer.ok) throw new Error(`answered ${answer.status}`);
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  };

  // -- new content into the page, without touching what a person does in it

  const isField = (node) =>
    node instanceof HTMLElement && node.matches("input:not([type=hidden]), select, textarea");
  const isChanged = (field) =>
    field instanceof HTMLSelectElement
      ? [...field.options].some((option) => option.selected !== option.defaultSelected)
        && !(field.selectedIndex === 0 && ![...field.options].some((option) => option.defaultSelected))
      : field.type === "checkbox" ? field.checked !== field.defaultChecked
      : field.value !== field.defaultValue;
  const isInUse = (form) =>
    (form.contains(document.activeElement) && isField(document.activeElement))
    || [...form.elements].some((field) => isField(field) && isChanged(field));
  // Rows are known by their first link, so that a new one moves no others. A form with a field named
  // id has the field as its property, so the attribute is read.
  const keyOf = (node) =>
    node.nodeType !== Node.ELEMENT_NODE ? ""
      : node.getAttribute("id") || (node.nodeName === "TR" && node.querySelector("a")?.getAttribute("href")) || "";
  const isKept = (node) => node.nodeType === Node.ELEMENT_NODE && node.dataset.keep !== undefined;

  // Attributes that a person or the script sets.
  const OWN = new Set(["open", "data-window", "data-empty", "data-loading"]);
  const isWindowed = (table) => table?.tBodies.length > 1;

  const update = (old, fresh) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.isEqualNode(fresh) || (old.nodeName === "FORM" && isInUse(old))) return;
    if (old.dataset.windows !== undefined && isWindowed(old)) {
      updateWindow(old, fresh);
      return;
    }
    if (old.className === "more-entries" && isWindowed(document.querySelector("[data-windows]"))) return;
    for (const { name } of [...old.attributes])
      if (!fresh.hasAttribute(name) && !OWN.has(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes)
      if (!OWN.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    updateChildren(old, fresh);
  };

  const updateChildren = (old, fresh) => {
    const keyed = new Map([...old.children].map((child) => [keyOf(child), child]));
    let at = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      const key = keyOf(wanted);
      while (at && isKept(at)) at = at.nextSibling;
      let match = key ? keyed.get(key) : at;
      if (!key)
        while (match && (keyOf(match) || isKept(match) || match.nodeName !== wanted.nodeName))
          match = match.nextSibling;
      if (!match || match.nodeName !== wanted.nodeName) {
        old.insertBefore(wanted, at);
        continue;
      }
      keyed.delete(key);
      if (match === at) at = at.nextSibling;
      else old.insertBefore(match, at);
      update(match, wanted);
    }
    while (at) {
      const next = at.nextSibling;
      if (!isKept(at)) at.remove();
      at = next;
    }
  };

  const show = (page) => {
    const focused = document.activeElement;
    update(document.getElementById("main"), page.getElementById("main"));
    update(document.getElementById("requests"), page.getElementById("requests"));
    document.title = page.title;
    // A node that is moved loses the focus.
    if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
  };

  // -- live updates

  const live = { seconds: 0, failures: 0, timer: 0, paused: storage("live") === "off", ended: false };

  const setState = (text, kind = "") => {
    const state = document.getElementById("live");
    state.textContent = text;
    state.className = `plain ${kind}`;
  };

  const describe = () => {
    const name = live.paused ? "Paused" : "Live";
    setState(name, live.paused ? "" : "good");
    document.getElementById("live").setAttribute("aria-pressed", String(!live.paused));
  };

  const isReading = () => document.hidden || String(getSelection()) !== ""
    || document.querySelector("dialog[open]") !== null;

  const refresh = async () => {
    clearTimeout(live.timer);
    if (live.ended) return;
    if (!live.paused && !isReading()) {
      try {
        show(await get(location.href));
        live.failures = 0;
        describe();
      } catch (error) {
        live.ended = error.message === "ended";
        live.failures += 1;
        setState(live.ended ? "Session ended: sign in again" : `Not up to date: ${error.message}`, "bad");
      }
    }
    const seconds = Math.min(live.seconds * 2 ** Math.min(live.failures, 4), 60);
    live.timer = setTimeout(refresh, seconds * 1000);
  };

  const beLive = () => {
    live.seconds = Number(document.getElementById("main").dataset.live);
    if (!live.seconds) return;
    const button = document.getElementById("live");
    button.hidden = false;
    button.addEventListener("click", () => {
      if (live.ended) location.reload();
      live.paused = !live.paused;
      storage("live", live.paused ? "off" : "on");
      describe();
      refresh();
    });
    describe();
    document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
    live.timer = setTimeout(refresh, live.seconds * 1000);
    // What a form has come to is said once, and not again by every update.
    const address = new URL(location.href);
    if (address.searchParams.has("done")) {
      address.searchParams.delete("done");
      history.replaceState(null, "", address);
    }
  };

  // -- a timeline of any length: windows of rows, of which those far away are emptied

  const WINDOWS = 8;
  const empty = (rows) => {
    const height = rows.getBoundingClientRect().height;
    const cell = document.createElement("td");
    cell.colSpan = 6;
    cell.style.height = `${height}px`;
    cell.style.padding = "0";
    const row = document.createElement("tr");
    row.append(cell);
    rows.replaceChildren(row);
    rows.dataset.empty = "";
  };
  const distance = (rows) => {
    const { top, bottom } = rows.getBoundingClientRect();
    return Math.max(top - innerHeight, -bottom, 0);
  };
  const fill = async (rows) => {
    if (rows.dataset.loading !== undefined) return;
    rows.dataset.loading = "";
    try {
      const page = await get(rows.dataset.window);
      const fresh = page.querySelector("[data-windows] tbody");
      if (fresh) rows.replaceChildren(...fresh.childNodes);
      delete rows.dataset.empty;
    } catch { /* It is tried again when it is scrolled to. */ }
    delete rows.dataset.loading;
  };
  const updateWindow = (table, fresh) => {
    const first = table.tBodies[0];
    if (first.dataset.empty === undefined && fresh.tBodies?.[0]) update(first, fresh.tBodies[0]);
  };
  const append = async (table, link) => {
    if (table.dataset.loading !== undefined) return;
    table.dataset.loading = "";
    try {
      const page = await get(link.href);
      const rows = page.querySelector("[data-windows] tbody");
      if (rows) {
        rows.dataset.window = link.href;
        table.append(rows);
      }
      const next = page.querySelector(".more-entries a[rel=next]");
      if (next) link.href = next.href;
      else link.remove();
      scrolledSoon();
    } catch { /* It is tried again when it is scrolled to. */ }
    delete table.dataset.loading;
  };
  const scrolled = () => {
    const table = document.querySelector("[data-windows]");
    const link = document.querySelector(".more-entries a[rel=next]");
    if (!table) return;
    if (link && link.getBoundingClientRect().top < 2 * innerHeight) append(table, link);
    const windows = [...table.tBodies];
    for (const rows of windows)
      if (rows.dataset.empty !== undefined && distance(rows) < innerHeight) fill(rows);
    const filled = windows.filter((rows) => rows.dataset.empty === undefined);
    filled.sort((one, other) => distance(other) - distance(one));
    for (const rows of filled.slice(0, Math.max(filled.length - WINDOWS, 0)))
      if (distance(rows) > innerHeight) empty(rows);
  };
  let waiting = false;
  const scrolledSoon = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; scrolled(); });
  };
  const beEndless = () => {
    const table = document.querySelector("[data-windows]");
    if (!table) return;
    if (table.tBodies[0]) table.tBodies[0].dataset.window = location.href;
    addEventListener("scroll", scrolledSoon, { passive: true });
    scrolledSoon();
  };

  // -- keyboard

  const isTyping = (node) => isField(node) && !["checkbox", "radio"].includes(node.type);
  const linksOfRows = () =>
    [...document.querySelectorAll("main tbody tr")].map((row) => row.querySelector("a")).filter(Boolean);
  const step = (by) => {
    const links = linksOfRows();
    const row = document.activeElement?.closest("tbody tr");
    const at = links.findIndex((link) => link.closest("tr") === row);
    const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(Math.max(at + by, 0), links.length - 1)];
    next?.focus();
    return next !== undefined;
  };
  const press = (selector) => document.querySelector(selector)?.click();
  const setColors = () => {
    const isDark = getComputedStyle(root).colorScheme === "dark"
      || (getComputedStyle(root).colorScheme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
    root.dataset.colors = storage("colors", isDark ? "light" : "dark");
  };
  const help = () => document.getElementById("help")?.showModal();
  const KEYS = {
    "?": help,
    "/": () => (document.querySelector(".filters input:not([type=hidden])") ?? document.querySelector("header input[type=search]"))?.focus(),
    s: () => document.querySelector("header input[type=search]")?.focus(),
    j: () => step(1),
    k: () => step(-1),
    n: () => press(".pages a[rel=next]"),
    u: () => press("a[data-up]"),
    t: setColors,
    l: () => press("#live:not([hidden])"),
    r: () => { live.seconds ? refresh() : location.reload(); },
  };
  let goes = false;
  const onKey = (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    if (goes) {
      goes = false;
      press(`nav a[data-key="${CSS.escape(event.key)}"]`);
      event.preventDefault();
      return;
    }
    const isInRow = document.activeElement?.closest("tbody tr");
    const arrows = isInRow ? { ArrowDown: KEYS.j, ArrowUp: KEYS.k } : {};
    const act = arrows[event.key] ?? (Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : undefined);
    if (event.key === "g") goes = true;
    else if (!act) return;
    else act();
    event.preventDefault();
  };

  addEventListener("DOMContentLoaded", () => {
    for (const [id, act] of [["colors", setColors], ["keys", help]]) {
      const button = document.getElementById(id);
      if (!button) continue;
      button.hidden = false;
      button.addEventListener("click", act);
    }
    if (!document.getElementById("main")) return;
    document.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    document.addEventListener("keydown", onKey);
    beLive();
    beEndless();
  });
})();
