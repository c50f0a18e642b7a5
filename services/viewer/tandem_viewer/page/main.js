"use strict";
// Views by address, keys, and what is new every few seconds.

const VIEWS = {
  overview: ["Overview", overview], groups: ["Groups", groupsView], failures: ["Failures", failuresView], compare: ["Compare", compareView], play: [null, playView],
};
const KEYS = [
  ["j k", "next, previous episode or group"], ["← →", "frame by frame"], ["Home End", "first frame, the end"], ["space", "play or pause"], ["c", "colour by logprob, by advantage, not at all"],
  ["Esc", "back from an episode"], ["1 2 3 4", "the views"], ["/", "find a seed"], ["?", "these keys"],
];
const POLL_MS = 2000;
let seen = "", backTo = "#/overview";

function render() {
  const now = route(), [, view] = VIEWS[now.view] || VIEWS.overview;
  if (now.view !== "play") { stopPlaying(); player.key = ""; backTo = location.hash || "#/overview"; }
  const main = document.getElementById("main"), fresh = seen !== now.view + (now.view === "play" ? now.parts.join() : "");
  const { id: focused, selectionStart: caret } = document.activeElement || {}, link = document.activeElement?.getAttribute("href");
  const content = store.facts ? view(now) : [empty("Loading…")];
  if (content) clear(main, content);
  main.dataset.view = now.view;
  seen = now.view + (now.view === "play" ? now.parts.join() : "");
  drawTabs(now.view);
  if (fresh) window.scrollTo(0, 0);
  if (focused === "search") { const field = document.getElementById("search"); field?.focus(); field?.setSelectionRange(caret, caret); }
  else if (link && !fresh) main.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus({ preventScroll: true });
}

function drawTabs(view) {
  const tabs = Object.entries(VIEWS).filter(([, [name]]) => name).map(([key, [name]]) => h("a", { href: address(key), "aria-current": key === view ? "page" : null }, name));
  clear(document.getElementById("tabs"), tabs);
}

function drawTop() {
  const { facts } = store, live = document.getElementById("live");
  document.getElementById("run").textContent = facts.name;
  document.title = `${facts.name} · Tandem`;
  const growing = !store.embedded && !facts.done && Date.now() / 1000 - Math.max(0, ...store.rows.slice(-1).map((row) => row.time)) < 300;
  live.className = store.problem ? "off" : growing ? "on" : "";
  live.textContent = store.embedded ? "exported" : store.problem ? "no connection" : growing ? "live" : "";
  const told = facts.export, notice = document.getElementById("notice");
  const words = [];
  if (told && told.playable < told.episodes) words.push(`Of ${count(told.episodes)} episodes, ${count(told.playable)} can be played in this file: evaluations of the first and last version and groups whose members differ, spread over versions.`);
  if (told && told.rows < told.groups) words.push(`Figures are of the newest ${count(told.rows)} of ${count(told.groups)} groups.`);
  if (facts.damaged) words.push(`${plural(facts.damaged, "line")} of the index could not be read and ${facts.damaged === 1 ? "is" : "are"} left out.`);
  notice.hidden = !words.length;
  notice.textContent = words.join(" ");
}

async function poll() {
  try {
    const before = store.problem;
    const changed = await refresh(() => { drawTop(); render(); });
    if (changed || before) { store.facts = await ask("facts"); store.problem = ""; drawTop(); if (route().view !== "play") render(); }
    else drawTop();
  } catch (problem) {
    store.problem = problem.message;
    drawTop();
  }
  setTimeout(poll, document.hidden ? 5 * POLL_MS : POLL_MS);
}

// -- keys ------------------------------------------------------------------------------------------------------------

function move(step) {
  const now = route();
  if (now.view === "play") {
    const at = queuedAt(now.parts), next = queued[at < 0 ? 0 : at + step];
    if (next) location.hash = playAddress(...next);
    return;
  }
  const cards = [...document.querySelectorAll(".tile[href], .pair[href]")], at = cards.indexOf(document.activeElement);
  const target = cards[at < 0 ? (step > 0 ? 0 : cards.length - 1) : Math.min(cards.length - 1, Math.max(0, at + step))];
  target?.focus();
  target?.scrollIntoView({ block: "nearest" });
}

function pressed(event) {
  if (event.metaKey || event.ctrlKey || event.altKey || document.getElementById("help").open) return;
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "range";
  if (typing) { if (event.key === "Escape") event.target.blur(); return; }
  const playing = route().view === "play";
  const action = {
    j: () => move(1), k: () => move(-1), "?": openHelp,
    "/": () => { const field = document.getElementById("search"); if (field) field.focus(); else { location.hash = address("groups"); setTimeout(() => document.getElementById("search")?.focus(), 50); } },
    1: () => { location.hash = address("overview"); }, 2: () => { location.hash = address("groups"); }, 3: () => { location.hash = address("failures"); }, 4: () => { location.hash = address("compare"); },
    ...(playing ? {
      ArrowLeft: () => { stopPlaying(); show(player.at - 1); }, ArrowRight: () => { stopPlaying(); show(player.at + 1); }, Home: () => show(0), End: () => show(player.length),
      " ": togglePlaying, Escape: () => { location.hash = backTo; }, c: () => setMode({ logprob: "advantage", advantage: "plain", plain: "logprob" }[player.mode]),
    } : {}),
  }[event.key];
  if (!action || (event.key === " " && event.target.tagName === "BUTTON" && event.target.id !== "play")) return;
  event.preventDefault();
  action();
}

function openHelp() {
  const help = document.getElementById("help");
  clear(help, h("h2", { id: "help-title" }, "Keys"), h("dl", {}, KEYS.map(([keys, what]) => h("div", {}, h("dt", {}, keys.split(" ").map((key) => h("kbd", {}, key))), h("dd", {}, what)))),
    h("form", { method: "dialog" }, h("button", { autofocus: true }, "Close")));
  help.showModal();
}

async function begin() {
  const data = document.getElementById("data");
  addEventListener("hashchange", render);
  addEventListener("keydown", pressed);
  document.getElementById("help-button").addEventListener("click", openHelp);
  try {
    if (data) await unpack(data);
    else { store.facts = await ask("facts"); await refresh(() => { drawTop(); render(); }); }
  } catch (problem) {
    store.problem = problem.message;
    clear(document.getElementById("main"), empty(problem.message, " Reload to try again."));
    return;
  }
  if (store.facts.compare !== null && !location.hash) history.replaceState(null, "", address("compare"));
  drawTop();
  render();
  if (!data) setTimeout(poll, POLL_MS);
}

begin();
