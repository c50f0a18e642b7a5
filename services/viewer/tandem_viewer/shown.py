"""Groups as the page takes them: JSON of rows, and of one group with its turns. What is no finite number is text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tandem.storage.episode_index import Entry, Member
from tandem.storage.episode_lines import GroupLine, TrajectoryLine, TurnLine


def row(source: int, entry: Entry) -> list[Any]:
    """A group of the index: as short as can be, for there may be 100,000."""
    label = entry.label
    head = (source, entry.part, entry.at, entry.env, entry.seed, label.suite, label.version, label.temperature)
    return [*head, round(entry.time, 1), int(entry.gone), entry.id, [_member(member) for member in entry.members]]


def _member(member: Member) -> list[Any]:
    return [number(value) if isinstance(value, float) else value for value in member]


def number(value: float) -> float | str:
    """A number, or JavaScript's name of one that JSON has none for."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def group(entry: Entry, line: GroupLine) -> dict[str, Any]:
    """A group with all its turns but their prompts' ids."""
    return {
        "id": line.group_id,
        "env": line.env,
        "seed": line.seed,
        "seconds": number(line.seconds),
        "members": [_trajectory(trajectory, line) for trajectory in line.trajectories],
    }


def _trajectory(trajectory: TrajectoryLine, line: GroupLine) -> dict[str, Any]:
    new = new_images([turn.images for turn in trajectory.turns])
    return {
        "member": trajectory.member,
        "stop": trajectory.stop_reason,
        "task_reward": number(trajectory.task_reward),
        "error": trajectory.error,
        "advantage": None if trajectory.advantage is None else number(trajectory.advantage),
        "metrics": {name: number(value) for name, value in trajectory.metrics.items()},
        "turns": [_turn(turn, images, line) for turn, images in zip(trajectory.turns, new, strict=True)],
    }


def _turn(turn: TurnLine, images: Sequence[str], line: GroupLine) -> dict[str, Any]:
    return {
        "images": [[line.images[name], name[:8]] for name in images],
        "text": turn.text,
        "pieces": list(turn.pieces),
        "ids": list(turn.completion_ids),
        "logprobs": [number(round(value, 5)) for value in turn.rollout_logprobs],
        "prompt": turn.prompt_prefix_length + len(turn.prompt_suffix_ids),
        "feedback": turn.feedback,
        "reward": number(turn.reward),
        "finish": turn.finish,
        "parsed": turn.parsed,
        "version": turn.policy_version,
    }


def new_images(prompts: Sequence[Sequence[str]]) -> list[list[str]]:
    """Of each turn's prompt the images that the turn before it did not have: what was observed since. A prompt holds
    those of the last turns, or of all."""
    found, before = list[list[str]](), list[str]()
    for prompt in prompts:
        now = list(prompt)
        shared = next((k for k in range(min(len(before), len(now)), 0, -1) if before[-k:] == now[:k]), 0)
        found.append(now[shared:] or now[-1:])
        before = now
    return found
