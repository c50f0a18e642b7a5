"""Which groups and trajectories are learned from."""

from dataclasses import replace

from tandem.algo import in_order, overlong, return_table, select_groups
from tandem.types import FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn


def _trajectory(member: int, reward: float, stop: StopReason = StopReason.TERMINATED, task: float = 0.0) -> Trajectory:
    turn = Turn((1,), (2,), (-0.5,), (), 0, "", "", reward, FinishReason.STOP)
    return Trajectory(member, (turn,), stop, task)


def _group(name: str, *trajectories: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(name, "maze2d:tiny", 0, 0, trajectories, {})


VARIED = _group("varied", _trajectory(0, 1.0, task=1.0), _trajectory(1, 0.0))
EQUAL = _group("equal", _trajectory(0, 0.5), _trajectory(1, 0.5))
FAILED = _group("failed", _trajectory(0, 1.0), _trajectory(1, 0.0, StopReason.ENGINE_ERROR))
LOST = _group("lost", _trajectory(0, 1.0, StopReason.DEADLINE), _trajectory(1, 0.0, StopReason.ENV_ERROR))


def test_groups_without_signal_are_dropped() -> None:
    kept, metrics = select_groups([EQUAL, VARIED, FAILED, LOST], drop_zero_variance=True)
    assert kept == (VARIED,)
    assert metrics == {"groups_used": 1, "groups_dropped": 3}


def test_groups_without_signal_stay_if_asked_but_not_without_a_valid_member() -> None:
    kept, _ = select_groups([EQUAL, VARIED, FAILED, LOST], drop_zero_variance=False)
    assert kept == (EQUAL, VARIED, FAILED)


def test_table_of_returns_says_who_counts() -> None:
    returns, valid = return_table([FAILED, _group("one", _trajectory(0, 0.25))])
    assert returns[0, 0] == 1.0
    assert returns[1, 0] == 0.25
    assert valid.tolist() == [[True, False], [True, False]]  # failed; not there
    assert return_table([])[0].shape == (0, 0)


def test_limits_of_length_are_overlong_and_the_turn_limit_is_not() -> None:
    cut = _trajectory(0, 0.0)
    cut = replace(cut, turns=(replace(cut.turns[0], finish=FinishReason.LENGTH), *cut.turns))
    assert overlong(cut)
    assert overlong(_trajectory(0, 0.0, StopReason.CONTEXT_LIMIT))
    assert not overlong(_trajectory(0, 0.0, StopReason.TURN_LIMIT))
    assert not overlong(_trajectory(0, 0.0))


def test_order_is_by_seed_then_member_however_they_came() -> None:
    groups = [replace(group, seed=seed) for seed, group in enumerate((VARIED, EQUAL, FAILED))]
    mixed = [replace(group, trajectories=group.trajectories[::-1]) for group in groups[::-1]]
    assert in_order(mixed) == tuple(groups)
