"use strict";
// Lines over versions, drawn once for the width there is.

const PALETTE = ["var(--series-0)", "var(--series-1)", "var(--series-2)", "var(--series-3)", "var(--series-4)", "var(--series-5)"];

/** Shares over versions. `lines`: [{name, points: [{version, value}], color, dots}]. Clicking selects a version. */
function lineChart({ lines, selected, choose, label, height = 300 }) {
  const box = h("div", { class: "chart", tabIndex: 0, role: "img", "aria-label": label });
  const versions = [...new Set(lines.flatMap((line) => line.points.map((p) => p.version)))].sort((a, b) => a - b);
  const draw = () => {
    const width = box.clientWidth;
    if (!width || !versions.length) return;
    const left = 38, right = 14, top = 12, bottom = 26;
    const last = versions[versions.length - 1], span = Math.max(1, last - versions[0]);
    const x = (version) => left + ((width - left - right) * (version - versions[0])) / span;
    const y = (value) => top + (height - top - bottom) * (1 - value);
    const svg = h("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
    for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
      svg.append(h("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
        h("text", { class: "tick", x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, percent(tick)));
    }
    for (const version of ticks(versions[0], last, Math.floor((width - left) / 60)))
      svg.append(h("text", { class: "tick", x: x(version), y: height - 6, "text-anchor": "middle" }, String(version)));
    if (selected !== null) svg.append(h("line", { class: "chosen", x1: x(selected), x2: x(selected), y1: top, y2: height - bottom }));
    for (const line of lines) {
      const path = line.points.map((p, i) => `${i ? "L" : "M"}${x(p.version).toFixed(1)} ${y(p.value).toFixed(1)}`).join("");
      svg.append(h("path", { class: `line${line.dots ? "" : " thin"}`, d: path, style: { stroke: line.color } }));
      const few = line.dots || line.points.length === 1;
      if (few) svg.append(...line.points.map((p) => h("circle", { class: "dot", cx: x(p.version), cy: y(p.value), r: p.version === selected ? 5 : 3.5, style: { stroke: line.color } })));
    }
    const hover = h("line", { class: "hover", x1: 0, x2: 0, y1: top, y2: height - bottom, visibility: "hidden" });
    const tip = h("div", { class: "tip", hidden: true });
    svg.append(hover);
    const nearest = (event) => {
      const at = event.clientX - svg.getBoundingClientRect().left;
      return versions.reduce((best, v) => (Math.abs(x(v) - at) < Math.abs(x(best) - at) ? v : best));
    };
    svg.addEventListener("pointermove", (event) => {
      const version = nearest(event);
      hover.setAttribute("x1", x(version)); hover.setAttribute("x2", x(version)); hover.setAttribute("visibility", "visible");
      const there = lines.flatMap((line) => line.points.filter((p) => p.version === version).map((p) =>
        h("div", {}, h("i", { style: { background: line.color } }), line.name, h("b", {}, percent(p.value, 1)))));
      clear(tip, h("strong", {}, `version ${version}`), there);
      tip.hidden = false;
      tip.style.left = `${Math.min(Math.max(x(version) + 12, 0), width - tip.offsetWidth - 4)}px`;
      if (x(version) > width / 2) tip.style.left = `${x(version) - tip.offsetWidth - 12}px`;
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; hover.setAttribute("visibility", "hidden"); });
    svg.addEventListener("click", (event) => choose(nearest(event)));
    clear(box, svg, tip);
  };
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !versions.length) return;
    event.preventDefault();
    const at = selected === null ? (step > 0 ? -1 : versions.length) : versions.indexOf(selected);
    choose(versions[Math.min(versions.length - 1, Math.max(0, at + step))]);
    document.querySelector(".chart")?.focus();
  });
  new ResizeObserver(draw).observe(box);
  return box;
}

function ticks(first, last, most) {
  const span = Math.max(1, last - first), raw = span / Math.max(1, most);
  const unit = 10 ** Math.floor(Math.log10(raw)), step = Math.max(1, [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= raw));
  const found = [];
  for (let version = Math.ceil(first / step) * step; version <= last; version += step) found.push(version);
  return found;
}

/** A line without axes. */
function spark(values, { width = 120, height = 28, color = "var(--accent)", low = 0, high = 1 } = {}) {
  const span = high - low || 1;
  const x = (i) => 2 + ((width - 4) * i) / Math.max(1, values.length - 1), y = (v) => height - 3 - ((height - 6) * (v - low)) / span;
  const path = values.map((v, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join("");
  const svg = h("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  svg.append(h("path", { d: path, style: { stroke: color } }));
  if (values.length) svg.append(h("circle", { cx: x(values.length - 1), cy: y(values[values.length - 1]), r: 2.5, style: { fill: color } }));
  return svg;
}
