"use strict";
// The same tasks under two versions: what is newly solved, what newly failed.

const PAIRS = { gained: ["Newly solved", "solved"], lost: ["Newly failed", "failed"], neither: ["Failed by both", "muted"], both: ["Solved by both", "muted"] };
const PAGE_PAIRS = 12;

function compareView({ query }) {
  const evaluated = kinds().filter(({ kind }) => versionsOf(kind).length > 1 && pairable(kind));
  if (!evaluated.length) return [empty("Nothing to compare yet: no task was played under two versions. Evaluations are, each eval.every steps and at the end.")];
  const kind = evaluated.some((one) => one.kind === query.get("kind")) ? query.get("kind") : evaluated[0].kind;
  const versions = versionsOf(kind);
  const pick = (name, otherwise) => (versions.includes(Number(query.get(name))) && query.get(name) !== null ? Number(query.get(name)) : otherwise);
  const asked = store.facts.compare;
  const a = pick("a", versions.includes(asked) && asked !== versions.at(-1) ? asked : versions[0]), b = pick("b", versions.at(-1));
  const pairs = paired(kind, a, b);
  const by = Object.fromEntries(Object.keys(PAIRS).map((key) => [key, pairs.filter((pair) => pair.fate === key)]));
  queue(Object.keys(PAIRS).flatMap((fate) => by[fate]).map((pair) => [pair.a, pair.b]));
  const p = mcnemar(by.gained.length, by.lost.length);
  return [
    h("form", { class: "filters" },
      select("suite", kind, evaluated.map((one) => [one.kind, kindName(one.row)]), (value) => refine({ kind: value, a: "", b: "" })),
      select("version", a, versions.map((v) => [v, String(v)]), (value) => refine({ a: value })),
      select("against", b, versions.map((v) => [v, String(v)]), (value) => refine({ b: value }))),
    h("section", { class: "figures" }, Object.entries(PAIRS).map(([key, [name, state]]) =>
      h("a", { class: `figure ${state}`, href: `#pairs-${key}`, onclick: (event) => { event.preventDefault(); document.getElementById(`pairs-${key}`)?.scrollIntoView({ block: "start" }); } },
        h("div", { class: "name" }, name), h("div", { class: "value" }, count(by[key].length)), h("div", { class: "note" }, `of ${plural(pairs.length, "task")}`))),
      h("div", { class: "figure" }, h("div", { class: "name" }, "By chance"), h("div", { class: "value" }, p < 0.001 ? "< 0.001" : p.toFixed(3)), h("div", { class: "note" }, "p of McNemar's exact test"))),
    Object.entries(PAIRS).map(([key, [name]]) => by[key].length ? pairList(key, name, by[key], a, b, query) : null),
  ];
}

function pairList(key, name, pairs, a, b, query) {
  const most = Number(query.get(key)) || PAGE_PAIRS;
  return h("section", { class: "panel", id: `pairs-${key}` }, h("h2", {}, `${name} `, h("small", {}, count(pairs.length))),
    h("div", { class: "pairs" }, pairs.slice(0, most).map((pair) => h("a", { class: "pair", href: playAddress(pair.a, pair.b), "aria-label": `task ${pair.a.row.seed}: ${pair.a.state} at version ${a}, ${pair.b.state} at version ${b}` },
      h("span", { class: "seed" }, `#${pair.a.row.seed}`),
      [[pair.a, a], [pair.b, b]].map(([m, version]) => h("span", { class: `tile ${m.state}` }, frame(m.row, m), h("span", { class: "line muted" }, `v${version}`, h("span", {}, `${m.turns} t`))))))),
    pairs.length > most ? h("button", { class: "wide", onclick: () => refine({ [key]: most * 4 }) }, `show more of ${count(pairs.length)}`) : null);
}

function versionsOf(kind) {
  return [...new Set(store.rows.filter((row) => row.kind === kind).map((row) => row.version))].sort((a, b) => a - b);
}

function pairable(kind) {
  const seeds = new Map();
  for (const row of store.rows) if (row.kind === kind) {
    if (seeds.has(row.seed) && seeds.get(row.seed) !== row.version) return true;
    seeds.set(row.seed, row.version);
  }
  return false;
}

/** The first episode of each task under both versions; a pair that the machinery failed is left out. */
function paired(kind, a, b) {
  const of = (version) => new Map(store.rows.filter((row) => row.kind === kind && row.version === version).map((row) => [row.seed, row.members[0]]));
  const [first, second] = [of(a), of(b)];
  return [...first].filter(([seed, m]) => second.has(seed) && m.state !== "broken" && second.get(seed).state !== "broken").map(([seed, m]) => {
    const other = second.get(seed);
    return { a: m, b: other, fate: m.solved ? (other.solved ? "both" : "lost") : other.solved ? "gained" : "neither" };
  });
}

/** Two-sided p of so uneven a split, were both equally good. */
function mcnemar(gained, lost) {
  const tosses = gained + lost;
  let term = -tosses * Math.LN2, tail = 0;
  for (let heads = 0; heads <= Math.min(gained, lost); heads++) {
    tail += Math.exp(term);
    term += Math.log((tosses - heads) / (heads + 1));
  }
  return Math.min(1, 2 * tail);
}
