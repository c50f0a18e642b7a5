"""Which groups and trajectories are learned from."""

from tandem.algo import select_groups, valid_members
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
    assert metrics["groups_used"] == 1
    assert metrics["groups_dropped"] == 3


def test_groups_without_signal_stay_if_asked_but_not_without_a_valid_member() -> None:
    kept, _ = select_groups([EQUAL, VARIED, FAILED, LOST], drop_zero_variance=False)
    assert kept == (EQUAL, VARIED, FAILED)


def test_figures_leave_failed_trajectories_out() -> None:
    metrics = select_groups([VARIED, EQUAL, FAILED], drop_zero_variance=True)[1]
    assert metrics["trajectories"] == 6
    assert metrics["trajectories_failed"] == 1
    assert metrics["solve_rate"] == 1 / 5  # by task reward, not by return
    assert metrics["return_mean"] == (1.0 + 0.0 + 0.5 + 0.5 + 1.0) / 5


def test_valid_members() -> None:
    assert [t.member for t in valid_members(FAILED)] == [0]
    assert valid_members(LOST) == ()
    limits = _group("limits", _trajectory(0, 0, StopReason.TURN_LIMIT), _trajectory(1, 0, StopReason.CONTEXT_LIMIT))
    assert len(valid_members(limits)) == 2  # what the policy did is data, whatever came of it
