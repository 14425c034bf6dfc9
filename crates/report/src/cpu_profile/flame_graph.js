//<![CDATA[
"use strict";
(() => {
const SVG = "http://www.w3.org/2000/svg", XHTML = "http://www.w3.org/1999/xhtml";
const root = document.currentScript.closest("svg"), status = root.querySelector("#frame");
const frames = [...root.querySelectorAll("[role=treeitem]")].map((node, at) => ({
  node, at, lines: node.querySelector("title").textContent.split("\n"), level: Number(node.getAttribute("aria-level")),
  x: parseFloat(node.getAttribute("x")), width: parseFloat(node.getAttribute("width")), ns: Number(node.dataset.ns),
}));
/* Each frame follows its caller; its direct and indirect callees follow it, up to `until`. */
const open = [];
for (const frame of frames) {
  while (open.length && open.at(-1).level >= frame.level) open.pop().until = frame.at;
  frame.caller = open.at(-1);
  open.push(frame);
}
for (const frame of open) frame.until = frames.length;
let current = frames[0], shown = frames[0];
root.setAttribute("width", "100%");

/* Draws a frame over the whole width, with its callers below and its callees above. */
function zoom(to) {
  shown = to;
  const callers = new Set();
  for (let frame = to.caller; frame; frame = frame.caller) callers.add(frame);
  for (const frame of frames) {
    const inside = frame.at >= to.at && frame.at < to.until;
    const x = inside ? (frame.x - to.x) / to.width * 100 : 0, width = inside ? frame.width / to.width * 100 : 100;
    frame.visible = inside || callers.has(frame);
    frame.node.style.display = frame.visible ? "" : "none";
    frame.node.classList.toggle("narrowed", callers.has(frame));
    frame.node.setAttribute("x", x + "%");
    frame.node.setAttribute("width", width + "%");
    let text = frame.node.querySelector("text");
    if (frame.visible && !text && width >= 1.5) {
      text = document.createElementNS(SVG, "text");
      text.setAttribute("x", 4);
      text.setAttribute("y", 13);
      text.textContent = frame.lines[0];
      frame.node.append(text);
    }
    if (text) text.style.display = width >= 1.5 ? "" : "none";
  }
  if (!current.visible) select(to);
}
function say(frame) {
  const [name, total, own] = frame.lines;
  status.textContent = `${name}: ${total}, ${own}`;
}
function select(frame) {
  if (!frame) return;
  current.node.setAttribute("tabindex", -1);
  current = frame;
  current.node.setAttribute("tabindex", 0);
  current.node.focus();
}
/* Marks frames by a part of their name, and shows their share of the time; nested matches count once. */
function search(words) {
  const part = words.trim().toLowerCase();
  let ns = 0, until = 0, count = 0;
  for (const frame of frames) {
    const found = part !== "" && frame.lines[0].toLowerCase().includes(part);
    frame.node.classList.toggle("found", found);
    count += found;
    if (found && frame.at >= until) [ns, until] = [ns + frame.ns, frame.until];
  }
  status.textContent = part ? `${part}: ${count} frames, ${(ns / frames[0].ns * 100).toFixed(2)} %` : "";
}
const beside = step => {
  const siblings = frames.filter(frame => frame.caller === current.caller && frame.visible !== false);
  return siblings[siblings.indexOf(current) + step];
};
const keys = {
  ArrowUp: () => select(frames.slice(current.at + 1, current.until).find(frame => frame.visible !== false)),
  ArrowDown: () => select(current.caller),
  ArrowLeft: () => select(beside(-1)),
  ArrowRight: () => select(beside(1)),
  Enter: () => zoom(current),
  " ": () => zoom(current),
  Escape: () => zoom(frames[0]),
};
for (const frame of frames) {
  frame.node.setAttribute("tabindex", frame === current ? 0 : -1);
  frame.node.addEventListener("click", () => { select(frame); zoom(shown === frame ? frames[0] : frame); });
  frame.node.addEventListener("pointerenter", () => say(frame));
  frame.node.addEventListener("focus", () => say(frame));
  frame.node.addEventListener("keydown", event => {
    if (!(event.key in keys) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
}
const box = document.createElementNS(SVG, "foreignObject");
for (const [key, value] of Object.entries({x: "100%", y: 6, width: 220, height: 26, transform: "translate(-232)"}))
  box.setAttribute(key, value);
const field = document.createElementNS(XHTML, "input");
field.type = "search";
field.placeholder = "Part of a function's name";
field.setAttribute("aria-label", "Search functions");
field.style.cssText = "width: 100%; box-sizing: border-box; font: 12px monospace";
field.addEventListener("input", () => search(field.value));
box.append(field);
root.append(box);
})();
//]]>
