//<![CDATA[
"use strict";
(() => {
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 240, LEFT = 66, RIGHT = 14, TOP = 10, BOTTOM = 28;
const block = document.getElementById("data");
if (!block) return;
const data = JSON.parse(block.textContent);
const floats = text => new Float32Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
for (const s of data.segments) for (const key of ["min", "mean", "max", "count"]) if (s[key]) s[key] = floats(s[key]);

function node(parent, name, attributes, text) {
  const inSvg = name === "svg" || parent.namespaceURI === SVG;
  const made = inSvg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

/* Formats figures as in the tables. */
function duration(ns) {
  const size = Math.abs(ns);
  const [one, unit] = size < 999.5 ? [1, "ns"] : size < 999950 ? [1e3, "µs"] : size < 999950e3 ? [1e6, "ms"] : [1e9, "s"];
  return (one === 1 ? Math.round(ns) : Number((ns / one).toPrecision(4))) + " " + unit;
}
const count = n => String(n).replace(/\B(?=(\d{3})+$)/g, "\u202f");
function percent(part) {
  const rest = Math.min(part, 1 - part);
  const digits = rest <= 0 ? 0 : Math.min(8, Math.max(1, Math.ceil(-Math.log10(rest))));
  return (part * 100).toFixed(digits) + " %";
}
function timeOfDay(ns, step) {
  const text = new Date(data.begin_ms + ns / 1e6).toISOString().slice(11, 23);
  return step >= 1e9 ? text.slice(0, 8) : text;
}

/* Round positions on an axis, with their labels. */
function linearTicks(from, to, most, label) {
  const rough = (to - from) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough);
  const ticks = [];
  for (let i = Math.ceil(from / step); i * step <= to; i++) ticks.push([i * step, label(i * step)]);
  return ticks;
}
function timeTicks(from, to, most) {
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 144e5, 288e5, 864e5];
  const step = 1e6 * (steps.find(s => s * 1e6 >= (to - from) / most) || 864e5 * Math.ceil((to - from) / most / 864e11));
  const ticks = [], offset = data.begin_ms * 1e6 % step;
  for (let t = Math.ceil((from + offset) / step) * step - offset; t <= to; t += step) ticks.push([t, timeOfDay(t, step)]);
  return ticks;
}
function logTicks(from, to, most, label) {
  const decades = to - from, digits = decades * 3 < most ? [1, 2, 5] : [1];
  if (decades < 0.7) return linearTicks(10 ** from, 10 ** to, most, label).map(([v, text]) => [Math.log10(v), text]);
  const skip = Math.max(1, Math.ceil(decades / most)), ticks = [];
  for (let power = Math.floor(from); power <= to; power++) for (const digit of digits) {
    const at = power + Math.log10(digit);
    if (at >= from && at <= to && power % skip === 0) ticks.push([at, label(digit * 10 ** power)]);
  }
  return ticks;
}
const log = v => Math.log10(Math.max(v, 1));

/*
 * Kinds of charts. Each returns the ranges of its axes, draws, and describes a position in words. Positions on
 * logarithmic axes are logarithms.
 */
const whole = [0, data.slot_ns * data.slots];
function slotsOf(from, to) {
  const first = Math.max(0, Math.floor(from / data.slot_ns));
  return [first, Math.max(first, Math.min(data.slots, Math.ceil(to / data.slot_ns)) - 1)];
}
function column(s, from, to) {
  const [first, last] = slotsOf(from, to);
  let min = Infinity, max = -Infinity, sum = 0, n = 0;
  for (let i = first; i <= last; i++) if (s.max[i] === s.max[i]) {
    if (s.min[i] < min) min = s.min[i];
    if (s.max[i] > max) max = s.max[i];
    sum += s.mean[i] * s.count[i]; n += s.count[i];
  }
  return n ? { min, max, mean: sum / n } : null;
}
function columns(s, chart) {
  const [a, b] = chart.view.now, w = chart.plot, all = [];
  for (let c = 0; c < w; c++) all.push(column(s, a + (b - a) * c / w, a + (b - a) * (c + 1) / w));
  return all;
}
/* Lines of a segment's limits and of the threshold. */
const limitsOf = s => [["line threshold", "threshold " + duration(data.threshold_ns), data.threshold_ns], ...(s.limits || []).map(([text, ns]) => ["line limit", "limit " + text, ns])];
const negatives = all => { const n = all.filter(b => b.from < 0).reduce((sum, b) => sum + b.count, 0); return n ? ` ${count(n)} negative times are not drawn.` : ""; };
const span = chart => chart.view.now[1] - chart.view.now[0];
/* The visible range of a chart's axis as text, also on paper. */
function shown({ view, kind }) {
  const [a, b] = view.now, text = kind.xTicks === timeTicks ? t => timeOfDay(t, (b - a) / 50) : u => duration(10 ** u);
  return view.isWhole() ? "" : ` Shown: ${text(a)} to ${text(b)}${kind.xTicks === timeTicks ? " UTC" : ""}.`;
}
const moment = (ns, chart) => timeOfDay(ns, span(chart) / 50) + " UTC";

/* Patterns and marks: from, to, number or text. A chart of one segment shows that segment's patterns. */
function events(segment) {
  const of = data.patterns.filter(p => segment === null || p.segments.length === 0 || p.segments.includes(segment));
  const bands = of.flatMap(p => p.spans.map(([from, to]) => ({ from, to, label: String(p.number), text: `pattern ${p.number}, ${p.kind}`, style: "pattern" })));
  const marks = data.marks.map(([at, text]) => ({ from: at, to: at, label: text.length > 24 ? text.slice(0, 23) + "…" : text, text: "mark: " + text, style: "mark" }));
  const legend = [];
  if (bands.length) legend.push(["pattern", "pattern, by its number"]);
  if (marks.length) legend.push(["line mark", "mark"]);
  return { all: [...bands, ...marks].sort((a, b) => a.from - b.from), legend };
}
function near(list, x, chart) {
  const w = span(chart) / chart.plot, at = list.all.filter(e => e.from <= x + w && e.to >= x - w).slice(0, 3).map(e => e.text);
  return at.length ? "; " + [...new Set(at)].join(", ") : "";
}

function timeKind(s) {
  const list = events(data.segments.indexOf(s));
  return {
    xTicks: timeTicks, legend: [["band", "least to greatest"], ["mean", "mean"], ...limitsOf(s), ...list.legend],
    prepare(chart) {
      chart.columns = columns(s, chart);
      const there = chart.columns.filter(c => c);
      const low = Math.min(...there.map(c => c.min)), high = Math.max(...there.map(c => c.max));
      if (!there.length) return { from: 0, to: 1, ticks: [] };
      if (low > 0) {
        const from = log(low) - 0.05, to = Math.max(log(high) + 0.05, from + 0.1);
        return { from, to, of: log, ticks: logTicks(from, to, 6, duration) };
      }
      const pad = (high - low || 1) * 0.05;
      return { from: low - pad, to: high + pad, of: v => v, ticks: linearTicks(low - pad, high + pad, 6, duration) };
    },
    paint(g, chart) {
      let band = "", mean = "", gap = true;
      chart.events(g, list.all);
      chart.columns.forEach((c, i) => {
        if (!c) { gap = true; return; }
        const x = LEFT + i + 0.5, top = chart.y(c.max), bottom = Math.max(chart.y(c.min), top + 1);
        band += `M${x} ${top.toFixed(1)}V${bottom.toFixed(1)}`;
        mean += `${gap ? "M" : "L"}${x} ${chart.y(c.mean).toFixed(1)}`;
        gap = false;
      });
      node(g, "path", { class: "band", d: band });
      node(g, "path", { class: "mean", d: mean });
      for (const [style, , ns] of limitsOf(s)) chart.rule(g, ns, style);
    },
    read(x, chart) {
      const w = span(chart) / chart.plot, c = column(s, x, x + w);
      const times = c ? `${duration(c.min)} to ${duration(c.max)}, mean ${duration(c.mean)}` : "no packet";
      return `${moment(x, chart)}: ${times}${near(list, x, chart)}`;
    },
  };
}

function stackKind(parts) {
  const of = parts.map(i => data.segments[i]), list = events(null);
  return {
    xTicks: timeTicks, legend: [...of.map((s, i) => ["s" + i % 8, s.label]), ...list.legend],
    prepare(chart) {
      chart.stack = of.map(s => columns(s, chart).map(c => c ? c.mean : null));
      let most = 1;
      for (let c = 0; c < chart.plot; c++) most = Math.max(most, chart.stack.reduce((sum, row) => sum + Math.max(0, row[c]), 0));
      return { from: 0, to: most * 1.05, of: v => v, ticks: linearTicks(0, most * 1.05, 6, duration) };
    },
    paint(g, chart) {
      const below = new Array(chart.plot).fill(0);
      chart.stack.forEach((row, i) => {
        let d = "", top = "", back = "";
        const close = () => { if (top) d += top + back + "Z"; top = back = ""; };
        row.forEach((value, c) => {
          /* Without packets there is nothing to draw. */
          if (value === null) { close(); return; }
          const x = LEFT + c, width = row[c + 1] == null ? `H${x + 1}` : "";
          back = `L${x} ${chart.y(below[c]).toFixed(1)}` + back;
          below[c] += Math.max(0, value);
          top += `${top ? "L" : "M"}${x} ${chart.y(below[c]).toFixed(1)}${width}`;
        });
        close();
        node(g, "path", { class: "s" + i % 8, d });
      });
      chart.events(g, list.all);
    },
    read(x, chart) {
      const w = span(chart) / chart.plot;
      const texts = of.map(s => { const c = column(s, x, x + w); return `${s.label} ${c ? duration(c.mean) : "no packet"}`; });
      return `${moment(x, chart)}: ${texts.join(", ")}${near(list, x, chart)}`;
    },
  };
}

/* Buckets are flat: from, to, count of each. */
function buckets(flat) {
  const all = [];
  for (let i = 0; i < flat.length; i += 3) all.push({ from: flat[i], to: flat[i + 1], count: flat[i + 2] });
  return all;
}
function latencySpan(s) {
  const positive = buckets(s.all).filter(b => b.from >= 0);
  if (!positive.length) return [0, 1];
  return [log(positive[0].from) - 0.03, log(positive[positive.length - 1].to) + 0.03];
}
const latencyTicks = (from, to, most) => logTicks(from, to, most, duration);

function histogramKind(s) {
  const all = buckets(s.all), total = all.reduce((sum, b) => sum + b.count, 0);
  const modes = [["together", []], ["by path", s.paths], ["by cause", s.causes]].filter(([, of], i) => i === 0 || of.length);
  function series(mode) {
    const named = mode[1].map(([name, flat]) => ({ name, of: new Map(buckets(flat).map(b => [b.from, b.count])) }));
    const rest = new Map(all.map(b => [b.from, b.count - named.reduce((sum, n) => sum + (n.of.get(b.from) || 0), 0)]));
    named.forEach((n, i) => n.style = "s" + i % 8);
    named.push({ name: mode[0] === "by cause" ? "others" : named.length ? "other" : "packets", of: rest, style: "rest" });
    for (const n of named) n.total = [...n.of.values()].reduce((a, b) => a + b, 0);
    return named.filter(n => n.total > 0).sort((a, b) => a.total - b.total);
  }
  const kind = {
    xTicks: latencyTicks, modes: modes.map(m => m[0]),
    mode(at) {
      kind.series = series(modes[at]);
      kind.legend = [...(kind.series.length > 1 ? kind.series.map(n => [n.style, `${n.name}: ${count(n.total)}`]) : []), ...limitsOf(s)];
    },
    prepare() {
      const to = Math.log10(Math.max(1, ...all.map(b => b.count))) + 0.1;
      return { from: -0.3, to, of: v => Math.log10(Math.max(v, 0.5)), ticks: logTicks(0, to, 6, count) };
    },
    paint(g, chart) {
      for (const b of all) {
        if (b.from < 0) continue;
        const x = chart.x(log(b.from)), w = Math.max(1, chart.x(log(b.to)) - x - 0.5);
        let sum = 0;
        for (const n of kind.series) {
          const own = n.of.get(b.from) || 0;
          if (own <= 0) continue;
          const bottom = chart.y(sum), top = chart.y(sum += own);
          node(g, "rect", { class: n.style, x: x.toFixed(1), width: w.toFixed(1), y: top.toFixed(1), height: Math.max(1, bottom - top).toFixed(1) });
        }
      }
      for (const [style, , ns] of limitsOf(s)) chart.mark(g, log(ns), style);
      const [a, z] = chart.view.now.map(v => 10 ** v), seen = all.filter(b => b.from >= a && b.to <= z).reduce((sum, b) => sum + b.count, 0);
      chart.note = chart.view.isWhole() ? "" : ` In view: ${percent(seen / total)} of packets.`;
      chart.note += negatives(all);
    },
    read(x, chart) {
      const b = all.find(b => b.from >= 0 && log(b.from) <= x && x < log(b.to));
      if (!b) return `${duration(10 ** x)}: no packet.${chart.note}`;
      const parts = kind.series.length > 1 ? kind.series.filter(n => n.of.get(b.from)).map(n => `${n.name} ${count(n.of.get(b.from))}`) : [];
      return `${duration(b.from)} to ${duration(b.to)}: ${count(b.count)} packets (${percent(b.count / total)})${parts.length ? ": " + parts.join(", ") : ""}.${chart.note}`;
    },
  };
  kind.mode(modes.length - 1);
  kind.first = modes.length - 1;
  return kind;
}

/* Groups of recordings in one chart: the share of a group's packets in each bucket. */
function overlayKind(s) {
  const lines = s.groups.map(([name, flat], i) => {
    const all = buckets(flat);
    return { name, style: "s" + i % 8, all, total: all.reduce((sum, b) => sum + b.count, 0) };
  });
  const least = Math.min(1, ...lines.filter(l => l.total).map(l => 1 / l.total));
  return {
    xTicks: latencyTicks, legend: [...lines.map(l => ["line " + l.style, `${l.name}: ${count(l.total)} packets`]), ...limitsOf(s)],
    prepare() {
      const from = Math.log10(least) - 0.3, ticks = [];
      for (let power = 0; power >= from; power--) ticks.push([power, percent(10 ** power)]);
      return { from, to: 0.1, of: v => Math.log10(Math.max(v, 1e-20)), ticks };
    },
    paint(g, chart) {
      const floor = HEIGHT - BOTTOM;
      for (const { all, total, style } of lines) {
        let d = "", end = null;
        for (const b of all) {
          if (b.from < 0) continue;
          const from = chart.x(log(b.from)).toFixed(1), to = chart.x(log(b.to)).toFixed(1), y = chart.y(b.count / total).toFixed(1);
          d += (end === b.from ? "" : `${end === null ? "" : `V${floor}`}M${from} ${floor}`) + `V${y}H${to}`;
          end = b.to;
        }
        if (d) node(g, "path", { class: "line " + style, d: d + `V${floor}` });
      }
      for (const [style, , ns] of limitsOf(s)) chart.mark(g, log(ns), style);
      chart.note = negatives(lines.flatMap(l => l.all));
    },
    read(x) {
      const here = lines.map(l => [l, l.all.find(b => b.from >= 0 && log(b.from) <= x && x < log(b.to))]);
      return `About ${duration(10 ** x)}: ${here.map(([l, b]) => `${l.name} ${b ? percent(b.count / l.total) : "no packet"}`).join(", ")}`;
    },
  };
}

function ccdfKind(s) {
  const curve = flat => {
    const all = buckets(flat), total = all.reduce((sum, b) => sum + b.count, 0);
    let above = total;
    return all.map(b => { const at = { from: b.from, share: above / total }; above -= b.count; return at; });
  };
  const named = (s.groups || s.paths).map(([name, flat], i) => [name, flat, "s" + i % 8]);
  const lines = (s.groups ? named : [["packets", s.all, "rest"], ...named])
    .map(([name, flat, style]) => ({ name, style, curve: curve(flat), total: buckets(flat).reduce((sum, b) => sum + b.count, 0) }));
  const total = Math.max(...lines.map(l => l.total));
  const under = ({ curve }, x) => { const at = curve.find(p => p.from >= 0 && log(p.from) >= x); return percent(1 - (at ? at.share : 0)); };
  return {
    xTicks: latencyTicks, legend: [...(lines.length > 1 ? lines.map(l => ["line " + l.style, l.name]) : []), ...limitsOf(s)],
    prepare() {
      const from = Math.log10(0.5 / Math.max(1, total)), ticks = [];
      for (let nines = 1; -nines >= from; nines++) ticks.push([-nines, (100 - 10 ** (2 - nines)).toFixed(Math.max(0, nines - 2)) + " %"]);
      return { from, to: 0, of: v => Math.log10(Math.max(v, 1e-20)), ticks };
    },
    paint(g, chart) {
      for (const { curve, style } of lines) {
        let d = "";
        for (const { from, share } of curve) d += d ? `V${chart.y(share).toFixed(1)}` + `H${chart.x(log(from)).toFixed(1)}` : `M${chart.x(log(from)).toFixed(1)} ${chart.y(1).toFixed(1)}`;
        if (d) node(g, "path", { class: "line " + style, d: d + `V${HEIGHT - BOTTOM}` });
      }
      for (const [style, , ns] of limitsOf(s)) chart.mark(g, log(ns), style);
      chart.note = negatives(s.groups ? s.groups.flatMap(([, flat]) => buckets(flat)) : buckets(s.all));
    },
    read(x) {
      const shares = s.groups ? lines.map(l => `${l.name} ${under(l, x)}`).join(", ") : under(lines[0], x);
      return `${shares} of packets take less than about ${duration(10 ** x)}`;
    },
  };
}

/* The visible range of an axis; charts over time share it. */
class View {
  constructor(full, least) { this.full = full; this.now = full.slice(); this.least = least; this.charts = []; }
  isWhole() { return this.now[0] === this.full[0] && this.now[1] === this.full[1]; }
  set(from, to) {
    const [a, b] = this.full, size = Math.min(Math.max(to - from, this.least), b - a);
    from = Math.min(Math.max((from + to - size) / 2, a), b - size);
    this.now = [from, from + size];
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.charts.forEach(chart => chart.draw()));
  }
  zoom(factor, at) { this.set(at - (at - this.now[0]) * factor, at + (this.now[1] - at) * factor); }
}
const timeView = new View(whole, data.slot_ns * 2);

class Chart {
  constructor(figure, kind, view) {
    const caption = figure.querySelector("figcaption");
    Object.assign(this, { figure, kind, view, caption, text: caption.textContent, cursor: null });
    view.charts.push(this);
    const name = figure.dataset.name;
    const bar = node(figure, "div", { class: "tools" });
    const button = (text, label, act) => { const b = node(bar, "button", { type: "button", "aria-label": `${text}: ${label}, ${name}` }, text); b.addEventListener("click", act); return b; };
    const middle = () => this.cursor ?? (view.now[0] + view.now[1]) / 2;
    button("+", "zoom in", () => view.zoom(0.5, middle()));
    button("−", "zoom out", () => view.zoom(2, middle()));
    button("whole", "show the whole", () => view.set(...view.full));
    if (kind.modes && kind.modes.length > 1) {
      const whole = this.text, modes = kind.modes.map((text, at) => button(text, "packets", () => { kind.mode(at); press(at); this.draw(); }));
      const press = at => {
        modes.forEach((b, i) => b.setAttribute("aria-pressed", i === at));
        this.text = `${whole} Stacked: ${kind.modes[at]}.`;
      };
      press(kind.first);
    }
    this.svg = node(figure, "svg", { tabindex: 0, role: "application", "aria-roledescription": "chart",
      "aria-label": `${name}. Arrow keys read it, plus and minus zoom, shift and arrow keys move, 0 shows the whole.` });
    this.legend = node(figure, "ul", { class: "legend" });
    this.output = node(bar, "span", { class: "readout", "aria-live": "polite" });
    this.listen();
    const fit = () => { if ((figure.clientWidth || 640) !== this.width) this.draw(); };
    new ResizeObserver(() => requestAnimationFrame(fit)).observe(figure);
  }
  x(u) { return LEFT + (u - this.view.now[0]) / span(this) * this.plot; }
  at(pixel) { return this.view.now[0] + (pixel - LEFT) / this.plot * span(this); }
  y(v) { const { from, to, of } = this.axis; return TOP + (to - of(v)) / (to - from) * (HEIGHT - TOP - BOTTOM); }
  rule(g, v, style) { const y = this.y(v); if (y >= TOP && y <= HEIGHT - BOTTOM) node(g, "path", { class: style, d: `M${LEFT} ${y}H${LEFT + this.plot}` }); }
  mark(g, u, style) { const x = this.x(u); if (x >= LEFT && x <= LEFT + this.plot) node(g, "path", { class: style, d: `M${x} ${TOP}V${HEIGHT - BOTTOM}` }); }
  events(g, list) {
    let free = 0;
    for (const { from, to, label, style } of list) {
      const a = this.x(from), b = this.x(to), end = LEFT + this.plot;
      if (b < LEFT || a > end) continue;
      if (style === "mark") node(g, "path", { class: "mark", d: `M${a.toFixed(1)} ${TOP}V${HEIGHT - BOTTOM}` });
      else node(g, "rect", { class: style, x: a.toFixed(1), width: Math.max(2, b - a).toFixed(1), y: TOP, height: HEIGHT - TOP - BOTTOM });
      const place = Math.max(a, LEFT) + 3, width = label.length * 6.2;
      if (place < free || place + width > end) continue;
      free = place + width + 4;
      node(g, "text", { class: "event", x: place.toFixed(1), y: TOP + 10 }, label);
    }
  }
  draw() {
    const { svg, kind, view } = this, width = this.width = this.figure.clientWidth || 640;
    this.plot = Math.max(40, Math.floor(width - LEFT - RIGHT));
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.replaceChildren();
    this.caption.textContent = this.text + shown(this);
    this.axis = kind.prepare(this);
    const floor = HEIGHT - BOTTOM, id = "clip" + charts.indexOf(this);
    for (const [at, label] of this.axis.ticks) {
      const { from, to } = this.axis, y = TOP + (to - at) / (to - from) * (floor - TOP);
      node(svg, "path", { class: "grid", d: `M${LEFT} ${y.toFixed(1)}H${LEFT + this.plot}` });
      node(svg, "text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, label);
    }
    let free = 0;
    for (const [at, label] of kind.xTicks(view.now[0], view.now[1], this.plot / 90)) {
      const x = this.x(at), width = label.length * 6.2, ends = x > LEFT + this.plot - 24, begin = ends ? x - width : x - width / 2;
      node(svg, "path", { class: "grid", d: `M${x.toFixed(1)} ${TOP}V${floor}` });
      if (begin < free) continue;
      free = begin + width + 4;
      node(svg, "text", { x, y: HEIGHT - 10, "text-anchor": ends ? "end" : "middle" }, label);
    }
    if (kind.xTicks === timeTicks) node(svg, "text", { x: LEFT - 6, y: HEIGHT - 10, "text-anchor": "end" }, "UTC");
    const clip = node(node(svg, "defs"), "clipPath", { id });
    node(clip, "rect", { x: LEFT, y: TOP, width: this.plot, height: floor - TOP });
    kind.paint(node(svg, "g", { "clip-path": `url(#${id})` }), this);
    this.legend.replaceChildren();
    for (const [style, text] of kind.legend) {
      const isLine = style === "mean" || style.startsWith("line"), item = node(this.legend, "li");
      const key = node(item, "svg", { viewBox: `0 0 ${isLine ? 30 : 12} 12`, class: isLine ? "long" : "", "aria-hidden": "true" });
      node(key, isLine ? "path" : "rect", isLine ? { class: style, d: "M0 6H30" } : { class: style === "band" ? "key" : style, width: 12, height: 12 });
      item.append(text);
    }
    this.line = node(svg, "path", { class: "cursor" });
    this.brush = node(svg, "rect", { class: "brush", y: TOP, height: floor - TOP, width: 0 });
    this.point(this.cursor);
  }
  point(u) {
    this.cursor = u;
    if (u === null || u < this.view.now[0] || u > this.view.now[1]) {
      this.line.setAttribute("d", "");
      this.output.textContent = this.note || "\u00a0";
      return;
    }
    this.line.setAttribute("d", `M${this.x(u)} ${TOP}V${HEIGHT - BOTTOM}`);
    this.output.textContent = this.kind.read(u, this);
  }
  listen() {
    const { svg, view } = this;
    let start = null;
    const place = event => {
      const box = svg.getBoundingClientRect();
      return Math.min(Math.max((event.clientX - box.left) * this.width / box.width, LEFT), LEFT + this.plot);
    };
    svg.addEventListener("pointerdown", event => { if (event.button === 0) { start = place(event); svg.setPointerCapture(event.pointerId); } });
    svg.addEventListener("pointermove", event => {
      const x = place(event);
      this.point(this.at(Math.min(x, LEFT + this.plot - 0.5)));
      if (start !== null) { this.brush.setAttribute("x", Math.min(start, x)); this.brush.setAttribute("width", Math.abs(x - start)); }
    });
    svg.addEventListener("pointerup", event => {
      const from = start, to = place(event);
      start = null;
      this.brush.setAttribute("width", 0);
      if (from !== null && Math.abs(to - from) > 4) view.set(...[this.at(from), this.at(to)].sort((a, b) => a - b));
    });
    svg.addEventListener("pointercancel", () => { start = null; this.brush.setAttribute("width", 0); });
    svg.addEventListener("dblclick", () => view.set(...view.full));
    svg.addEventListener("wheel", event => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      view.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.at(place(event)));
    }, { passive: false });
    svg.addEventListener("keydown", event => {
      const size = span(this), cursor = this.cursor ?? (view.now[0] + view.now[1]) / 2, [a, b] = view.now;
      const arrow = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      if (arrow && event.shiftKey) view.set(a + arrow * size / 4, b + arrow * size / 4);
      else if (arrow) this.point(Math.min(Math.max(cursor + arrow * size / 100, a), b - size / this.plot / 2));
      else if (event.key === "+" || event.key === "=") view.zoom(0.5, cursor);
      else if (event.key === "-") view.zoom(2, cursor);
      else if (event.key === "0" || event.key === "Home") view.set(...view.full);
      else return;
      event.preventDefault();
    });
  }
}

/* Hatching, by which the style sheet distinguishes areas on paper without colours. */
function hatching() {
  const svg = node(document.body, "svg", { width: 0, height: 0, class: "hatching", "aria-hidden": "true" });
  const strokes = ["M-1 1L1 -1M0 6L6 0M5 7L7 5", "M-1 5L1 7M0 0L6 6M5 -1L7 1", "M0 3H6", "M3 0V6", "M0 3H6M3 0V6", "M0 6L6 0M0 0L6 6", "M2 3H4"];
  strokes.forEach((d, i) => {
    const pattern = node(svg, "pattern", { id: `hatch${i + 1}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", class: `h${i + 1}` });
    node(pattern, "rect", { width: 6, height: 6, fill: "currentColor" });
    node(pattern, "path", { d, stroke: "#fff", "stroke-width": 1.5 });
  });
}

/* Paper has no buttons, so each way of stacking gets a chart. */
function histogram(figure, s, latency) {
  const kind = histogramKind(s);
  kind.modes.slice(1, -1).forEach((_, i) => {
    const copy = figure.cloneNode(true), other = histogramKind(s);
    copy.className = "paper";
    figure.after(copy);
    other.mode(i + 1);
    other.first = i + 1;
    const made = new Chart(copy, other, latency());
    charts.push(made);
    made.draw();
  });
  return new Chart(figure, kind, latency());
}
const charts = [];
hatching();
for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const s = data.segments[figure.dataset.segment], kind = figure.dataset.chart;
  const latency = () => new View(latencySpan(s), 0.02);
  charts.push(kind === "time" ? new Chart(figure, timeKind(s), timeView)
    : kind === "stack" ? new Chart(figure, stackKind(figure.dataset.parts.split(" ")), timeView)
    : kind === "histogram" ? histogram(figure, s, latency)
    : new Chart(figure, kind === "overlay" ? overlayKind(s) : ccdfKind(s), latency()));
}
/* report.html#t=12.5-13 shows these seconds of the run. */
const asked = /^#t=([\d.]+)-([\d.]+)$/.exec(location.hash);
if (asked) timeView.set(asked[1] * 1e9, asked[2] * 1e9);
})();
//]]>
