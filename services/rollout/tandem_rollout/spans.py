"""What a rollout is in a trace: group -> episode -> turn -> the model's completion, the environment's step.

Of a share of groups, by seed, episodes are told turn by turn; see `obs.trace_sample` in the config.
"""

from __future__ import annotations

from tandem.obs import span
from tandem.obs.tracing import Span, sampled
from tandem.types import RolloutTask, Trajectory, TrajectoryGroup
from tandem_rollout.engine import Completion, Request


def of_group(task: RolloutTask, seed: int) -> Span:
    """All episodes of one task seed."""
    about = {"rl.seed": seed, "rl.group.size": task.group_size, "rl.env": task.env}
    return span("group", {**about, "rl.policy_version": task.policy_version})


def tell_group(at: Span, group: TrajectoryGroup) -> TrajectoryGroup:
    """What came of it; the group."""
    returns = [trajectory.total_return for trajectory in group.valid_members]
    at.set(
        {
            "rl.group.id": group.group_id,
            "rl.solve_rate": sum(t.solved for t in group.trajectories) / max(1, len(group.trajectories)),
            "rl.reward.mean": sum(returns) / max(1, len(returns)),
            "rl.episodes.failed": sum(t.stop_reason.failed for t in group.trajectories),
        }
    )
    return group


class EpisodeSpans:
    """The spans of one episode."""

    __slots__ = ("_about", "_model", "_name", "_on", "_sampling")

    def __init__(self, task: RolloutTask, seed: int, member: int, model: str) -> None:
        """`model` is the base model's name."""
        self._on = sampled(seed)
        self._about = {"rl.seed": seed, "rl.episode.member": member, "rl.env": task.env}
        self._name, self._model, self._sampling = f"chat {model}", model, task.sampling

    def episode(self) -> Span:
        """From its seat to its end."""
        return span("episode", self._about, on=self._on)

    def tell(self, at: Span, trajectory: Trajectory) -> Trajectory:
        """What came of it, one that failed being in error; the trajectory."""
        stop = trajectory.stop_reason
        at.set(
            {
                "rl.turns": len(trajectory.turns),
                "rl.reward": trajectory.total_return,
                "rl.solved": trajectory.solved,
                "rl.stop_reason": str(stop),
            }
        )
        if stop.failed:
            at.failed(trajectory.error, str(stop))
        return trajectory

    def reset(self) -> Span:
        """The environment's start."""
        return span("env reset", on=self._on)

    def turn(self, number: int) -> Span:
        """One completion and the environment's reply, counted from 0."""
        return span("turn", {"rl.turn": number}, on=self._on)

    def completion(self, request: Request) -> Span:
        """One request of the engine, by OpenTelemetry's conventions for generative models."""
        if not self._on:
            return span(self._name, on=False)
        about = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "tandem",
            "gen_ai.request.model": self._model,
            "gen_ai.request.max_tokens": self._sampling.max_tokens,
            "gen_ai.request.temperature": self._sampling.temperature,
            "gen_ai.request.seed": request.seed,
        }
        return span(self._name, about)

    def tell_completion(self, at: Span, completion: Completion) -> Completion:
        """What came of it; the completion."""
        at.set(
            {
                "gen_ai.usage.input_tokens": len(completion.prompt_ids),
                "gen_ai.usage.output_tokens": len(completion.completion_ids),
                "gen_ai.response.finish_reasons": [str(completion.finish)],
                "rl.policy_version": completion.policy_version,
            }
        )
        return completion

    def step(self) -> Span:
        """The environment's part of a turn."""
        return span("env step", on=self._on)
