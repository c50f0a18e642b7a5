"""The page in a real browser: what it shows, and that whatever models write stays text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from view_recordings import BACKWARDS, HOSTILE, Run, Said, group, learned_run, maze, mixed
from view_serving import SHOTS

from tandem_viewer.export import write_export
from tandem_viewer.library import Library

Look = Callable[..., Any]
Serve = Callable[..., str]


def shot(page: Any, name: str) -> None:
    page.screenshot(path=SHOTS / f"{name}.png")


def words(page: Any, selector: str) -> list[str]:
    return [" ".join(text.split()) for text in page.locator(selector).all_inner_texts()]


def test_overview_says_what_was_learned_and_goes_to_a_version(url: str, look: Look) -> None:
    page = look(url)
    page.wait_for_selector(".chart svg")
    figures = words(page, ".figure")
    assert figures[0] == "fixed64, greedy 50.0% +16.7 points since version 0"
    assert figures[-1] == "episodes recorded 50 22 groups, 4 versions"
    assert words(page, "tbody th a") == ["training, sampled", "fixed64, greedy"]
    shot(page, "overview")
    page.focus(".chart")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("text=Version 0: most telling groups")
    assert page.evaluate("location.hash") == "#/overview?v=0"
    page.reload()
    page.wait_for_selector("text=Version 0: most telling groups")


def test_groups_are_filtered_sorted_and_found_by_seed(url: str, look: Look) -> None:
    page = look(url + "#/groups")
    page.wait_for_selector(".group")
    assert words(page, ".group .tally")[0] == "2/4", "those whose members differ most evenly come first"
    assert words(page, ".counts") == ["50 episodes in 22 groups"]
    page.click("text=Not understood")
    assert words(page, ".counts") == ["9 episodes, in 9 groups"]
    page.select_option("select >> nth=1", "1")
    assert words(page, ".counts") == ["3 episodes, in 3 groups"]
    page.goto(url + "#/groups?outcome=broken")
    page.wait_for_selector("text=1 episode, in 1 group")
    page.goto(url + "#/groups")
    page.keyboard.press("/")
    page.keyboard.type("4")
    page.wait_for_selector("text=2 episodes in 2 groups")
    assert words(page, ".group .seed") == ["#4", "#4"], "the same task at both versions"


def test_an_episode_is_played_with_the_keyboard(url: str, look: Look) -> None:
    page = look(url + "#/groups?q=100")
    page.wait_for_selector(".tile")
    shot(page, "groups")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".turn.current")
    assert words(page, "#place") == ["turn 1 of 2"]
    assert page.locator(".stage img").evaluate("image => image.naturalWidth") == 48
    assert words(page, ".summary .badge") == ["solved"] and "advantage +0.90" in words(page, ".summary")[0]
    surprise = [token.evaluate("t => getComputedStyle(t).backgroundColor") for token in page.locator(".token").all()]
    assert len(set(surprise)) > 1, "coloured by how likely each was"
    page.keyboard.press("ArrowRight")
    assert words(page, "#place") == ["turn 2 of 2"]
    page.locator(".token").nth(2).hover()
    assert words(page, ".token-note")[0].startswith("token 2: id 6, probability")
    shot(page, "player")
    page.keyboard.press("c")
    assert page.get_attribute("body", "data-colour") == "advantage"
    page.keyboard.press("End")
    assert words(page, ".verdict") == ["solved in 2 turns"]
    deep = page.url
    page.keyboard.press("j")
    page.wait_for_selector(".summary .badge.failed")
    page.keyboard.press(" ")
    page.wait_for_selector("#place:has-text('turn 2')")
    page.keyboard.press(" ")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open] kbd")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.wait_for_selector(".group")
    page.goto(deep)
    page.wait_for_selector(".verdict")


def test_two_versions_of_the_same_tasks_side_by_side(run: Run, serve: Serve, look: Look) -> None:
    url = serve(run.path, compare=0)
    page = look(url)
    page.wait_for_selector(".pair")
    assert [text.split(" of ")[0] for text in words(page, ".figure")[:4]] == [
        *("Newly solved 2", "Newly failed 1", "Failed by both 2", "Solved by both 1")
    ]
    assert words(page, "#pairs-gained .seed") == ["#2", "#4"] and words(page, "#pairs-lost .seed") == ["#6"]
    assert words(page, ".figure")[4].startswith("By chance 1.000")
    shot(page, "compare")
    page.click("#pairs-gained .pair")
    page.wait_for_selector(".pane:nth-child(2) .turn.current")
    assert words(page, ".summary .badge") == ["failed", "solved"]
    page.keyboard.press("End")
    assert words(page, ".verdict") == ["not solved: turn limit", "solved in 2 turns"]
    shot(page, "side-by-side")


def test_failures_are_told_in_clusters(url: str, look: Look) -> None:
    page = look(url + "#/failures?kind=train")
    page.wait_for_selector(".cluster")
    told = words(page, ".digest .panel")
    assert "turn limit" in told[0] and "environment error" in told[0]
    assert "Wrong first answers" in told[1] and "up 9 100% of 9 begun so fail" in told[1]
    assert HOSTILE[:30] in told[2]
    assert "every answer 9" in told[3]
    shot(page, "failures")


def test_what_a_model_writes_stays_text_however_long_and_whatever_way_it_runs(
    tmp_path: Path, serve: Serve, look: Look
) -> None:
    run = Run(tmp_path)
    long = HOSTILE + " word" * 200_000
    run.step(0, [group(1, 0, [Said([HOSTILE], False), Said([BACKWARDS], False), Said([long], False, parsed=False)])])
    url = serve(tmp_path)
    page = look(url + "#/groups")
    page.click(".tile >> nth=0")
    page.wait_for_selector(".turn")
    assert HOSTILE in words(page, ".tokens")[0]
    shot(page, "hostile")
    page.keyboard.press("j")
    page.wait_for_selector(".tokens:has-text('reversed')")
    assert page.locator(".tokens").evaluate("e => getComputedStyle(e).unicodeBidi") == "isolate"
    page.keyboard.press("j")
    page.wait_for_selector(".answer button.more")
    assert page.locator(".token").count() == 600, "the rest when somebody asks"
    page.click(".answer button.more")
    assert page.locator(".token").count() == 4800
    assert page.evaluate("window.hacked") is None
    page.goto(url + "#/failures")
    page.wait_for_selector(".cluster")
    assert page.evaluate("[window.hacked, document.scripts.length]") == [None, 9]


def test_a_phone_and_the_dark(url: str, look: Look) -> None:
    for name, hash_ in (("overview", ""), ("groups", "#/groups"), ("failures", "#/failures"), ("compare", "#/compare")):
        page = look(url + hash_, 390, 844, "dark")
        page.wait_for_selector("main > *")
        page.wait_for_selector(".chart svg, .tile")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, f"{name} is wider than a phone"
        shot(page, f"phone-{name}")
    page.click(".pair")
    page.wait_for_selector(".turn")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    light = look(url, 390, 844).evaluate("getComputedStyle(document.body).backgroundColor")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_it_grows_while_the_run_goes_on(tmp_path: Path, serve: Serve, look: Look) -> None:
    run = learned_run(tmp_path)
    url = serve(tmp_path)
    page = look(url)
    page.wait_for_selector("text=22 groups, 4 versions")
    assert words(page, "#live") == ["live"]
    run.step(4, [mixed(150, 4)])
    page.wait_for_selector("text=23 groups, 5 versions")
    run.writer.go_back(2)  # it was killed, and goes on from there
    run.evaluation(2, [maze(seed, 2, True) for seed in range(1, 7)])
    page.wait_for_selector("text=18 groups, 3 versions")
    shot(page, "live")
    assert words(page, ".figure")[0].startswith("fixed64, greedy 100.0%")


def test_an_exported_file_is_all_there_is(run: Run, tmp_path: Path, look: Look) -> None:
    told = write_export(Library(run.path), tmp_path / "run.html", 2_000_000, compare=0)
    assert told[0].endswith("50 of 50 episodes can be played in it")
    page = look((tmp_path / "run.html").as_uri())
    page.wait_for_selector(".pair")
    page.click("#pairs-gained .pair")
    page.wait_for_selector(".turn.current")
    assert page.locator(".stage img >> nth=0").evaluate("image => image.naturalWidth") == 48
    assert words(page, "#live") == ["exported"]
    shot(page, "exported")


def test_an_export_with_little_room_says_what_it_left_out(tmp_path: Path, look: Look) -> None:
    run = Run(tmp_path / "run")
    for version in range(40):
        run.step(version, [mixed(1000 + 10 * version + n, version) for n in range(8)])
    size = 260_000
    told = write_export(Library(run.path), tmp_path / "run.html", size)
    assert (tmp_path / "run.html").stat().st_size <= size
    assert " of 1,280 episodes can be played in it" in told[0] and not told[0].endswith("1,280 of 1,280")
    page = look((tmp_path / "run.html").as_uri())
    page.wait_for_selector(".chart svg")
    assert words(page, "#notice")[0].startswith("Of 1,280 episodes, ")
    page.click(".tile")
    page.wait_for_selector(".turn")
