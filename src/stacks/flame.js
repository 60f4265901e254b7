// Zoom and search in a flame graph: a click on a frame zooms, one on the root or on "Reset zoom" ends that; Ctrl-F, F3 or a click on
// "Search" asks for a regular expression. The part of the address behind # keeps what is shown: #zoom=NUMBER&search=EXPRESSION.
(() => {
  "use strict";
  const svg = (document.currentScript && document.currentScript.closest("svg")) || document.documentElement;
  const CHARACTER = 7; // Pixels, about; as in the picture without a script.
  const FOUND = "#e600e6";
  // Within a page, its address and its keys are not ours.
  const isAlone = svg === document.documentElement;

  // Each frame comes after its caller, and is below it.
  const frames = [];
  const callers = [];
  for (const group of svg.querySelectorAll("g[data-n]")) {
    const [rect, tip] = [group.querySelector("rect"), group.querySelector("title").textContent];
    const y = Number(rect.getAttribute("y"));
    while (callers.length > 0 && callers[callers.length - 1].y >= y) callers.pop();
    const frame = {
      group, rect, y,
      text: group.querySelector("text"),
      name: tip.slice(0, tip.lastIndexOf(": ")),
      fill: rect.getAttribute("fill"),
      at: Number(group.dataset.x),
      samples: Number(group.dataset.n),
      caller: callers[callers.length - 1],
    };
    const number = frames.length;
    group.addEventListener("click", () => go(number, shown.search));
    group.style.cursor = "pointer";
    callers.push(frame);
    frames.push(frame);
  }
  if (frames.length === 0) return;
  const left = Number(frames[0].rect.getAttribute("x"));
  const whole = Number(frames[0].rect.getAttribute("width"));
  const shown = { zoom: 0, search: "" };

  function label(id, x, y, anchor, clicked) {
    const text = document.createElementNS(svg.namespaceURI, "text");
    const attributes = { class: id, x, y, "text-anchor": anchor };
    for (const name in attributes) text.setAttribute(name, attributes[name]);
    if (clicked) {
      text.addEventListener("click", clicked);
      text.style.cursor = "pointer";
    }
    return svg.appendChild(text);
  }
  const reset = label("reset", left, 22, "start", () => go(0, shown.search));
  const search = label("search", left + whole, 22, "end", ask);
  const matched = label("matched", left + whole, svg.viewBox.baseVal.height - 7, "end");
  search.textContent = "Search";

  function place(frame, x, width) {
    frame.rect.setAttribute("x", x.toFixed(2));
    frame.rect.setAttribute("width", width.toFixed(2));
    const room = Math.floor((width - 6) / CHARACTER);
    const characters = Array.from(frame.name);
    if (room >= 3 && !frame.text) {
      frame.text = document.createElementNS(svg.namespaceURI, "text");
      frame.text.setAttribute("y", (frame.y + 12.5).toFixed(1));
      frame.group.appendChild(frame.text);
    }
    if (!frame.text) return;
    frame.text.setAttribute("x", (x + 3).toFixed(2));
    const cut = characters.length <= room ? frame.name : characters.slice(0, room - 2).join("") + "..";
    frame.text.textContent = room >= 3 ? cut : "";
  }

  // The frame and what it called get the whole width, its callers a faint line above it.
  function zoom(to) {
    const above = new Set();
    for (let caller = to.caller; caller; caller = caller.caller) above.add(caller);
    for (const frame of frames) {
      frame.inside = frame === to || Boolean(frame.caller && frame.caller.inside);
      frame.group.style.display = frame.inside || above.has(frame) ? "" : "none";
      frame.group.style.opacity = above.has(frame) ? 0.5 : "";
      const scale = whole / to.samples;
      if (frame.inside) place(frame, left + (frame.at - to.at) * scale, frame.samples * scale);
      else if (above.has(frame)) place(frame, left, whole);
    }
    reset.textContent = to.caller ? "Reset zoom" : "";
  }

  // The part of the shown samples; each sample counts once.
  function find(expression, to) {
    let pattern = null;
    try {
      pattern = expression ? new RegExp(expression) : null;
    } catch {
      matched.textContent = "Not a regular expression: " + expression;
    }
    let samples = 0;
    for (const frame of frames) {
      const is = pattern !== null && pattern.test(frame.name);
      frame.rect.setAttribute("fill", is ? FOUND : frame.fill);
      const counted = frame !== to && Boolean(frame.caller && frame.caller.counted);
      if (is && !counted && frame.inside) samples += frame.samples;
      frame.counted = frame.inside && (is || counted);
    }
    if (pattern) matched.textContent = "Matched: " + (100 * samples / to.samples).toFixed(2) + " %";
    else if (!expression) matched.textContent = "";
  }

  function show() {
    const to = frames[shown.zoom] || frames[0];
    zoom(to);
    find(shown.search, to);
  }

  function go(zoomed, expression) {
    [shown.zoom, shown.search] = [zoomed, expression];
    show();
    if (!isAlone) return;
    const address = new URLSearchParams();
    if (zoomed > 0) address.set("zoom", zoomed);
    if (expression) address.set("search", expression);
    location.hash = address;
  }

  function read() {
    const address = new URLSearchParams(location.hash.slice(1));
    [shown.zoom, shown.search] = [Number(address.get("zoom")) || 0, address.get("search") || ""];
    show();
  }

  function ask() {
    const expression = prompt("Functions to find (regular expression; nothing ends the search):", shown.search);
    if (expression !== null) go(shown.zoom, expression);
  }

  show();
  if (!isAlone) return;
  read();
  addEventListener("hashchange", read);
  addEventListener("keydown", (event) => {
    if (event.key !== "F3" && !(event.ctrlKey && event.key === "f")) return;
    event.preventDefault();
    ask();
  });
})();
