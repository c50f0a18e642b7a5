"""Figures of hand-made episodes, comparison of two, and the file that a later run reads."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from replicas import episode, turn

from tandem.envs import tasks
from tandem.types import DataCorrupt, StopReason, Trajectory, TrajectoryGroup, UserError
from tandem_controller.outcomes import (
    Evaluation,
    Paired,
    SuiteResult,
    as_json,
    compare,
    figures,
    paired_rows,
    read_evaluation,
    rows,
    suite_result,
)
from tandem_controller.suites import Suite

TINY, NIGHT = "maze2d:tiny", "maze2d:tiny?style=night"
SEEDS = tuple(tasks.seeds(TINY, "fixed", 4))


def result(
    *episodes: tuple[Trajectory, ...], env: str = TINY, name: str = "fixed64", sampled: bool = False
) -> SuiteResult:
    seeds = SEEDS[: len(episodes)]
    suite = Suite(name, env, seeds, 14, len(episodes[0]), float(sampled))
    groups = [TrajectoryGroup("g", env, s, 0, members, {}) for s, members in zip(seeds, episodes, strict=True)]
    return suite_result(suite, groups[::-1])


def evaluation(*results: SuiteResult, adapter: str = "a") -> Evaluation:
    return Evaluation(adapter, "/x", 3, 1, 1, 8, results)


def solves(pattern: str) -> SuiteResult:
    """One greedy episode a task: 1 solved, 0 not, x failed by the machinery."""
    broken = Trajectory(0, (), StopReason.ENGINE_ERROR, 0.0, error="gone")
    return result(*[(broken if mark == "x" else episode(0, mark == "1"),) for mark in pattern])


def test_figures_by_hand() -> None:
    garbled = Trajectory(0, (turn(), turn(parsed=False)), StopReason.CONTEXT_LIMIT, 0.0, metrics={"wall_hits": 1.0})
    broken = Trajectory(0, (), StopReason.ENV_ERROR, 0.0, error="gone")
    row = figures(
        [
            result(
                (episode(0, True, turns=4, shortest=3.0, wall_hits=1.0),),
                (episode(0, True, turns=2, shortest=2.0, wall_hits=0.0),),
                (garbled,),
                (broken,),
            )
        ]
    )
    assert (row.tasks, row.episodes, row.solved, row.rate) == (4, 4, 2, 0.5)
    assert (row.failed_episodes, row.context_limit) == (1, 1)
    assert row.mean_turns == 8 / 4
    assert row.path_optimality == pytest.approx((3 / 4 + 2 / 2) / 2)
    assert row.parse_failures == pytest.approx(1 / 8)
    assert row.wall_hits == pytest.approx(2 / 8)
    assert row.pass_at == {}


def test_an_environment_without_oracle_and_walls_has_no_such_figures() -> None:
    row = figures([result((episode(0, True),))])
    assert (row.path_optimality, row.wall_hits) == (None, None)


def test_success_is_the_task_reward_never_the_shaped_one() -> None:
    shaped = Trajectory(0, (turn(0.9), turn(0.9)), StopReason.TURN_LIMIT, task_reward=0.0)
    assert figures([result((shaped,))]).solved == 0


def test_pass_at_k_is_the_mean_over_tasks() -> None:
    sampled = result(
        tuple(episode(i, i < 2) for i in range(4)), tuple(episode(i, False) for i in range(4)), sampled=True
    )
    # 2 of 4 and 0 of 4: pass@1 (1/2 + 0) / 2, pass@2 (5/6 + 0) / 2, pass@4 (1 + 0) / 2
    assert figures([sampled]).pass_at == pytest.approx({1: 1 / 4, 2: 5 / 12, 4: 1 / 2})


def test_a_maze_in_two_looks_is_one_task() -> None:
    plain, night = solves("1100"), result(*[(episode(0, solved),) for solved in (True, True, False, False)], env=NIGHT)
    both = figures([plain, night])
    assert (both.tasks, both.episodes) == (4, 8)
    assert (both.low, both.high) == pytest.approx((figures([plain]).low, figures([plain]).high))


def test_a_suite_of_several_environments_has_a_row_of_its_own_first() -> None:
    ids = [f"{TINY}?style={style}" for style in ("night", "garden")]
    found = rows([solves("11"), *(result((episode(0, True),), env=env, name="styles") for env in ids)])
    assert [(suite.name, suite.env, row.episodes) for suite, row in found] == [
        ("fixed64", TINY, 2),
        ("styles", "", 2),
        ("styles", ids[0], 1),
        ("styles", ids[1], 1),
    ]


def test_two_adapters_are_compared_task_by_task() -> None:
    pair = compare(solves("1100"), solves("1010"))
    assert pair == Paired(both=1, only_first=1, only_second=1, neither=1, left_out=0, p_value=1.0)
    # what the machinery failed says nothing of either; 2 to none: p = 2/4
    assert compare(solves("110x"), solves("000x")) == Paired(0, 2, 0, 1, 1, 0.5)
    with pytest.raises(UserError, match="not the same tasks"):
        compare(solves("11"), solves("110"))
    assert paired_rows(evaluation(solves("11")), evaluation(solves("01")))[0]["only_first"] == 1


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    whole = evaluation(solves("10x1"), result(tuple(episode(i, True, shortest=1.0) for i in range(2)), sampled=True))
    path = tmp_path / "eval.json"
    path.write_text(json.dumps(as_json(whole)))
    assert read_evaluation(path) == whole
    assert json.loads(path.read_text())["figures"][0]["rate"] == 0.5


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"fixed greedy": {"rate": 1}}'])
def test_another_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "eval.json"
    path.write_text(text)
    with pytest.raises(DataCorrupt, match=r"eval\.json: not an evaluation"):
        read_evaluation(path)


def test_results_of_another_order_of_seeds_do_not_pass_as_the_same() -> None:
    first = solves("10")
    turned = replace(first, suite=replace(first.suite, seeds=first.suite.seeds[::-1]))
    with pytest.raises(UserError):
        compare(first, turned)
