"use strict";
// What all views are made of: elements, numbers, the address. Whatever a model wrote only ever becomes a text node.

/** An element. Properties beginning with "on" are listeners, "data" and "aria" maps, `class` a name, others as they are. */
function h(tag, props, ...children) {
  const svg = ["svg", "path", "line", "circle", "g", "text", "rect", "polyline"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === "class" || svg || name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value === true ? "" : value);
    else element[name] = value;
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const clear = (element, ...children) => (element.replaceChildren(...children.flat(Infinity).filter(Boolean)), element);
const sum = (list, of = (x) => x) => list.reduce((total, item) => total + of(item), 0);
const percent = (share, digits = 0) => (Number.isFinite(share) ? (100 * share).toFixed(digits) + "%" : "–");
const count = (number) => number.toLocaleString("en-US");
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
const numeric = (value) => (typeof value === "string" ? Number(value) : value);

/** A number with its sign, as advantages are read. */
function signed(value) {
  if (!Number.isFinite(value)) return String(value);
  return (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(2);
}

function plain(value, digits = 2) {
  if (!Number.isFinite(value)) return String(value);
  return String(+value.toFixed(digits)).replace("-", "−");
}

/** What a model or an environment wrote, kept apart from the text around it whatever its direction, and cut for show. */
function said(text, most = 160) {
  const cut = text.length > most ? text.slice(0, most) + "…" : text;
  return h("bdi", { class: "said" }, cut || "(nothing)");
}

// -- the address: #/view/part?key=value ------------------------------------------------------------------------------

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  return { view: parts[0] || "overview", parts: parts.slice(1), query: new URLSearchParams(query || "") };
}

function address(view, parts = [], query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  const path = ["#", view, ...parts.map(encodeURIComponent)].join("/");
  return search.size ? `${path}?${search}` : path;
}

/** Change the query of the view that is shown, without a new entry in the history. */
function refine(changes) {
  const now = route();
  const query = { ...Object.fromEntries(now.query), ...changes };
  history.replaceState(null, "", address(now.view, now.parts, query));
  render();
}

// -- small pieces ----------------------------------------------------------------------------------------------------

function select(label, value, options, change) {
  const choices = options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text));
  return h("label", { class: "field" }, h("span", {}, label), h("select", { onchange: (event) => change(event.target.value) }, choices));
}

function segments(label, value, options, change) {
  const buttons = options.map(([key, text, number]) =>
    h("button", { type: "button", "aria-pressed": String(key === value), onclick: () => change(key) }, text,
      number === undefined ? null : h("small", {}, count(number))));
  return h("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

function empty(...text) {
  return h("p", { class: "empty" }, ...text);
}

function badge(state, text) {
  return h("span", { class: `badge ${state}` }, text);
}

function bar(share, state = "") {
  return h("span", { class: "bar", "aria-hidden": "true" }, h("i", { class: state, style: { width: percent(share, 1) } }));
}
