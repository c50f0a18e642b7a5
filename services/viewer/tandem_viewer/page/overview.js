"use strict";
// Does it learn? Solve rates over versions, the figures that matter, and what tells most of the version chosen.

const OVERVIEW_GROUPS = 6;

function overview({ query }) {
  const found = kinds().map(({ kind, row }, index) => ({ kind, row, name: kindName(row), points: series(kind), index }));
  if (!found.length) return [empty("Nothing is recorded yet. It appears here as soon as the first evaluation or step is done.")];
  const train = found.find((one) => one.row.suite === TRAIN);
  const headline = found.find((one) => one.row.suite !== TRAIN) || train;
  const asked = query.get("v");
  const versions = [...new Set(found.flatMap((one) => one.points.map((p) => p.version)))].sort((a, b) => a - b);
  const selected = asked !== null && versions.includes(Number(asked)) ? Number(asked) : null;
  const choose = (version) => refine({ v: version === selected ? "" : version });
  const drawn = found.filter((one) => one === headline || (one.points.length > 1 && store.envs.get(one.row.suite).size === 1)).slice(0, PALETTE.length)
    .map((one, i) => ({ name: one.name, color: PALETTE[i], dots: one.row.suite !== TRAIN, points: one.points.map((p) => ({ version: p.version, value: rate(p) })) }));
  const words = headline.points.length
    ? `Solve rate over versions. ${headline.name}: ${percent(rate(headline.points[0]))} at version ${headline.points[0].version}, ${percent(rate(headline.points.at(-1)))} at version ${headline.points.at(-1).version}.` : "Solve rate over versions";
  return [
    h("section", { class: "figures", "aria-label": "Key figures" }, headlineFigures(headline, train, versions)),
    h("section", { class: "panel" },
      h("div", { class: "panel-head" }, h("h2", {}, "Solve rate"),
        h("div", { class: "legend" }, drawn.map((line) => h("span", {}, h("i", { class: line.dots ? "" : "thin", style: { background: line.color } }), line.name))),
        versionPicker(versions, selected)),
      lineChart({ lines: drawn, selected, choose, label: words + " Left and right arrows choose a version." })),
    h("div", { class: "split" }, suiteTable(found), train ? signals(train) : null),
    chosenVersion(selected),
  ];
}

function versionPicker(versions, selected) {
  return select("version", selected ?? "", [["", "all"], ...versions.map((v) => [v, String(v)])], (v) => refine({ v }));
}

function headlineFigures(headline, train, versions) {
  const [first, last] = [headline.points[0], headline.points.at(-1)];
  const cards = [];
  if (headline !== train) cards.push(figure(headline.name, percent(rate(last), 1), change(rate(first), rate(last), first.version), rate(last)));
  if (train) {
    const [start, now] = [train.points[0], train.points.at(-1)];
    cards.push(figure("training, sampled", percent(rate(now), 1), change(rate(start), rate(now), start.version), rate(now)),
      figure("groups with a signal", percent(now.mixed / now.groups), `members differ in ${now.mixed} of ${now.groups} at version ${now.version}`),
      figure("turns an episode", plain(now.turns / now.episodes, 1), `${plain(start.turns / start.episodes, 1)} at version ${start.version}`));
  }
  const all = sum(store.rows, (row) => row.members.length);
  const turns = train ? train.points.at(-1) : last;
  cards.push(figure("answers not understood", percent(turns.unparsed / Math.max(1, turns.turns), 1), `of the turns at version ${turns.version}`),
    figure("episodes recorded", count(all), `${plural(store.rows.length, "group")}, ${plural(versions.length, "version")}`));
  return cards;
}

function change(from, to, version) {
  const points = (to - from) * 100;
  const state = points > 0.05 ? "up" : points < -0.05 ? "down" : "";
  return [h("span", { class: state }, `${points >= 0 ? "+" : "−"}${Math.abs(points).toFixed(1)} points`), ` since version ${version}`];
}

function figure(name, value, note) {
  return h("div", { class: "figure" }, h("div", { class: "name" }, name), h("div", { class: "value" }, value), h("div", { class: "note" }, note));
}

function suiteTable(found) {
  const rows = found.map((one) => {
    const [first, last] = [one.points[0], one.points.at(-1)];
    const several = one.points.length > 1;
    return h("tr", {},
      h("th", { scope: "row" }, h("a", { href: address("groups", [], { kind: one.kind }) }, one.name), h("small", {}, one.row.env)),
      h("td", { class: "n" }, several ? percent(rate(first), 1) : ""), h("td", { class: "n strong" }, percent(rate(last), 1)),
      h("td", {}, several ? spark(one.points.map(rate), { width: 96, height: 22 }) : ""),
      h("td", { class: "n muted" }, `${last.solved} of ${last.episodes}`));
  });
  return h("section", { class: "panel" }, h("h2", {}, "What was played"),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "suite"), h("th", { scope: "col", class: "n" }, "first"),
      h("th", { scope: "col", class: "n" }, "latest"), h("th", { scope: "col" }, ""), h("th", { scope: "col", class: "n" }, "solved"))), h("tbody", {}, rows))));
}

function signals(train) {
  const points = train.points, last = points.at(-1);
  const line = (name, of, show, high) => {
    const values = points.map(of), most = high || Math.max(...values, 1e-9);
    return h("div", { class: "signal" }, h("span", {}, name), spark(values, { high: most, width: 150 }), h("b", {}, show(of(last))));
  };
  return h("section", { class: "panel" }, h("h2", {}, "How training goes"),
    line("groups whose members differ", (p) => p.mixed / p.groups, percent, 1),
    line("turns an episode", (p) => p.turns / p.episodes, (v) => plain(v, 1)),
    line("tokens an answer", (p) => p.tokens / Math.max(1, p.turns), (v) => plain(v, 1)),
    line("return", (p) => p.total / p.episodes, (v) => plain(v, 2)),
    line("answers not understood", (p) => p.unparsed / Math.max(1, p.turns), (v) => percent(v, 1)),
    line("failed by the machinery", (p) => p.broken / p.episodes, (v) => percent(v, 1)));
}

function chosenVersion(version) {
  const rows = store.rows.filter((row) => (version === null || row.version === version) && playable(row));
  if (!rows.length) return null;
  const best = pickTop(rows, OVERVIEW_GROUPS);
  queue(best.flatMap((row) => row.members).map((m) => [m]));
  return h("section", { class: "panel" },
    h("div", { class: "panel-head" }, h("h2", {}, version === null ? "Most telling groups" : `Version ${version}: most telling groups`),
      h("a", { class: "more", href: address("groups", [], { v: version ?? "" }) }, "all groups →")),
    groupList(best));
}

/** The first few by `telling`, without sorting all of 100,000. */
function pickTop(rows, most) {
  const best = [];
  for (const row of rows) {
    const score = telling(row) + row.version * 1e-6;
    if (best.length < most || score > best[best.length - 1].score) {
      best.push({ row, score });
      best.sort((a, b) => b.score - a.score);
      best.length = Math.min(best.length, most);
    }
  }
  return best.map(({ row }) => row);
}
