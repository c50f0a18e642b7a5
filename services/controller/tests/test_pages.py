"""The report for people, made from a run's folder: of runs that finished, go on, were killed, or are old."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from control_runs import STATUS
from test_report import evaluation

from tandem.config import Config, dump_yaml
from tandem.types import Problem, UserError
from tandem_controller.curves import Chart, Series, charts, svg, thinned
from tandem_controller.machine import given, machine
from tandem_controller.outcomes import as_json
from tandem_controller.pages import HTML, MARKDOWN, as_html, as_markdown, report
from tandem_controller.run_dir import RunDir, write_json, write_text
from tandem_controller.sessions import FINISHED, SESSIONS_FILE, Began, read_sessions, session
from tandem_controller.summary import gather

EVIL = "<script>alert('x')</script> **b** | `c` [l](javascript:x)"
BEGAN = Began(
    at=1_000_000.0,
    version=0,
    command="tandem train deploy/recipes/r.yaml 'run.name=a b'",
    folder="/home/me/my work",
    code="0.1.0+" + "ab" * 20 + "-dirty",
    gpus=2,
    machine={"cpu": EVIL},
    changed=("run.steps: 100 -> 4",),
)


def row(version: int, **more: object) -> dict:
    return {
        "version": version,
        "time": 1_000_000.0 + 900 * version,
        "rollout/solve_rate": version / 4,
        "rollout/return_mean": version / 8,
        "rollout/episodes": 8,
        "rollout/turns": 40,
        "rollout/stop/turn_limit": 6,
        "rollout/stop/engine_error": 2,
        "rollout/failed_episodes": 2,
        "entropy": 0.5,
        "seconds/generate": 3.0 * version,
        "seconds/train": 1.0,
        "seconds/train/pack": 0.5,
        **more,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run of four steps, in which somebody died, that finished."""
    config = Config.model_validate({"model": {"path": "m"}, "run": {"name": "maze", "steps": 4}})
    write_text(tmp_path / "config.yaml", dump_yaml(config))
    write_json(tmp_path / "run.json", {"run_id": "0123abcd", "code": "1"})
    for version in range(1, 5):
        RunDir(tmp_path).log(row(version))
    write_json(tmp_path / "eval-before.json", as_json(evaluation(0, False)))
    write_json(tmp_path / "eval-after.json", as_json(evaluation(4, True)))
    with session(tmp_path, BEGAN) as told:
        told.version, told.how, told.seconds = 4, FINISHED, {"start": 30.0, "training": 28.0}
        told.recoveries = (replace(STATUS.recoveries[0], action=EVIL),)
        told.problems = (Problem(1_000_001.0, EVIL),)
    return tmp_path


class Page(HTMLParser):
    """The words of a page, by tag, and what it would fetch."""

    VOID = ("meta", "line", "polyline")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[tuple[str, str]] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append((self.open[-1], data.strip()))


def test_a_finished_run_is_told_whole(folder: Path) -> None:
    report(folder)
    text = (folder / MARKDOWN).read_text()
    assert text.startswith("# maze\n\nfinished: 4 of 4 steps\n\n## Solve rate\n")
    assert "| fixed64 greedy | 0.0% [0.0, 56.1] | 100.0% [43.9, 100.0] | 0.25 |" in text
    assert "| Solve rate: training tasks, sampled | 0.25 | 1 | 0.25 | 1 | ▁▃▆█ |" in text
    assert "| Solve rate: fixed set, greedy | 0 | 1 | 0 | 1 | ▁█ |" in text
    assert "| generate | 30.0 | 88.2% | 9.000 | 3.000 |\n| train | 4.0 | 11.8% | 1.000 | 1.000 |" in text
    assert "8 of 32 episodes failed in engine or environment." in text and "turn limit 24, engine error 8." in text
    assert "rollout 1 \\(generation" not in text and "rollout 1 (generation 2) on node-2: killed by SIGKILL" in text
    assert "cd '/home/me/my work'\ngit checkout " + "ab" * 20 + "  # with changes that were not committed\n" in text
    assert "tandem train deploy/recipes/r.yaml 'run.name=a b'\n" in text and "- run.steps: 100 -\\> 4\n" in text
    page = Page((folder / HTML).read_text())
    assert page.open == [] and page.fetched == [] and page.tags.count("svg") == 5
    headings = [words for tag, words in page.words if tag == "h2"]
    assert headings[:5] == ["Solve rate", "Curves", "Phase times", "Cost", "Failures"] and len(headings) == 8
    assert ("td", "100.0% [43.9, 100.0]") in page.words
    assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]


def test_what_others_wrote_is_shown_not_obeyed(folder: Path) -> None:
    run = gather(folder)
    html, text = as_html(run), as_markdown(run)
    page = Page(html)
    assert "script" not in page.tags and "b" not in page.tags
    assert sum(words.endswith(EVIL) for _, words in page.words) == 3, "as it is, in the machine, a death and a warning"
    assert text.count("\\<script\\>") == 3 and "<script>" not in text and not re.search(r"(?<!\\)\[l", text)


def test_how_long_and_how_dear(folder: Path) -> None:
    lines = (folder / SESSIONS_FILE).read_text().splitlines()
    ended = json.loads(lines[1])
    ended["ended"]["at"] = BEGAN.at + 3600
    killed = json.dumps({"began": {**json.loads(lines[0])["began"], "at": BEGAN.at + 4000, "version": 4}})
    (folder / SESSIONS_FILE).write_text("\n".join([lines[0], json.dumps(ended), "{cut sh", killed]))
    RunDir(folder).log(row(5) | {"time": BEGAN.at + 4000 + 1800})
    run = gather(folder)
    assert run.held == (3600.0, 1800.0) and run.cost and (run.cost.hours, run.cost.gpu_hours) == (1.5, 3.0)
    assert run.state == "ended without a word: 5 of 4 steps"
    assert run.cost.money is None, "the recipe has no prices"
    (folder / "config.yaml").open("a").write("cost: {per_gpu_hour: 2, currency: EUR}\n")
    assert "1.5 hours at work, 3 GPU-hours, 6.00 EUR." in as_markdown(gather(folder))
    assert "1.5 hours at work, 3 GPU-hours." in as_markdown(run) and "not ended, or killed" in as_markdown(run)


def test_a_failure_says_why(folder: Path) -> None:
    with pytest.raises(UserError), session(folder, BEGAN) as told:
        told.version = 2
        raise UserError("the store is\nfull")
    assert [item.ended.how for item in read_sessions(folder) if item.ended] == ["finished", "failed"]
    assert gather(folder).state == "failed: 4 of 4 steps; UserError: the store is full"
    with pytest.raises(KeyboardInterrupt), session(folder, BEGAN):
        raise KeyboardInterrupt  # the second Ctrl-C
    assert gather(folder).state == "stopped: 4 of 4 steps; ended at once, by hand"


def test_of_old_and_damaged_runs_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        report(tmp_path)
    write_text(tmp_path / "config.yaml", "model: {path: m}\nno_such_section: 1\n")
    run = gather(tmp_path)
    assert (run.version, run.charts, run.suites, run.cost) == (0, (), (), None)
    assert "of another version" in as_markdown(run) and Page(as_html(run)).open == []
    figures = {"suite": "fixed greedy", "rate": 0.5, "low": 0.25, "high": 0.75}
    write_json(tmp_path / "report.json", {"run": "x", "before": {"fixed greedy": figures}, "seconds": {"start": 1.0}})
    write_text(tmp_path / "metrics.jsonl", json.dumps(row(1, loss=None)) + "\nno json\n")
    run = gather(tmp_path)
    assert "| fixed greedy | 50.0% [25.0, 75.0] |  |  |" in as_markdown(run) and "no JSON" in run.problems[1]
    assert run.state == "finished: 0 steps"


def test_curves_of_any_figures_can_be_drawn() -> None:
    for values in ([0.0], [0.0, 0.0], [1e18, 1e18 + 1], [-1e-30, 1e-30], [1.0] * 999, [-3.0, 5e9]):
        drawn = svg(Chart("a<b", (Series("s", tuple((float(x), y) for x, y in enumerate(values))),)))
        numbers = [float(number) for number in re.findall(r"-?[\d.]+(?=[, \"])", drawn.partition("<polyline")[2])]
        assert numbers and all(math.isfinite(number) and -1 <= number <= 530 for number in numbers)
        assert "a&lt;b" in drawn and "nan" not in drawn
    assert thinned([(float(x), float(x)) for x in range(10)], 5) == [(0.5 + 2 * x, 0.5 + 2 * x) for x in range(5)]
    assert charts([{"version": 1, "loss": float("nan")}, {"version": 2, "loss": None}]) == ()


def test_how_a_run_was_asked_for(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model: {path: m}\nrun: {steps: 7}\n")
    config = Config.model_validate({"model": {"path": "m"}, "run": {"steps": 9}})
    asked = given("train", recipe, ["run.steps=9", "--resume"], config)
    assert asked.command == f"tandem train {recipe} run.steps=9 --resume" and asked.changed == ("run.steps: 7 -> 9",)
    recipe.write_text("run: {steps: 7}\n")
    assert given("sft", recipe, ["model.path=m"], config).changed == ("model.path=m",)
    assert {"host", "system", "cpu", "memory", "python", "torch"} <= machine().keys()
