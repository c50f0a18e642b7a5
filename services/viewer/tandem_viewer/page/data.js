"use strict";
// The recording as this page knows it: all figures, and a group's turns once somebody looks at them.

const TRAIN = "train";
const STOPS = {
  terminated: "ended", turn_limit: "turn limit", context_limit: "context full",
  env_error: "environment error", engine_error: "engine error", deadline: "deadline",
};
const SHORT = { terminated: "ended", turn_limit: "limit", context_limit: "context", env_error: "env error", engine_error: "engine", deadline: "deadline" };
const MACHINERY = new Set(["env_error", "engine_error", "deadline"]);
const GROUPS_KEPT = 60;

const store = { facts: null, rows: [], edition: "", total: 0, byKey: new Map(), envs: new Map(), details: new Map(), embedded: null, grew: 0, problem: "" };

/** A row of the index as an object. `solved` counts members; `valid` are those that the policy, not the machinery, ended. */
function toRow([source, part, at, env, seed, suite, version, temperature, time, gone, id, members], number) {
  const row = { source, part, at, env, seed, suite, version, temperature, time, gone: Boolean(gone), id, number };
  row.members = members.map((m, index) => toMember(m, row, index));
  row.solved = row.members.filter((m) => m.solved).length;
  row.valid = row.members.filter((m) => m.state !== "broken").length;
  row.kind = suite === TRAIN ? TRAIN : `${suite || "episodes"}|${env}|${temperature}`;
  row.key = `${source}/${part}/${at}`;
  return row;
}

function toMember([member, stop, taskReward, total, turns, unparsed, tokens, cut, advantage, first, unread, frame], row, index) {
  const solved = numeric(taskReward) >= 1;
  return { member, stop, total: numeric(total), turns, unparsed, tokens, cut, advantage: advantage === null ? null : numeric(advantage),
    first, unread, frame, solved, state: MACHINERY.has(stop) ? "broken" : solved ? "solved" : "failed", row, index };
}

async function ask(path, query = {}) {
  const response = await fetch(`api/${path}?${new URLSearchParams(query)}`);
  const content = await response.json();
  if (!response.ok) throw new Error(content.problem || response.statusText);
  return content;
}

/** Take rows in; whether anything is otherwise now. */
function takeRows({ edition, from, total, rows }) {
  const again = edition !== store.edition;
  if (again) { store.rows = []; store.byKey.clear(); store.envs.clear(); store.details.clear(); store.edition = edition; }
  for (const raw of rows.slice(store.rows.length - from)) {
    const row = toRow(raw, store.rows.length);
    store.rows.push(row);
    store.byKey.set(row.key, row);
    if (!store.envs.has(row.suite)) store.envs.set(row.suite, new Set());
    store.envs.get(row.suite).add(row.env);
  }
  store.total = total;
  return again || rows.length > 0;
}

/** Read what is new. `shown` is called whenever there is more to show, at most a few times a second. */
async function refresh(shown) {
  let changed = false, drawn = performance.now();
  do {
    changed = takeRows(await ask("rows", { edition: store.edition, from: store.rows.length })) || changed;
    if (changed && performance.now() - drawn > 700) { shown(); drawn = performance.now(); }
  } while (store.rows.length < store.total);
  return changed;
}

/** Everything that an exported file holds. */
async function unpack(element) {
  const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = await new Response(stream).json();
  element.remove();
  store.embedded = data;
  store.facts = data.facts;
  takeRows({ edition: "exported", from: 0, total: data.rows.length, rows: data.rows });
}

/** A group with its turns. Throws where it is not to be had. */
async function details(row) {
  if (store.embedded) {
    const found = store.embedded.groups[row.key];
    if (!found) throw new Error("This episode is not in the exported file, only its figures.");
    return found;
  }
  if (!store.details.has(row.key)) {
    if (store.details.size >= GROUPS_KEPT) store.details.delete(store.details.keys().next().value);
    const asked = ask("group", { source: row.source, part: row.part, at: row.at });
    asked.catch(() => store.details.delete(row.key));
    store.details.set(row.key, asked);
  }
  return store.details.get(row.key);
}

function playable(row) {
  return !row.gone && (!store.embedded || row.key in store.embedded.groups);
}

function imageUrl(row, at, version = "") {
  if (!store.embedded) return `api/image?${new URLSearchParams({ source: row.source, part: row.part, at, v: version })}`;
  const png = store.embedded.images[`${row.source}/${row.part}/${at}`];
  return png ? `data:image/png;base64,${png}` : "";
}

// -- figures ---------------------------------------------------------------------------------------------------------

function kinds() {
  const found = new Map();
  for (const row of store.rows) if (!found.has(row.kind)) found.set(row.kind, row);
  const rank = (row) => (row.suite === TRAIN ? 0 : row.suite.startsWith("fixed") ? (row.temperature ? 2 : 1) : row.suite === "heldout" ? 3 : 4);
  return [...found.entries()].sort((a, b) => rank(a[1]) - rank(b[1]) || a[0].localeCompare(b[0])).map(([kind, row]) => ({ kind, row }));
}

function kindName(row) {
  if (row.suite === TRAIN) return "training, sampled";
  const options = store.envs.get(row.suite).size > 1 ? ` ${row.env.split("?")[1] || row.env}` : "";
  return `${row.suite || "episodes"}${options}, ${row.temperature ? `sampled at ${row.temperature}` : "greedy"}`;
}

/** Figures of each version of one kind, by version. */
function series(kind) {
  const points = new Map();
  for (const row of store.rows) {
    if (row.kind !== kind) continue;
    let p = points.get(row.version);
    if (!p) points.set(row.version, (p = { version: row.version, groups: 0, mixed: 0, episodes: 0, solved: 0, turns: 0, unparsed: 0, tokens: 0, total: 0, broken: 0 }));
    p.groups += 1;
    p.mixed += row.solved > 0 && row.solved < row.valid;
    p.solved += row.solved;
    p.episodes += row.members.length;
    for (const m of row.members) {
      p.turns += m.turns; p.unparsed += m.unparsed; p.tokens += m.tokens;
      p.total += Number.isFinite(m.total) ? m.total : 0; p.broken += m.state === "broken";
    }
  }
  return [...points.values()].sort((a, b) => a.version - b.version);
}

const rate = (point) => point.solved / point.episodes;

/** How much a group says: those whose members differ first, the most even of them foremost; then failures, then long ones. */
function telling(row) {
  const share = row.valid ? row.solved / row.valid : 0;
  const spread = 4 * share * (1 - share);
  const failed = row.members.some((m) => m.state === "failed") ? 0.2 : 0;
  return spread * 10 + failed + Math.min(0.1, sum(row.members, (m) => m.turns) / row.members.length / 1000);
}
