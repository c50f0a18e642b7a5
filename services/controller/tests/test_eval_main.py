"""What `tandem eval` is asked for, before anything starts, and what becomes of suites over real gRPC."""

from pathlib import Path

import pytest
from replicas import Replica, episode, fleet_of, lost
from rich.console import Console

from tandem.config import CheckpointConfig, Config
from tandem.storage import VersionStore
from tandem.storage.episodes import read_groups, write_groups
from tandem.types import AdapterRef, NotFound, PublishKind, StopReason, TandemError, UserError
from tandem_controller.eval_main import Request, resolve, run_evaluation, temperature
from tandem_controller.evaluate import EVAL_SEED, evaluate, fixed_greedy, headline
from tandem_controller.outcomes import compare, figures
from tandem_controller.past import Past
from tandem_controller.run_dir import open_run_dir, resolved
from tandem_controller.suites import plan, training_plan, with_samples
from tandem_controller.tables import print_evaluation, print_paired

BASE = AdapterRef(0, "", "", "the base model", "", 0)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return resolved(
        Config.model_validate(
            {
                "model": {"path": str(model)},
                "run": {"dir": str(tmp_path / "runs")},
                "env": {"window": 1},
                "eval": {"fixed": 6, "heldout": 4, "styles": 2, "larger": 2, "samples": 3},
            }
        )
    )


def play(request, seed: int):
    """Even seeds are solved, and all at temperature 1 by every second member."""
    return tuple(
        episode(member, seed % 2 == 0 or (request.sampling.temperature > 0 and member % 2 == 0), turns=2, shortest=1.0)
        for member in range(request.group_size)
    )


async def test_suites_are_played_as_they_say_and_recorded(config: Config, tmp_path: Path) -> None:
    replicas = Replica(play=play), Replica(play=play)
    suites = training_plan(config).suites
    async with fleet_of(*replicas) as fleet:
        found = await evaluate(fleet, config, BASE, suites, lambda _, groups: write_groups(tmp_path / "saved", groups))
        greedy = await fixed_greedy(fleet, config, 0, suites[0])
    assert [result.suite for result in found.results] == list(suites)
    for result in found.results:
        assert all(len(episodes) == result.suite.samples for episodes in result.episodes)
    first = headline(found.results)
    assert first is not None and first is found.results[0]
    assert figures([first]).rate == greedy == sum(seed % 2 == 0 for seed in suites[0].seeds) / 6
    sampled = next(r for r in found.results if r.suite.samples == 3)
    even = sum(seed % 2 == 0 for seed in sampled.suite.seeds)
    assert figures([sampled]).solved == even * 3 + (6 - even) * 2
    requests = [request for replica in replicas for request in replica.requests]
    assert {request.sampling_seed for request in requests} == {EVAL_SEED}
    assert {(request.env, request.max_turns) for request in requests} == {(s.env, s.max_turns) for s in suites}
    recorded = list(read_groups(tmp_path / "saved"))
    assert [(g.env, g.seed) for g in recorded] == [(suite.env, seed) for suite in suites for seed in suite.seeds]


async def test_a_suite_without_a_playable_episode_has_no_figure(config: Config) -> None:
    broken = Replica(play=lambda request, seed: (lost(0, StopReason.ENGINE_ERROR, "engine gone"),))
    async with fleet_of(broken) as fleet:
        with pytest.raises(TandemError, match=r"heldout of maze2d:tiny: not one of 4 .* this: engine gone"):
            await evaluate(fleet, config, BASE, plan(config, ["heldout"]).suites)
        with pytest.raises(TandemError, match=r"fixed64 of maze2d:tiny: not one of 6"):
            await fixed_greedy(fleet, config, 0, plan(config, ["fixed64"]).suites[0])


async def test_tables_fit_a_terminal_and_say_what_failed(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    suites = plan(config).suites
    sampled = [with_samples(suite, 3, 1.0) for suite in suites]
    async with fleet_of(Replica(play=play)) as fleet:
        first, second = [await evaluate(fleet, config, BASE, wanted) for wanted in (suites, sampled)]
    console = Console(width=80)
    for evaluation in (first, second):
        print_evaluation(console, "of it", evaluation)
    print_paired(console, first, first)
    shown = capsys.readouterr().out
    assert "…" not in shown
    for name in ("fixed64 greedy", "styles greedy", "style=night", "larger 3x at T=1", "pass@3", "only first"):
        assert name in shown
    with pytest.raises(UserError, match="not the same tasks"):
        compare(first.results[0], second.results[0])


def test_adapters_by_version_by_name_and_by_folder(config: Config) -> None:
    store = VersionStore(config.checkpoint.url)
    files = {"adapter_config.json": [b"{}"], "adapter_model.safetensors": [b"weights"]}
    four, seven = (store.commit(PublishKind.ADAPTER, version, "abc", files, {}) for version in (4, 7))
    assert resolve(config, "4") == resolve(config, four.url) == four
    assert resolve(config, "latest") == seven
    assert resolve(config, "none").version == 0
    with pytest.raises(NotFound, match="no adapter of version 5; there are: 4, 7"):
        resolve(config, "5")
    state = store.commit(PublishKind.STATE, 4, "abc", {"training_state.safetensors": [b"moments"]}, {})
    with pytest.raises(UserError, match="holds a published state"):
        resolve(config, state.url)


def test_a_run_that_is_not_there_is_named_with_those_that_are(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"runs holds no run named run; it holds: none; "):
        resolve(config, "latest")
    for name in "abcdefg":
        open_run_dir(tmp_path / "runs" / name, config, Past())
    for wanted in ("latest", "3"):
        with pytest.raises(UserError, match=r"no run named run; it holds: (\w, ){4}\w and 2 more; check run\.name"):
            resolve(config, wanted)
    elsewhere = config.model_copy(update={"checkpoint": CheckpointConfig(url=str(tmp_path / "store"))})
    with pytest.raises(NotFound, match="no adapter is published"):
        resolve(elsewhere, "latest")


def test_an_adapter_is_not_compared_with_itself(config: Config) -> None:
    store = VersionStore(config.checkpoint.url)
    files = {"adapter_config.json": [b"{}"], "adapter_model.safetensors": [b"weights"]}
    four = store.commit(PublishKind.ADAPTER, 4, "abc", files, {})
    for pair in (("none", "none"), ("latest", "4"), ("4", four.url)):
        with pytest.raises(UserError, match=f"--adapter {pair[0]} and --against {pair[1]} are the same: "):
            run_evaluation(config, Request(*pair), Console())


def test_one_episode_is_greedy_and_several_are_sampled() -> None:
    assert [temperature(Request(samples=n, temperature=t)) for n, t in ((1, None), (4, None), (4, 0.7), (1, 1.0))] == [
        0.0,
        1.0,
        0.7,
        1.0,
    ]
    with pytest.raises(UserError, match="greedy episodes of a task are all the same"):
        temperature(Request(samples=2, temperature=0.0))


def test_what_cannot_be_written_is_refused_before_anything_starts(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its folder is not there"):
        run_evaluation(config, Request(json_file=tmp_path / "no/x.json"), Console())
    with pytest.raises(UserError, match="is a folder; name a file"):
        run_evaluation(config, Request(json_file=tmp_path), Console())
    with pytest.raises(UserError, match="is a file; name a folder"):
        run_evaluation(config, Request(save=tmp_path / "model/config.json"), Console())
    write_groups(tmp_path / "saved/against", [])
    assert (tmp_path / "saved/against/index.jsonl").exists()
    files = {"adapter_config.json": [b"{}"], "adapter_model.safetensors": [b"weights"]}
    VersionStore(config.checkpoint.url).commit(PublishKind.ADAPTER, 4, "abc", files, {})
    with pytest.raises(UserError, match="holds episodes already"):
        run_evaluation(config, Request("latest", against="none", save=tmp_path / "saved"), Console())
