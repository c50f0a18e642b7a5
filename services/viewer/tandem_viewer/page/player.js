"use strict";
// One episode, frame by frame; or two of the same task side by side.

const FRAME_MS = 550;
const TEXT_MOST = 4000, TOKENS_MOST = 600;  // of one answer, before somebody asks for more
const player = { panes: [], at: 0, length: 0, timer: 0, key: "", mode: "logprob", draw: () => {} };

function memberOf(ref) {
  const [source, part, at, index] = ref.split(".");
  return store.byKey.get(`${source}/${part === "-" ? "" : part}/${at}`)?.members[Number(index)];
}

function playView({ parts, query }) {
  const members = parts.slice(0, 2).map(memberOf);
  if (!members.length || members.some((m) => !m)) {
    stopPlaying();
    return [empty(store.rows.length < store.total || !store.facts ? "Loading…" : "There is no such episode, or no more. ", h("a", { href: address("groups") }, "All groups"))];
  }
  const key = parts.join("/");
  if (player.key === key && document.querySelector(".player")) return null;  // it goes on while the recording grows
  stopPlaying();
  Object.assign(player, { key, panes: [], at: Math.max(0, Number(query.get("t")) || 0), length: 0 });
  const holder = h("div", { class: `player${members.length > 1 ? " two" : ""}` }, members.map(() => h("div", { class: "pane" }, empty("Loading…"))));
  Promise.all(members.map((m) => details(m.row))).then((groups) => {
    if (player.key !== key) return;
    player.panes = groups.map((group, i) => pane(holder.children[i], members[i], group.members[members[i].index]));
    player.length = Math.max(...player.panes.map((one) => one.turns));
    show(player.at);
  }).catch((problem) => clear(holder, empty(problem.message)));
  return [playHead(members), holder, controls(), members.length === 1 ? around(members[0]) : null];
}

function playHead(members) {
  const { row } = members[0];
  const at = queuedAt(members.map(refOf));
  const go = (step) => (at >= 0 && queued[at + step] ? playAddress(...queued[at + step]) : null);
  return h("div", { class: "play-head" },
    h("div", {}, h("a", { class: "back", href: backTo }, "← back"), h("h1", {}, `Task #${row.seed}`), h("p", { class: "muted" }, row.env)),
    at >= 0 ? h("div", { class: "steps" }, h("span", { class: "muted" }, `${count(at + 1)} of ${count(queued.length)}`),
      h("a", { class: "button", href: go(-1) || undefined, "aria-disabled": String(!go(-1)), title: "previous episode (k)" }, "↑ previous"),
      h("a", { class: "button", href: go(1) || undefined, "aria-disabled": String(!go(1)), title: "next episode (j)" }, "↓ next")) : null);
}

/** A pane of one episode; what is returned shows a turn. */
function pane(box, m, episode) {
  const row = m.row, turns = episode.turns;
  const stage = h("div", { class: "stage" });
  const strip = h("div", { class: "strip", role: "group", "aria-label": "Frames" });
  const list = h("ol", { class: "turns" });
  const note = h("p", { class: "token-note muted", "aria-live": "polite" });
  const versions = [...new Set(turns.map((turn) => turn.version))];
  const lines = turns.map((turn, index) => turnLine(turn, index, m, note));
  list.append(...lines.map((line) => line.element));
  const thumbs = turns.map((turn, index) => h("button", { class: "tick", onclick: () => show(index), "aria-label": `turn ${index + 1}`, title: `turn ${index + 1}` },
    turn.images.length ? h("img", { src: imageUrl(row, ...turn.images.at(-1)), alt: "", loading: "lazy" }) : h("span", {}, String(index + 1))));
  thumbs.push(h("button", { class: `tick end ${m.state}`, onclick: () => show(turns.length), "aria-label": "the end", title: "the end" }, m.state === "solved" ? "✓" : "✕"));
  strip.append(...thumbs);
  clear(box,
    h("div", {}, h("div", { class: "summary" },
      badge(m.state, m.state === "broken" ? "failed by the machinery" : m.state),
      fact("version", versions.length > 1 ? `${versions[0]}–${versions.at(-1)}` : String(versions[0] ?? row.version)),
      fact("suite", row.suite || "–"), row.members.length > 1 ? fact("member", `${m.index + 1} of ${row.members.length}`) : null,
      fact("return", plain(m.total)), row.suite !== TRAIN ? null : fact("advantage", m.advantage === null ? "–" : signed(m.advantage), m.advantage > 0 ? "up" : m.advantage < 0 ? "down" : ""),
      fact("turns", String(turns.length)), fact("tokens", count(m.tokens)), fact("stopped by", STOPS[m.stop] || m.stop),
      Object.entries(episode.metrics).slice(0, 6).map(([name, value]) => fact(name, plain(numeric(value))))),
    episode.error ? h("p", { class: "error" }, said(episode.error, 2000)) : null),
    h("div", { class: "play-grid" }, h("div", { class: "see" }, stage, strip),
      h("div", { class: "read" }, colouring(m, episode), turns.length ? list : empty("Not one turn was played."), note)));
  return {
    turns: turns.length,
    show(at) {
      const ended = at >= turns.length, index = Math.min(at, turns.length - 1), turn = turns[index];
      if (turn) showFrame(stage, row, turn, ended ? m : null, turns.length);
      else clear(stage, h("div", { class: "frame words" }, "no turn"));
      thumbs.forEach((thumb, i) => thumb.setAttribute("aria-current", String(i === Math.min(at, turns.length))));
      lines.forEach((line, i) => line.mark(i === index && !ended, ended));
      keepInView(strip, thumbs[Math.min(at, turns.length)], true);
      if (lines[index]) keepInView(list, lines[index].element, false);
    },
  };
}

function fact(name, value, state = "") {
  return h("span", { class: "fact" }, h("span", { class: "muted" }, name), h("b", { class: state }, value));
}

function showFrame(stage, row, turn, ended) {
  const pictures = turn.images.map((image) => h("img", { src: imageUrl(row, ...image), alt: "what the model saw", decoding: "sync" }));
  const content = pictures.length ? pictures : [h("pre", { class: "words" }, "this environment shows no picture")];
  stage.className = `stage${ended ? ` over ${ended.state}` : ""}`;
  clear(stage, h("div", { class: "frame" }, content),
    ended ? h("div", { class: "verdict" }, ended.state === "solved" ? `solved in ${plural(ended.turns, "turn")}` : `not solved: ${STOPS[ended.stop] || ended.stop}`) : null);
}

function keepInView(box, item, sideways) {
  if (!item) return;
  if (sideways) box.scrollLeft = item.offsetLeft - box.offsetLeft - box.clientWidth / 2 + item.offsetWidth / 2;
  else if (item.offsetTop - box.offsetTop < box.scrollTop || item.offsetTop - box.offsetTop + item.offsetHeight > box.scrollTop + box.clientHeight)
    box.scrollTop = item.offsetTop - box.offsetTop - box.clientHeight / 3;
}

function turnLine(turn, index, m, note) {
  const answer = h("div", { class: "answer" });
  const element = h("li", { class: "turn", onclick: () => show(index) },
    h("span", { class: "index" }, String(index + 1)),
    h("div", { class: "body" }, answer,
      turn.feedback ? h("div", { class: "feedback" }, h("bdi", {}, turn.feedback.slice(0, TEXT_MOST))) : null,
      h("div", { class: "marks" },
        turn.parsed ? null : badge("failed", "not understood"), turn.finish === "length" ? badge("broken", "cut at its length limit") : null)),
    h("span", { class: "reward" }, numeric(turn.reward) === 0 ? "" : signed(numeric(turn.reward))));
  let most = TOKENS_MOST;
  const fill = () => {
    const rows = turn.pieces.length ? tokens(turn, m, most, note) : [h("bdi", { class: "said" }, turn.text.slice(0, 7 * most) || "(nothing)")];
    const rest = turn.pieces.length ? turn.ids.length - most : turn.text.length - 7 * most;
    clear(answer, h("bdi", { class: "tokens", dir: "auto" }, rows),
      rest > 0 ? h("button", { class: "quiet more", onclick: (event) => { event.stopPropagation(); most *= 8; fill(); } },
        turn.pieces.length ? `${plural(rest, "more token")} …` : `${plural(rest, "more character")} …`) : null);
  };
  fill();
  return { element, mark(current, ended) { element.classList.toggle("current", current); element.classList.toggle("over", ended); if (current) element.setAttribute("aria-current", "step"); else element.removeAttribute("aria-current"); } };
}

function tokens(turn, m, most, note) {
  return turn.ids.slice(0, most).map((id, i) => {
    const logprob = numeric(turn.logprobs[i]), text = turn.pieces[i].slice(0, TEXT_MOST);
    const special = /^<\|.*\|>$/.test(text);
    const tell = () => clear(note, `token ${i + 1}: id ${id}, probability ${percent(Math.exp(logprob), 2)}, logprob ${plain(logprob, 3)}`);
    return h("span", { class: `token${special ? " special" : ""}`, onpointerenter: tell,
      style: { "--surprise": String(Math.min(1, -logprob / 3 || 0)), "--weight": String(Math.min(1, Math.abs(m.advantage || 0) / 1.5)) } },
      special ? text.replace(/^<\|(.*)\|>$/, "$1") : text);
  });
}

function colouring(m, episode) {
  const box = h("div", { class: "colouring" });
  const draw = () => {
    document.body.dataset.colour = player.mode;
    const sign = m.advantage > 0 ? "up" : m.advantage < 0 ? "down" : "none";
    box.closest(".pane")?.setAttribute("data-advantage", sign);
    const words = { logprob: ["how likely each token was", h("span", { class: "ramp" }), "certain → surprising"],
      advantage: [m.advantage === null ? "the learner did not learn from this episode" : `the learner ${m.advantage > 0 ? "made this likelier" : m.advantage < 0 ? "made this less likely" : "left this as it is"} (${signed(m.advantage)})`],
      plain: ["the answers alone"] }[player.mode];
    clear(box, segments("Colour tokens by", player.mode, [["logprob", "Logprob"], ["advantage", "Advantage"], ["plain", "Off"]], (mode) => setMode(mode)), h("span", { class: "muted legend-words" }, words));
  };
  player.redraw = [...(player.redraw || []), draw].slice(-2);
  queueMicrotask(draw);
  return box;
}

function setMode(mode) {
  player.mode = mode;
  (player.redraw || []).forEach((draw) => draw());
}

// -- moving ----------------------------------------------------------------------------------------------------------

function show(at) {
  player.at = Math.min(Math.max(0, at), player.length);
  player.panes.forEach((one) => one.show(player.at));
  const range = document.getElementById("scrub");
  if (range) { range.max = player.length; range.value = player.at; range.setAttribute("aria-valuetext", player.at === player.length ? "the end" : `turn ${player.at + 1} of ${player.length}`); }
  const place = document.getElementById("place");
  if (place) place.textContent = player.at === player.length ? `end of ${player.length}` : `turn ${player.at + 1} of ${player.length}`;
  const now = route();
  if (now.view === "play") history.replaceState(null, "", address("play", now.parts, player.at ? { t: player.at } : {}));
}

function controls() {
  return h("div", { class: "controls", role: "group", "aria-label": "Playback" },
    h("button", { id: "play", onclick: togglePlaying, "aria-label": "Play", title: "play or pause (space)" }, "▶"),
    h("button", { class: "quiet", onclick: () => show(player.at - 1), "aria-label": "Previous frame", title: "previous frame (←)" }, "◀"),
    h("input", { type: "range", id: "scrub", min: 0, max: 1, value: 0, "aria-label": "Turn", oninput: (event) => { stopPlaying(); show(Number(event.target.value)); } }),
    h("button", { class: "quiet", onclick: () => show(player.at + 1), "aria-label": "Next frame", title: "next frame (→)" }, "▶︎"),
    h("span", { id: "place", class: "muted", role: "status" }, ""));
}

function togglePlaying() {
  if (player.timer) return stopPlaying();
  if (player.at >= player.length) show(0);
  player.timer = setInterval(() => { show(player.at + 1); if (player.at >= player.length) stopPlaying(); }, FRAME_MS);
  drawPlaying();
}

function stopPlaying() {
  clearInterval(player.timer);
  player.timer = 0;
  drawPlaying();
}

function drawPlaying() {
  const button = document.getElementById("play");
  if (!button) return;
  button.textContent = player.timer ? "❚❚" : "▶";
  button.setAttribute("aria-label", player.timer ? "Pause" : "Play");
}

/** The group it belongs to, and the same task at other versions. */
function around(m) {
  const row = m.row;
  const same = store.rows.filter((other) => other.seed === row.seed && other.env === row.env).sort((a, b) => a.version - b.version || a.temperature - b.temperature);
  return h("div", { class: "around" },
    row.members.length > 1 ? h("section", {}, h("h2", {}, `Its group: ${row.solved} of ${row.members.length} solved`), h("div", { class: "tiles" }, row.members.map((one) => current(tile(one), one === m)))) : null,
    same.length > 1 ? h("section", {}, h("h2", {}, "This task over versions"), h("div", { class: "tiles" },
      same.map((other) => h("div", { class: "versioned" }, h("span", { class: "muted" }, `v${other.version} · ${other.temperature ? "sampled" : "greedy"}`), current(tile(other.members[0]), other === row),
        other === row ? null : h("a", { class: "quiet small", href: playAddress(...(other.version < row.version ? [other.members[0], m] : [m, other.members[0]])) }, "side by side"))))) : null);
}

function current(element, is) {
  if (is) element.setAttribute("aria-current", "true");
  return element;
}
