"""What the traces of a run must be, as a collector got them: the whole tree of each step, and nothing beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.otlp import Receiver, Span

GAP = 0.05  # of a step, that no child of its root covers
KINDS = {
    "tandem-controller": {"step", "generate", "train", "sync"},
    "tandem-rollout": {"group", "episode", "env reset", "turn", "env step", "stage adapter", "load adapter"},
    "tandem-learner": {"train", "pack", "advantages", "forward", "backward", "optimizer", "snapshot", "export", "send"},
    "tandem-checkpoint-manager": {"receive", "publish", "consolidate"},
}
CALLS = {
    "tandem.rollout.v1.RolloutService/Rollout",
    "tandem.rollout.v1.RolloutService/LoadAdapter",
    "tandem.learner.v1.LearnerService/TrainStep",
    "tandem.learner.v1.LearnerService/Export",
    "tandem.checkpoint.v1.CheckpointService/PutShard",
    "tandem.checkpoint.v1.CheckpointService/Publish",
}
CODE, SCORE = "rpc.response.status_code", "tandem.checkpoint.v1.CheckpointService/ScoreAdapter"
NOT_THERE = (("CLIENT", "ERROR"), ("SERVER", "UNSET"))
INSIDE = {  # by name: what it is a part of
    "step": "",
    "generate": "step",
    "train": "step",  # the controller's
    "sync": "step",
    "group": "tandem.rollout.v1.RolloutService/Rollout",
    "episode": "group",
    "turn": "episode",
    "env step": "turn",
    "load adapter": "tandem.rollout.v1.RolloutService/LoadAdapter",
    "advantages": "train",
    "forward": "forward_backward",
    "backward": "forward_backward",
    "receive": "tandem.checkpoint.v1.CheckpointService/PutShard",
    "publish": "tandem.checkpoint.v1.CheckpointService/Publish",
    "consolidate": "publish",
}


def assert_whole(got: Receiver, steps: int, ranks: int) -> None:
    """The run made so many steps, each with groups of its own: of no staleness, and nobody died."""
    ids = {(span.trace, span.id) for span in got.spans}
    assert len(ids) == len(got.spans)
    assert not [span for span in got.spans if span.parent and (span.trace, span.parent) not in ids]
    assert set(Counter(span.trace for span in got.spans if not span.parent).values()) == {1}
    roots = got.roots("step")
    assert [root.attributes["rl.step"] for root in roots] == list(range(1, steps + 1))
    for root in roots:
        _assert_step(root, got.of(root.trace), ranks)
    assert "save" in {span.name for span in got.spans}  # of a state, every few steps
    [start] = got.roots("start")
    names = {span.name for span in got.of(start.trace)}
    assert names >= {"deploy", "load", "restore", *(f"start {role}" for role in ("rollout", "learner"))}


def _assert_step(root: Span, spans: Sequence[Span], ranks: int) -> None:
    failed = [span for span in spans if span.status != "OK" and span.attributes.get(CODE) != "NOT_FOUND"]
    assert not failed, [(span.service, span.name, span.status, span.why) for span in failed]
    asked = [span for span in spans if span.attributes.get(CODE) == "NOT_FOUND"]  # the base model keeps no score
    assert {(span.name, span.kind, span.status) for span in asked} <= {(SCORE, *end) for end in NOT_THERE}
    found = {service: {span.name for span in spans if span.service == service} for service in KINDS}
    missing = {service: names - found[service] for service, names in KINDS.items() if names - found[service]}
    assert not missing, missing
    for side in ("CLIENT", "SERVER"):
        assert {span.name for span in spans if span.kind == side} >= CALLS
    by_id = {span.id: span for span in spans}
    for span in spans:
        if span.name in INSIDE and not (span.name == "train" and span.service == "tandem-learner"):
            inside = by_id[span.parent].name if span.parent else ""
            assert inside == INSIDE[span.name], (span.name, inside)
    trained = [span for span in spans if (span.service, span.name) == ("tandem-learner", "train")]
    assert {span.attributes["rl.rank"] for span in trained} == set(range(ranks))
    assert uncovered(root, [span for span in spans if span.parent == root.id]) <= GAP
    _assert_told(root, spans)


def _assert_told(root: Span, spans: Sequence[Span]) -> None:
    """Attributes that people look for."""
    assert 0 <= root.attributes["rl.solve_rate"] <= 1 and root.attributes["tandem.run.id"]
    groups = [span for span in spans if span.name == "group"]
    episodes = [span for span in spans if span.name == "episode"]
    assert len(groups) == root.attributes["rl.groups"] and len(episodes) == root.attributes["rl.episodes"]
    assert {span.attributes["rl.seed"] for span in groups} == {span.attributes["rl.seed"] for span in episodes}
    turns = [span for span in spans if span.name == "turn"]
    chats = [span for span in spans if span.name.startswith("chat ")]
    assert len(chats) == len(turns) == sum(span.attributes["rl.turns"] for span in episodes)
    for chat in chats:
        assert chat.attributes["gen_ai.operation.name"] == "chat"
        assert chat.name == f"chat {chat.attributes['gen_ai.request.model']}"
        assert chat.attributes["gen_ai.usage.input_tokens"] > 0 < chat.attributes["gen_ai.usage.output_tokens"]
        assert chat.attributes["gen_ai.response.finish_reasons"][0] in ("stop", "length")


def uncovered(root: Span, children: Sequence[Span]) -> float:
    """The share of a span's time in which none of its children was at work."""
    free, at = 0.0, root.start
    for child in sorted(children, key=lambda span: span.start):
        free += max(0.0, child.start - at)
        at = max(at, child.end)
    return (free + max(0.0, root.end - at)) / (root.end - root.start)
