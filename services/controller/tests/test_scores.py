"""Which adapter a figure of metrics.jsonl speaks of; against a real checkpoint manager."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tandem.storage import VersionStore, add_scores, read_scores
from tandem.types import NotFound, PublishKind, Unavailable
from tandem_controller.scores import tell_scores

ADAPTER = PublishKind.ADAPTER


class Store:
    """The manager's call on a real store: services import no other service."""

    def __init__(self, folder: Path) -> None:
        self.store = VersionStore(str(folder))
        for version in (3, 4):
            files = {"adapter_config.json": [b"{}"], "adapter_model.safetensors": [b"{}"]}
            self.store.commit(ADAPTER, version, "b" * 64, files, {})

    async def score(self, kind: PublishKind, version: int, scores) -> None:
        add_scores(self.store, kind, version, scores)

    def told(self) -> dict[int, dict[str, float]]:
        return {version: read_scores(self.store, ADAPTER, version) for version in (3, 4)}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"rollout/solve_rate": 0.5, "rollout/return_mean": 1, "rollout/staleness_max": 0, "loss": 2}, {3: 2, 4: 0}),
        ({"rollout/solve_rate": 0.5, "rollout/staleness_max": 1, "eval_solve_rate": 0.75}, {3: 0, 4: 1}),
        ({"rollout/solve_rate": math.nan, "rollout/staleness_max": 0, "eval_solve_rate": 0.75}, {3: 0, 4: 1}),
    ],
)
async def test_figures_go_to_the_version_they_were_measured_on(tmp_path, row, told) -> None:
    store = Store(tmp_path)
    await tell_scores(store.score, {"version": 4, **row})
    found = store.told()
    assert {version: len(scores) for version, scores in found.items()} == told
    assert all(scores[name] == row[name] for scores in found.values() for name in scores)


async def test_a_version_that_is_not_there_is_no_failure(tmp_path) -> None:
    store = Store(tmp_path)
    with pytest.raises(NotFound):
        await store.score(ADAPTER, 0, {"x": 1.0})
    await tell_scores(store.score, {"version": 1, "rollout/solve_rate": 0.5, "rollout/staleness_max": 0})


async def test_no_run_ends_for_want_of_a_score(tmp_path, caplog) -> None:
    class Busy(Store):
        async def score(self, kind: PublishKind, version: int, scores) -> None:
            if version == 4:
                raise Unavailable("checkpoint manager: no answer within 30 s")
            await super().score(kind, version, scores)

    store = Busy(tmp_path)
    row = {"version": 4, "eval_solve_rate": 1.0, "rollout/solve_rate": 0.5, "rollout/staleness_max": 0}
    await tell_scores(store.score, row)
    assert store.told() == {3: {"rollout/solve_rate": 0.5}, 4: {}}
    assert "adapter v4 goes without its scores: checkpoint manager: no answer within 30 s" in caplog.text
