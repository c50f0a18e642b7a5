"""Which versions may go: by property, and on real stores with scores and pins."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.storage import (
    Key,
    Retention,
    Stored,
    VersionStore,
    add_scores,
    best_unknown,
    pin,
    read_scores,
    survey,
    to_remove,
)
from tandem.types import NotFound, PublishKind, UserError

ADAPTER, MODEL, STATE = PublishKind.ADAPTER, PublishKind.MODEL, PublishKind.STATE
METRIC = "solve_rate"

versions = st.sets(st.integers(0, 40), max_size=12)


@st.composite
def stores(draw: st.DrawFn) -> Stored:
    held = {kind: draw(versions) for kind in PublishKind}
    keys = [(kind, version) for kind in PublishKind for version in sorted(held[kind])]
    if not keys:
        return Stored(held, {}, set())
    figures = st.floats(-1, 1) | st.sampled_from([0.0, 0.5])
    scores = {key: {METRIC: draw(figures)} for key in draw(st.sets(st.sampled_from(keys)))}
    return Stored(held, scores, draw(st.sets(st.sampled_from(keys), max_size=3)))


rules = st.builds(Retention, st.integers(1, 5), st.integers(0, 3), st.just(METRIC), st.integers(0, 5))


def left(stored: Stored, retention: Retention) -> dict[PublishKind, list[int]]:
    gone = set(to_remove(stored, retention))
    return {kind: sorted(v for v in held if (kind, v) not in gone) for kind, held in stored.versions.items()}


def after(stored: Stored, retention: Retention) -> Stored:
    return Stored(left(stored, retention), stored.scores, stored.pinned)


@given(stores(), rules)
def test_what_must_stay_stays(stored: Stored, retention: Retention) -> None:
    kept = left(stored, retention)
    for kind, held in stored.versions.items():
        assert kept[kind][-retention.keep :] == sorted(held)[-retention.keep :]
        assert all(
            version in kept[kind] for version in held if retention.keep_every and not version % retention.keep_every
        )
    assert kept[ADAPTER][-2:] == sorted(stored.versions[ADAPTER])[-2:]  # engines may serve both
    assert all(version in kept[kind] for kind, version in stored.pinned)
    for kind in (ADAPTER, MODEL):
        assert set(kept[kind]) >= set(stored.versions[kind]) & set(kept[STATE])  # what a resume needs


@given(stores(), rules)
def test_nothing_stays_without_a_reason(stored: Stored, retention: Retention) -> None:
    kept = left(stored, retention)
    for kind, versions in kept.items():
        scored = [stored.scores[kind, v][METRIC] for v in stored.versions[kind] if (kind, v) in stored.scores]
        bar = sorted(scored, reverse=True)[: retention.keep_best]
        for version in versions:
            assert (
                version in sorted(stored.versions[kind])[-max(retention.keep, 2 if kind is ADAPTER else 1) :]
                or (kind, version) in stored.pinned
                or (retention.keep_every and version % retention.keep_every == 0)
                or (kind is not STATE and version in kept[STATE])
                or (kind is not STATE and bar and stored.scores.get((kind, version), {METRIC: -9})[METRIC] >= bar[-1])
            )


@given(stores(), rules)
def test_the_best_stay_and_a_second_time_nothing_goes(stored: Stored, retention: Retention) -> None:
    kept = left(stored, retention)
    for kind in (ADAPTER, MODEL):
        scored = [(stored.scores[kind, v][METRIC], v) for v in stored.versions[kind] if (kind, v) in stored.scores]
        assert {version for _, version in sorted(scored)[::-1][: retention.keep_best]} <= set(kept[kind])
    assert to_remove(after(stored, retention), retention) == ()


def test_states_go_before_the_weights_they_are_resumed_with() -> None:
    stored = Stored({ADAPTER: {1, 2, 3, 4}, STATE: {1, 4}}, {}, set())
    assert to_remove(stored, Retention(1)) == ((STATE, 1), (ADAPTER, 1), (ADAPTER, 2))


def publish(store: VersionStore, kind: PublishKind, version: int) -> None:
    names = {
        ADAPTER: ("adapter_config.json", "adapter_model.safetensors"),
        STATE: ("training_state.safetensors",),
    }
    store.commit(kind, version, "b" * 64, {name: [b"{}"] for name in names[kind]}, {})


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> VersionStore:
    url = request.getfixturevalue("s3_url") if request.param == "s3" else str(tmp_path / "store")
    return VersionStore(url)


def test_scores_and_pins_lie_beside_the_manifest(store: VersionStore) -> None:
    for version in (1, 2, 3, 4, 5):
        publish(store, ADAPTER, version)
    publish(store, STATE, 1)
    before = store.find(ADAPTER, 2)
    add_scores(store, ADAPTER, 2, {METRIC: 0.75, "other": 1})
    add_scores(store, ADAPTER, 2, {METRIC: 0.5})
    add_scores(store, ADAPTER, 3, {METRIC: 0.25})
    pin(store, ADAPTER, 4)
    pin(store, ADAPTER, 4)
    assert store.find(ADAPTER, 2) == before and read_scores(store, ADAPTER, 2) == {METRIC: 0.5, "other": 1}
    stored = survey(store)
    assert stored.pinned == {(ADAPTER, 4)} and stored.versions[STATE] == [1]
    keys: tuple[Key, ...] = ((ADAPTER, 3), (ADAPTER, 4))
    assert to_remove(Stored({ADAPTER: {1, 2, 3, 4, 5, 6}}, stored.scores, set()), Retention(1, 1, METRIC)) == (
        (ADAPTER, 1),
        *keys,
    )
    assert to_remove(stored, Retention(1, 1, METRIC)) == ((ADAPTER, 3),)  # 1 is the state's, 2 best, 4 pinned
    pin(store, ADAPTER, 4, pinned=False)
    assert survey(store).pinned == set()
    with pytest.raises(NotFound, match="no adapter v9 is published"):
        pin(store, ADAPTER, 9)
    with pytest.raises(UserError, match="score 'bad' is inf"):
        add_scores(store, ADAPTER, 1, {"bad": float("inf")})
    store.blobs.replace("adapters/v00000003/scores.json", b"[")
    assert read_scores(store, ADAPTER, 3) == {}  # damaged scores are none; they hold up nothing
    for kind, version in to_remove(survey(store), Retention(1)):
        store.remove(kind, version)
    assert [found.ref.version for found in store.published(ADAPTER)] == [1, 4, 5]


@pytest.mark.parametrize("sort", ["local", "memory"])
def test_a_version_that_goes_while_it_is_pinned_leaves_no_mark(tmp_path: Path, sort: str) -> None:
    url = str(tmp_path / "store") if sort == "local" else f"memory://pin-{uuid4().hex}"
    files = {"adapter_config.json": [b"{}"], "adapter_model.safetensors": [b"w"]}
    VersionStore(url).commit(ADAPTER, 1, "b" * 64, files, {})
    gone = False

    def fence() -> None:  # asked right before the mark is made
        nonlocal gone
        if not gone:
            gone = True
            VersionStore(url).remove(ADAPTER, 1)

    with pytest.raises(NotFound, match="no adapter v1 is published"):
        pin(VersionStore(url, fence), ADAPTER, 1)
    assert VersionStore(url).blobs.files("adapters/v00000001") == ()


def test_a_metric_that_no_version_has_is_named() -> None:
    stored = Stored({ADAPTER: [1, 2]}, {(ADAPTER, 1): {"rollout/solve_rate": 1.0}}, set())
    told = best_unknown(stored, Retention(1, 2, "solve_rat"))
    assert "no version has a score 'solve_rat', which checkpoint.best_metric" in told and "rollout/solve_rate" in told
    for quiet in (Retention(1, 2, "rollout/solve_rate"), Retention(1, 0, "solve_rat")):
        assert best_unknown(stored, quiet) == ""
    assert best_unknown(Stored({ADAPTER: [1, 2]}, {}, set()), Retention(1, 2, "solve_rat")) == ""
