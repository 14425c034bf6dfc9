/* Faults that a reader of this page would notice, one per line. */
(() => {
  const faults = [], root = document.documentElement;
  const name = e => e.localName + (e.id ? "#" + e.id : "") + (e.getAttribute("class") ? "." + e.getAttribute("class").replace(/ /g, ".") : "")
    + ` "${(e.textContent || "").trim().slice(0, 40)}"`;
  const isShown = e => e.getClientRects().length > 0;

  /* Nothing is wider than the window, except elements that scroll. */
  if (root.scrollWidth > root.clientWidth) {
    const scrolls = e => { const x = getComputedStyle(e).overflowX; return x === "auto" || x === "hidden"; };
    const isFree = e => { for (let p = e.parentElement; p; p = p.parentElement) if (scrolls(p)) return false; return true; };
    const own = e => Math.max(e.getBoundingClientRect().right, e.getBoundingClientRect().left + (scrolls(e) ? 0 : e.scrollWidth));
    const isOut = e => own(e) > root.clientWidth && isFree(e);
    /* Only the innermost of the elements that are too wide. */
    const causes = [...document.body.querySelectorAll("*")].filter(e => isOut(e) && ![...e.children].some(isOut));
    const widest = causes.sort((a, b) => own(b) - own(a)).slice(0, 3).map(name);
    faults.push(`the page is ${root.scrollWidth} pixels wide in a window of ${root.clientWidth}: ${widest.join("; ")}`);
  }

  /* All texts have a contrast of at least 4.5 to their background (WCAG 2.1, 1.4.3). */
  const channels = colour => colour.match(/[\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const colour = channels(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
  };
  const pale = new Set(), texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !isShown(e)) continue;
    const style = getComputedStyle(e), own = channels(e.closest("svg") ? style.fill : style.color);
    const [a, b] = [luminance(own), luminance(behind(e))].sort((a, b) => b - a), contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5 && pale.size < 5) pale.add(`a contrast of ${contrast.toFixed(2)}: ${name(e)}`);
  }
  faults.push(...pale);

  /* All charts are drawn, and their legends are complete. */
  const classOf = e => (e.getAttribute("class") || "").replace(/^line /, "").replace(/^key$/, "band");
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    if (!isShown(figure)) continue;
    const drawn = new Set([...figure.querySelectorAll(":scope > svg > g *")].map(classOf).filter(c => c && c !== "event"));
    const legend = new Set([...figure.querySelectorAll(".legend svg *")].map(classOf));
    if (!drawn.size) faults.push(`nothing is drawn: ${figure.dataset.name}`);
    /* A single series needs no name. */
    const unnamed = [...drawn].filter(c => !legend.has(c) && c !== "rest");
    if (unnamed.length) faults.push(`not in the legend of ${figure.dataset.name}: ${unnamed.join(", ")}`);
  }
  return faults;
})()
