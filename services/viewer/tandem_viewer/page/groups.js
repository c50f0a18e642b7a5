"use strict";
// Groups with their members side by side, found by what became of them.

const PAGE_GROUPS = 24;
const OUTCOMES = {
  all: ["All", () => true],
  mixed: ["Mixed", (m) => m.row.solved > 0 && m.row.solved < m.row.valid],
  solved: ["Solved", (m) => m.state === "solved"],
  failed: ["Failed", (m) => m.state === "failed"],
  unread: ["Not understood", (m) => m.unparsed > 0],
  cut: ["Cut at length", (m) => m.cut > 0],
  broken: ["Machinery", (m) => m.state === "broken"],
};
const SORTS = {
  telling: ["most telling", (a, b) => telling(b) - telling(a) || b.version - a.version || a.number - b.number],
  newest: ["newest", (a, b) => b.number - a.number],
  oldest: ["oldest", (a, b) => a.number - b.number],
  seed: ["seed", (a, b) => a.seed - b.seed || a.version - b.version],
  longest: ["longest", (a, b) => turnsOf(b) - turnsOf(a)],
  least: ["least solved", (a, b) => a.solved / a.members.length - b.solved / b.members.length || b.version - a.version],
};
const QUEUED = 20000;
let queued = [], queuedKeys = null;  // what is played in the order in which j and k go through it: [member], or [member, other]

const turnsOf = (row) => sum(row.members, (m) => m.turns) / row.members.length;
const queue = (plays) => { queued = plays; queuedKeys = null; };
const refOf = (m) => [m.row.source, m.row.part || "-", m.row.at, m.index].join(".");

/** Where in the queue what is played stands; -1 where it does not. */
function queuedAt(parts) {
  queuedKeys = queuedKeys || new Map(queued.map((play, index) => [play.map(refOf).join("/"), index]));
  return queuedKeys.get(parts.join("/")) ?? -1;
}

function chosen(query) {
  const kind = query.get("kind") || "", version = query.get("v") || "", text = (query.get("q") || "").trim();
  return store.rows.filter((row) => (!kind || row.kind === kind) && (!version || row.version === Number(version))
    && (!text || String(row.seed).startsWith(text) || row.env.includes(text) || row.id.includes(text)));
}

function filterBar(query, numbers) {
  const versions = [...new Set(store.rows.map((row) => row.version))].sort((a, b) => a - b);
  const outcome = query.get("outcome") || "all";
  return h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
    numbers ? segments("Outcome", outcome, Object.entries(OUTCOMES).filter(([key]) => numbers[key] || key === outcome || key === "all")
      .map(([key, [name]]) => [key, name, numbers[key]]), (key) => refine({ outcome: key === "all" ? "" : key, n: "" })) : null,
    select("suite", query.get("kind") || "", [["", "all"], ...kinds().map(({ kind, row }) => [kind, kindName(row)])], (kind) => refine({ kind, n: "" })),
    select("version", query.get("v") || "", [["", "all"], ...versions.map((v) => [v, String(v)])], (v) => refine({ v, n: "" })),
    numbers ? select("order", query.get("sort") || "telling", Object.entries(SORTS).map(([key, [name]]) => [key, name]), (sort) => refine({ sort, n: "" })) : null,
    h("label", { class: "field search" }, h("span", {}, "seed"),
      h("input", { type: "search", id: "search", placeholder: "seed or id", value: query.get("q") || "", autocomplete: "off",
        oninput: (event) => { refine({ q: event.target.value, n: "" }); } })));
}

function groupsView({ query }) {
  const rows = chosen(query);
  const numbers = Object.fromEntries(Object.keys(OUTCOMES).map((key) => [key, 0]));
  const tests = Object.entries(OUTCOMES);
  for (const row of rows) for (const m of row.members) for (const [key, [, test]] of tests) numbers[key] += test(m);
  const outcome = OUTCOMES[query.get("outcome")] ? query.get("outcome") : "all";
  const test = OUTCOMES[outcome][1];
  const matching = outcome === "all" ? rows : rows.filter((row) => row.members.some(test));
  const order = SORTS[query.get("sort")] || SORTS.telling;
  const sorted = [...matching].sort(order[1]);
  queue(sorted.slice(0, QUEUED).flatMap((row) => row.members.filter(test)).slice(0, QUEUED).map((m) => [m]));
  const shown = Math.min(sorted.length, Number(query.get("n")) || PAGE_GROUPS);
  const more = sorted.length > shown ? h("button", { class: "wide", onclick: () => refine({ n: shown + 2 * PAGE_GROUPS }) }, `show more of ${plural(sorted.length, "group")}`) : null;
  return [
    filterBar(query, numbers),
    h("p", { class: "counts", role: "status" }, outcome === "all" ? `${plural(numbers.all, "episode")} in ${plural(sorted.length, "group")}`
      : `${plural(numbers[outcome], "episode")}, in ${plural(sorted.length, "group")}`),
    sorted.length ? groupList(sorted.slice(0, shown), test) : empty("No episode is like that."),
    more,
  ];
}

function groupList(rows, test) {
  return h("div", { class: `groups${rows.every((row) => row.members.length === 1) ? " dense" : ""}` }, rows.map((row) => groupCard(row, test)));
}

function groupCard(row, test = () => true) {
  const differ = row.solved > 0 && row.solved < row.valid;
  return h("article", { class: "group", "aria-label": `seed ${row.seed}, version ${row.version}, ${row.solved} of ${row.members.length} solved` },
    h("header", {},
      h("a", { class: "seed", href: address("groups", [], { q: row.seed, sort: "oldest" }), title: "this task at all versions" }, `#${row.seed}`),
      h("span", { class: "muted" }, `v${row.version} · ${row.suite || "episodes"}`),
      row.members.length > 1 ? h("span", { class: `tally ${differ ? "mixed" : ""}` }, h("span", { class: "pips", "aria-hidden": "true" },
        row.members.map((m) => h("i", { class: m.state }))), `${row.solved}/${row.members.length}`) : null),
    h("div", { class: "tiles" }, row.members.map((m) => tile(m, test(m)))));
}

function tile(m, lit = true) {
  const row = m.row, words = `member ${m.member}: ${m.state}, return ${plain(m.total)}, ${m.turns} turns, ${STOPS[m.stop] || m.stop}`;
  return h("a", { class: `tile ${m.state}${lit ? "" : " dim"}`, href: playAddress(m), "aria-label": words, title: words },
    frame(row, m),
    h("span", { class: "line" }, h("b", {}, plain(m.total)), m.advantage === null ? null : h("span", { class: `advantage ${m.advantage > 0 ? "up" : m.advantage < 0 ? "down" : ""}` }, signed(m.advantage))),
    h("span", { class: "line muted" }, `${m.turns} t`, h("span", {}, m.state === "solved" ? "solved" : SHORT[m.stop] || m.stop)));
}

function frame(row, m) {
  const url = m.frame >= 0 && playable(row) ? imageUrl(row, m.frame) : "";
  return h("span", { class: "thumb" }, url ? h("img", { src: url, alt: "", loading: "lazy", decoding: "async" })
    : h("span", { class: "words" }, row.gone ? "removed" : m.first.slice(0, 24) || "–"));
}

function playAddress(m, against = null) {
  return address("play", [m, against].filter(Boolean).map(refOf));
}
