"""What a run's folder says of it, gathered for its report; of runs that go on, were cut off or old what there is."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.config import Config, CostConfig, load_recipe
from tandem.types import DataCorrupt, UserError
from tandem_controller.control import CONTROL_FILE, read_control
from tandem_controller.cost import price
from tandem_controller.curves import Chart, charts
from tandem_controller.outcomes import compare, read_evaluation
from tandem_controller.past import CONFIG_FILE, FACTS_FILE
from tandem_controller.phases import phases_of
from tandem_controller.run_dir import RunDir
from tandem_controller.sessions import Session, held_s, read_sessions
from tandem_controller.suites import FIXED, Suite
from tandem_controller.tables import label
from tandem_controller.telling import one_line

STOP = "rollout/stop/"
Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SuiteRow:
    """A suite before and after: each (rate, low, high), None where it was not played; McNemar's p where both were."""

    name: str
    before: tuple[float, float, float] | None
    after: tuple[float, float, float] | None
    p_value: float | None


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase of the steps: seconds in all, share of the steps' time, and of one step the median and the least."""

    name: str
    seconds: float
    share: float
    median: float
    floor: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Hours that the run was at work, times the GPUs it held, and their price, None where the recipe has none."""

    hours: float
    gpu_hours: float
    money: float | None
    currency: str


@dataclass(frozen=True, slots=True)
class Summary:
    """A run. `state` is how it stands, in a line; `outcomes` what its report.json says beside all this."""

    name: str
    run_id: str
    state: str
    rehearsal: bool
    version: int
    steps: int | None
    made: float
    charts: tuple[Chart, ...]
    suites: tuple[SuiteRow, ...]
    phases: tuple[PhaseRow, ...]
    outside: tuple[tuple[str, float], ...]  # seconds of the last session outside of steps: start, evaluations
    cost: Cost | None
    stops: tuple[tuple[str, int], ...]  # episodes by stop reason
    failed: int
    episodes: int
    sessions: tuple[Session, ...]
    held: tuple[float, ...]
    published: str
    problems: tuple[str, ...]  # in making this


def gather(folder: Path) -> Summary:
    """Read it all.

    Raises:
        UserError: there is no run.
    """
    if not (folder / CONFIG_FILE).exists():
        raise UserError(f"{folder} holds no run; name a run's folder, which is run.dir/run.name of its recipe")
    problems = list[str]()
    config = _config(folder, problems)
    rows = _rows(folder, problems)
    sessions = read_sessions(folder)
    report = _json(folder / "report.json")
    before, after = (_evaluated(folder, report, when) for when in ("before", "after"))
    version = max((row["version"] for row in rows), default=0)
    steps = config.run.steps if config else None
    held = tuple(held_s(sessions, rows[-1].get("time", 0.0) if rows else 0.0))
    return Summary(
        name=config.run.name if config else folder.name,
        run_id=str(_json(folder / FACTS_FILE).get("run_id", "")),
        state=_state(folder, sessions, version, steps, bool(report)),
        rehearsal=bool(config and config.rollout.engine.kind == "simulated"),
        version=version,
        steps=steps,
        made=time.time(),
        charts=charts(rows, _fixed(before), _fixed(after)),
        suites=_suites(before, after, _p_values(folder)),
        phases=phase_rows(rows),
        outside=_outside(sessions, report),
        cost=_cost(config, sessions, held),
        stops=_stops(rows),
        failed=sum(int(row.get("rollout/failed_episodes") or 0) for row in rows),
        episodes=sum(int(row.get("rollout/episodes") or row.get("data/episodes") or 0) for row in rows),
        sessions=sessions,
        held=held,
        published=str((report.get("published") or {}).get("url", "")),
        problems=tuple(problems),
    )


def phase_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[PhaseRow, ...]:
    """Where the steps' seconds went."""
    taken: dict[str, list[float]] = {}
    for row in rows:
        for name, seconds in phases_of(row).items():
            if isinstance(seconds, int | float):
                taken.setdefault(name, []).append(float(seconds))
    total = sum(map(sum, taken.values())) or 1.0
    return tuple(
        PhaseRow(name, sum(found), sum(found) / total, sorted(found)[len(found) // 2], min(found))
        for name, found in taken.items()
    )


def _config(folder: Path, problems: list[str]) -> Config | None:
    try:
        return load_recipe(folder / CONFIG_FILE)
    except UserError as problem:
        problems.append(one_line(f"config.yaml is of another version of Tandem: {problem}"))
        return None


def _rows(folder: Path, problems: list[str]) -> list[dict[str, Any]]:
    try:
        return RunDir(folder).rows()
    except DataCorrupt as problem:
        problems.append(one_line(str(problem)))
        return []


def _json(path: Path) -> dict[str, Any]:
    """What it holds; nothing where it is not there, or no JSON object."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _evaluated(folder: Path, report: Mapping[str, Any], when: str) -> list[dict[str, Any]]:
    """Figures by suite of an evaluation, as its own file or the report has them."""
    for found in (_json(folder / f"eval-{when}.json").get("figures"), report.get(when)):
        listed = list(found.values()) if isinstance(found, dict) else found
        good = [row for row in listed or [] if isinstance(row, dict) and {"suite", "rate", "low", "high"} <= row.keys()]
        if good:
            return good
    return []


def _fixed(found: Sequence[Figures]) -> float | None:
    return next((row["rate"] for row in found if row["suite"] == FIXED and not row.get("temperature")), None)


def _suites(before: Sequence[Figures], after: Sequence[Figures], p_values: Mapping[str, float]) -> tuple[SuiteRow, ...]:
    sides = [{_label(row): (row["rate"], row["low"], row["high"]) for row in side} for side in (before, after)]
    names = dict.fromkeys([*sides[1], *sides[0]])
    return tuple(SuiteRow(name, sides[0].get(name), sides[1].get(name), p_values.get(name)) for name in names)


def _label(row: Figures) -> str:
    suite = Suite(row["suite"], row.get("env", ""), (), 0, row.get("samples", 1), row.get("temperature", 0.0))
    return label(suite, alone=True) if "env" in row else str(row["suite"])


def _p_values(folder: Path) -> dict[str, float]:
    """McNemar's p of each suite that was played before and after, by its label."""
    try:
        before, after = (read_evaluation(folder / f"eval-{when}.json") for when in ("before", "after"))
        earlier = {result.suite: result for result in before.results}
        return {
            label(result.suite, alone=True): compare(earlier[result.suite], result).p_value
            for result in after.results
            if result.suite in earlier
        }
    except (OSError, DataCorrupt):
        return {}


def _state(folder: Path, sessions: Sequence[Session], version: int, steps: int | None, reported: bool) -> str:
    far = f"{version} of {steps} steps" if steps else f"{version} steps"
    last = sessions[-1].ended if sessions else None
    if last is not None:
        return f"{last.how}: {far}" + (f"; {last.why}" if last.why else "")
    if (folder / CONTROL_FILE).exists() and (control := read_control(folder)) and not control.dead:
        return f"running: {far}"
    return f"finished: {far}" if reported and not sessions else f"ended without a word: {far}"


def _outside(sessions: Sequence[Session], report: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    ended = next((item.ended for item in reversed(sessions) if item.ended), None)
    seconds = ended.seconds if ended else report.get("seconds") or {}
    return tuple((name, float(value)) for name, value in seconds.items() if not name.startswith("training"))


def _cost(config: Config | None, sessions: Sequence[Session], held: Sequence[float]) -> Cost | None:
    if not sessions:
        return None
    spans = [(item.began.gpus, seconds) for item, seconds in zip(sessions, held, strict=True)]
    gpu_hours = sum(gpus * seconds for gpus, seconds in spans) / 3600
    prices = config.cost if config else CostConfig()
    known = bool(prices.machines or prices.per_gpu_hour)
    money = sum(price(prices, seconds, gpus) for gpus, seconds in spans) if known else None
    return Cost(sum(held) / 3600, gpu_hours, money, prices.currency)


def _stops(rows: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, int], ...]:
    counts = Counter[str]()
    for row in rows:
        for name, count in row.items():
            if name.startswith(STOP):
                counts[name.removeprefix(STOP).replace("_", " ")] += int(count or 0)
    return tuple(counts.most_common())
