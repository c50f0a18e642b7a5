"use strict";
// What goes wrong, in clusters, with examples.

const SHOWN_CLUSTERS = 8, EXAMPLES = 4;

function failuresView({ query }) {
  const rows = chosen(query), members = rows.flatMap((row) => row.members);
  const failed = members.filter((m) => m.state !== "solved");
  queue(failed.slice(0, QUEUED).map((m) => [m]));
  if (!members.length) return [filterBar(query, null), empty("No episode is like that.")];
  return [
    filterBar(query, null),
    h("p", { class: "counts", role: "status" }, `${plural(failed.length, "episode")} not solved, of ${count(members.length)} (${percent(failed.length / members.length, 1)})`),
    h("div", { class: "digest" },
      clusters("How they ended", "of the episodes not solved", cluster(failed, (m) => m.stop), failed.length, (key) => STOPS[key] || key, query, {}),
      firstAnswers(members),
      clusters("Answers not understood", "the first of an episode, by what it says", cluster(members.filter((m) => m.unparsed), (m) => m.unread), members.length, (key) => said(key, 60), query, { outcome: "unread" },
        "Every answer was understood."),
      clusters("Cut at the length limit", "episodes with an answer that ran into rollout.max_tokens", cluster(members.filter((m) => m.cut), (m) => (m.cut === m.turns ? "every answer" : m.cut === 1 ? "one answer" : "several answers")), members.length, (key) => key, query, { outcome: "cut" },
        "No answer ran into its limit.")),
  ];
}

function cluster(members, of) {
  const found = new Map();
  for (const m of members) {
    const key = of(m);
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(m);
  }
  return [...found.entries()].sort((a, b) => b[1].length - a[1].length);
}

function clusters(title, note, found, whole, name, query, filter, none = "None.") {
  const all = found.length && Object.keys(filter).length ? h("a", { class: "more", href: address("groups", [], { kind: query.get("kind"), v: query.get("v"), ...filter }) }, "all →") : null;
  return h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, title), all), h("p", { class: "muted" }, note),
    found.length ? found.slice(0, SHOWN_CLUSTERS).map(([key, members]) => h("div", { class: "cluster" },
      h("div", { class: "cluster-head" }, h("span", { class: "what" }, name(key)), h("span", { class: "n" }, `${count(members.length)}`), h("span", { class: "n muted" }, percent(members.length / whole, 1))),
      bar(members.length / whole, "failed"), examples(members))) : h("p", { class: "muted none" }, none),
    found.length > SHOWN_CLUSTERS ? h("p", { class: "muted" }, `and ${plural(found.length - SHOWN_CLUSTERS, "rarer one")}`) : null);
}

function examples(members) {
  const there = members.filter((m) => playable(m.row)), step = Math.max(1, Math.floor(there.length / EXAMPLES));
  return h("div", { class: "tiles small" }, there.filter((_, i) => i % step === 0).slice(0, EXAMPLES).map((m) => tile(m)));
}

/** First answers by how often they end in failure where the task could be solved: where a sibling began otherwise and solved it. */
function firstAnswers(members) {
  const wrong = members.filter((m) => m.state === "failed" && m.row.members.some((other) => other.solved && other.first !== m.first));
  const played = new Map(cluster(members, (m) => m.first)), groups = cluster(wrong, (m) => m.first);
  const alone = groups.length ? groups : cluster(members.filter((m) => m.state === "failed"), (m) => m.first);
  return h("section", { class: "panel" }, h("h2", {}, groups.length ? "Wrong first answers" : "First answers of failed episodes"),
    h("p", { class: "muted" }, groups.length ? "failed episodes that began otherwise than a member of their group that solved the task" : "by how often they begin one"),
    alone.length ? alone.slice(0, SHOWN_CLUSTERS).map(([first, some]) => {
      const all = played.get(first).length, bad = played.get(first).filter((m) => m.state === "failed").length;
      return h("div", { class: "cluster" },
        h("div", { class: "cluster-head" }, h("span", { class: "what" }, said(first, 60)), h("span", { class: "n" }, count(some.length)), h("span", { class: "n muted" }, `${percent(bad / all)} of ${count(all)} begun so fail`)),
        bar(some.length / Math.max(1, sum(alone, ([, list]) => list.length)), "failed"), examples(some));
    }) : h("p", { class: "muted none" }, "None."));
}
