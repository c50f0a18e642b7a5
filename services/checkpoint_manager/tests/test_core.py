"""The core on real folders: join, publish, repeat, refuse, keep, delete."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from safetensors.numpy import load_file

from tandem.storage import Retention, latest, open_tensors, read_adapter, read_metadata
from tandem.types import AdapterRef, DataCorrupt, NotFound, PublishKind, StaleRequest, UserError
from tandem_checkpoint_manager.core import CheckpointManager

ADAPTER, STATE = PublishKind.ADAPTER, PublishKind.STATE
BASE = "a" * 64
CONFIG = json.dumps({"peft_type": "LORA", "r": 5, "lora_alpha": 8, "target_modules": ["q_proj"]})


@pytest.fixture(params=["folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each sort."""
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{uuid4().hex}"


@pytest.fixture
def manager(url: str) -> Iterator[CheckpointManager]:
    made = CheckpointManager(url, Retention(3))
    yield made
    made.close()


def put_all(manager: CheckpointManager, shards) -> None:
    for sent in shards:
        manager.put(sent.ref, pieces(sent.data))


def pieces(data: bytes, size: int = 100) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def publish(manager: CheckpointManager, shards, version: int = 1, **more) -> AdapterRef:
    put_all(manager, shards)
    return ask(manager, version, len(shards), **more)


def ask(manager: CheckpointManager, version: int, world_size: int, kind: PublishKind = ADAPTER, **more) -> AdapterRef:
    given = {"base_model": BASE, "adapter_config_json": CONFIG if kind is ADAPTER else "", **more}
    return manager.publish(kind, version, world_size=world_size, **given)


def files(manager: CheckpointManager) -> set[str]:
    blobs = manager.store.blobs
    return {name.removeprefix(blobs.root) for name in blobs.fs.find(blobs.root)}


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_shards_of_any_number_of_ranks_join_to_the_same_adapter(
    manager, make_tensors, make_shards, tmp_path, world_size
) -> None:
    whole = make_tensors()
    ref = publish(manager, make_shards(whole, world_size), metadata_json='{"step": 1, "loss": 0.25}')
    folder = read_adapter(ref, cache=tmp_path / "cache")
    joined = load_file(folder / "adapter_model.safetensors")
    assert set(joined) == set(whole)
    assert all(np.array_equal(joined[name], whole[name]) for name in whole)
    assert (folder / "adapter_config.json").read_text() == CONFIG
    assert manager.get(ADAPTER).ref == ref == latest(manager.store.blobs.url).ref
    assert manager.get(ADAPTER, 1).manifest.metadata == {"step": 1, "loss": 0.25}
    assert (ref.version, ref.base_model, ref.name) == (1, BASE, "tandem-v00000001")


def test_the_number_of_ranks_does_not_show_in_what_is_published(make_tensors, make_shards, tmp_path) -> None:
    whole = make_tensors()
    hashes = {
        publish(CheckpointManager(str(tmp_path / str(n)), Retention(3)), make_shards(whole, n)).sha256
        for n in (1, 2, 5)
    }
    assert len(hashes) == 1


def test_training_state_with_scalars(manager, make_shards, tmp_path) -> None:
    whole = {
        "exp_avg/w": np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32),
        "step/updates": np.array([12.0], np.float32),  # rank 0 alone has its one row
    }
    ref = publish(manager, make_shards(whole, 3, 7, kind=STATE), 7, kind=STATE, metadata_json='{"cursor": 40}')
    with open_tensors(ref, cache=tmp_path / "cache") as state:
        assert set(state.keys()) == set(whole)
        assert np.array_equal(state.get_tensor("exp_avg/w"), whole["exp_avg/w"])
    assert read_metadata(manager.get(STATE)) == {"cursor": 40}
    with pytest.raises(NotFound, match="no adapter is published"):
        manager.get(ADAPTER)


def test_the_same_again_is_welcome(url, manager, make_tensors, make_shards) -> None:
    shards = make_shards(make_tensors(), 2)
    first = publish(manager, shards)
    assert ask(manager, 1, 2) == first  # the shards are no longer staged
    assert publish(manager, shards) == first  # sent again
    assert publish(manager, make_shards(make_tensors(), 3)) == first  # by another number of ranks
    restarted = CheckpointManager(url, Retention(3))
    assert ask(restarted, 1, 2) == first


def test_other_content_under_a_published_version_is_refused(manager, make_tensors, make_shards) -> None:
    first = publish(manager, make_shards(make_tensors(), 2))
    with pytest.raises(UserError, match=r"v1: is published already with another adapter_model.safetensors"):
        publish(manager, make_shards(make_tensors(seed=1), 2))
    manager.staging.drop(ADAPTER, 1)
    with pytest.raises(UserError, match="v1: is published already with another metadata"):
        ask(manager, 1, 2, metadata_json='{"step": 2}')
    with pytest.raises(UserError, match=r"v1: is published already with another adapter_config.json"):
        ask(manager, 1, 2, adapter_config_json=CONFIG.replace("8", "9"))
    assert manager.get(ADAPTER).ref == first


def test_a_retry_finishes_what_stopped_before_the_pointer(manager, make_tensors, make_shards) -> None:
    old = publish(manager, make_shards(make_tensors(), 1))
    new = publish(manager, make_shards(make_tensors(1), 1, 2), 2)
    manager.store.point(ADAPTER, old)
    assert ask(manager, 2, 1) == new == manager.get(ADAPTER).ref


def test_no_publish_older_than_the_latest(manager, make_tensors, make_shards) -> None:
    latest_ref = publish(manager, make_shards(make_tensors(), 1, 5), 5)
    with pytest.raises(StaleRequest, match="adapter v4: v5 is published already"):
        publish(manager, make_shards(make_tensors(), 1, 4), 4)
    assert manager.get(ADAPTER).ref == latest_ref


# ---- what is refused, and that nothing changes then


@pytest.fixture
def served(manager, make_tensors, make_shards) -> AdapterRef:
    """A version that must stay the latest, whatever goes wrong after it."""
    return publish(manager, make_shards(make_tensors(), 1))


@contextmanager
def nothing_changes(manager: CheckpointManager, served: AdapterRef, kind, message: str) -> Iterator[None]:
    before = {name for name in files(manager) if "/.staging/" not in name}
    with pytest.raises(kind, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)
    assert manager.get(ADAPTER).ref == served
    assert {name for name in files(manager) if "/.staging/" not in name} == before
    assert not list(manager.staging.folder.glob("incoming-*"))


def test_missing_rank(manager, served, make_tensors, make_shards) -> None:
    put_all(manager, make_shards(make_tensors(1), 3, 2)[::2])
    with nothing_changes(manager, served, UserError, "adapter v2: no shard of rank 1 of 3 has come"):
        ask(manager, 2, 3)
    put_all(manager, make_shards(make_tensors(1), 3, 2)[1:2])  # a late rank completes it
    assert ask(manager, 2, 3).version == 2


def test_other_world_size(manager, served, make_tensors, make_shards) -> None:
    put_all(manager, make_shards(make_tensors(1), 2, 2))
    with nothing_changes(manager, served, UserError, "the shards are of 2 ranks, not of 1"):
        ask(manager, 2, 1)
    with nothing_changes(manager, served, UserError, "shards of 2 ranks are here; delete v2 to start it anew"):
        put_all(manager, make_shards(make_tensors(1), 1, 2))


def test_duplicate_rank_with_other_bytes(manager, served, make_tensors, make_shards) -> None:
    put_all(manager, make_shards(make_tensors(1), 2, 2))
    with nothing_changes(manager, served, UserError, "rank 0 of 2: other bytes of this rank are here"):
        put_all(manager, make_shards(make_tensors(2), 2, 2)[:1])
    manager.delete(ADAPTER, 2)  # the way out that the message names
    assert publish(manager, make_shards(make_tensors(2), 2, 2), 2).version == 2


def of_generation(number: int, shards) -> list:
    return [replace(sent, ref=replace(sent.ref, generation=number)) for sent in shards]


def test_what_dead_ranks_have_sent_gives_way_to_their_successors(
    manager, served, make_tensors, make_shards, tmp_path
) -> None:
    """Ranks started anew make other bytes of the version, and need not be as many. One taken for dead is refused."""
    put_all(manager, of_generation(1, make_shards(make_tensors(1), 3, 2)[:2]))
    whole = of_generation(2, make_shards(make_tensors(2), 2, 2))
    put_all(manager, whole[1:])
    with nothing_changes(manager, served, UserError, "no shard of rank 0 of 2 has come"):
        ask(manager, 2, 2)
    for late in of_generation(1, make_shards(make_tensors(1), 3, 2)):
        with nothing_changes(manager, served, StaleRequest, "the ranks were started anew, and theirs are here"):
            manager.put(late.ref, [late.data])
    put_all(manager, whole)  # rank 1's once more: the same
    ref = ask(manager, 2, 2)
    found, expected = load_file(read_adapter(ref, cache=tmp_path) / "adapter_model.safetensors"), make_tensors(2)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_truncated_shard(manager, served, make_tensors, make_shards) -> None:
    (sent,) = make_shards(make_tensors(1), 1, 2)
    with nothing_changes(manager, served, DataCorrupt, "adapter v2, rank 0 of 1: truncated: .* bytes came"):
        manager.put(sent.ref, [sent.data[:-8]])


def test_more_bytes_than_announced(manager, served, make_tensors, make_shards) -> None:
    (sent,) = make_shards(make_tensors(1), 1, 2)
    with nothing_changes(manager, served, DataCorrupt, "more bytes than the [0-9]+ announced"):
        manager.put(sent.ref, [sent.data, b"x"])


def test_flipped_bit_on_the_way(manager, served, make_tensors, make_shards) -> None:
    (sent,) = make_shards(make_tensors(1), 1, 2)
    data = sent.data[:-3] + bytes([sent.data[-3] ^ 4]) + sent.data[-2:]
    with nothing_changes(manager, served, DataCorrupt, "adapter v2, rank 0 of 1: sha256 is"):
        manager.put(sent.ref, [data])


def test_flipped_bit_in_the_spool(manager, served, make_tensors, make_shards) -> None:
    (sent,) = make_shards(make_tensors(1), 1, 2)
    manager.put(sent.ref, [sent.data])
    (spooled,) = manager.staging.folder.glob("adapter-v00000002*")
    spooled.write_bytes(sent.data[:-3] + bytes([sent.data[-3] ^ 4]) + sent.data[-2:])
    with nothing_changes(manager, served, DataCorrupt, "adapter v2, rank 0 of 1: changed in .*; send it again"):
        ask(manager, 2, 1)
    assert publish(manager, [sent], 2).version == 2


@pytest.mark.parametrize(("field", "value"), [("version", 3), ("kind", STATE), ("rank", 1), ("world_size", 3)])
def test_shard_that_is_not_what_it_was_sent_as(manager, served, make_tensors, make_shards, field, value) -> None:
    sent = make_shards(make_tensors(1), 2, 2)[0]
    with nothing_changes(manager, served, DataCorrupt, f"says {field} .*, but it was sent as {field} {value}"):
        manager.put(replace(sent.ref, **{field: value}), [sent.data])


def test_shards_of_another_base_model(manager, served, make_tensors, make_shards) -> None:
    put_all(manager, make_shards(make_tensors(1), 1, 2, base="c" * 64))
    with nothing_changes(manager, served, UserError, "rank 0 of 1: belongs to base model cccccccccccc"):
        ask(manager, 2, 1)


def test_a_shard_of_another_run_is_refused_and_one_of_this_run_taken(url, make_tensors, make_shards) -> None:
    manager = CheckpointManager(url, Retention(3), run="mine")
    with pytest.raises(UserError, match=r"rank 0 of 1: is of run 'theirs', not 'mine'; stop the other's"):
        put_all(manager, make_shards(make_tensors(), 1, run="theirs"))
    assert publish(manager, make_shards(make_tensors(), 1, run="mine")).version == 1
    manager.close()


def test_store_of_another_base_model(manager, served, make_tensors, make_shards) -> None:
    put_all(manager, make_shards(make_tensors(1), 1, 2, base="c" * 64))
    message = "adapter v2: belongs to base model cccccccccccc..., but store .* holds versions of aaaaaaaaaaaa"
    with nothing_changes(manager, served, UserError, message):
        ask(manager, 2, 1, base_model="c" * 64)


def test_wrong_dtype(manager, served, make_tensors, make_shards) -> None:
    whole = make_tensors(1)
    name = next(iter(whole))
    put_all(manager, make_shards({**whole, name: whole[name].astype(np.float64)}, 2, 2))
    with nothing_changes(manager, served, DataCorrupt, f"tensor {re.escape(name)} is F64"):
        ask(manager, 2, 2)


def test_a_without_b(manager, served, make_tensors, make_shards) -> None:
    whole = {name: array for name, array in make_tensors(1).items() if "1.q_proj.lora_B" not in name}
    put_all(manager, make_shards(whole, 2, 2))
    with nothing_changes(manager, served, DataCorrupt, r"layers.1.q_proj.lora_A.weight is there without its lora_B"):
        ask(manager, 2, 2)


def test_rank_that_is_not_the_configured_one(manager, served, make_tensors, make_shards) -> None:
    put_all(manager, make_shards(make_tensors(1), 2, 2))
    with nothing_changes(manager, served, DataCorrupt, r"is \[5, 8\], but adapter_config_json says r 4"):
        ask(manager, 2, 2, adapter_config_json='{"peft_type": "LORA", "r": 4}')


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"adapter_config_json": ""}, "adapter_config_json: not valid JSON"),
        ({"adapter_config_json": "[1]"}, "adapter_config_json: must be a JSON object, got list"),
        ({"adapter_config_json": '{"peft_type": "IA3", "r": 5}'}, "peft_type is 'IA3'; only 'LORA'"),
        ({"adapter_config_json": '{"peft_type": "LORA"}'}, "r is None; it must be the LoRA rank"),
        ({"metadata_json": '{"loss": NaN}'}, "metadata_json: not valid JSON: NaN is no JSON number"),
        ({"base_model": ""}, "base_model '' must be given"),
    ],
)
def test_malformed_requests(manager, served, make_tensors, make_shards, given, message) -> None:
    put_all(manager, make_shards(make_tensors(1), 1, 2))
    with nothing_changes(manager, served, UserError, message):
        ask(manager, 2, 1, **given)


@contextmanager
def largest_file(limit: int) -> Iterator[None]:
    """The kernel lets no file of this process grow beyond `limit` bytes: writes fail half-way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("url", ["folder"], indirect=True)
def test_disk_that_takes_no_more(manager, served, make_tensors, make_shards) -> None:
    shards = make_shards(make_tensors(1, layers=300), 4, 2)
    message = "^spooling .*incoming-.*; the file system allows no larger file"
    with nothing_changes(manager, served, UserError, message), largest_file(20_000):
        put_all(manager, shards)
    put_all(manager, shards)
    message = "^writing .*/adapter_model.safetensors: File too large; the file system allows no larger file"
    with nothing_changes(manager, served, UserError, message), largest_file(100_000):
        ask(manager, 2, 4)
    assert ask(manager, 2, 4).version == 2  # once there is room, the same request succeeds


# ---- keeping and deleting


def versions(manager: CheckpointManager, kind: PublishKind) -> list[int]:
    return [item.ref.version for item in manager.list(kind)]


def test_a_best_metric_that_no_version_has_is_told_once(tmp_path, make_tensors, make_shards, caplog) -> None:
    manager = CheckpointManager(str(tmp_path / "store"), Retention(2, 1, "solve_rat"))
    for version in range(1, 6):
        publish(manager, make_shards(make_tensors(version), 1, version), version)
        manager.score(ADAPTER, version, {"solve_rate": 0.5})
    assert caplog.text.count("no version has a score 'solve_rat'") == 1


def test_retention_keeps_the_newest_and_what_kept_states_need(url, make_tensors, make_shards) -> None:
    manager = CheckpointManager(url, Retention(2))
    state = {"exp_avg/w": np.zeros((2, 2), np.float32)}
    for version in range(1, 9):
        publish(manager, make_shards(make_tensors(version), 1, version), version)
        if version % 3 == 0:
            publish(manager, make_shards(state, 1, version, kind=STATE), version, kind=STATE)
    # states 3 and 6 are the newest two; adapters 7 and 8 are, and 3 and 6 go with the states
    assert versions(manager, STATE) == [3, 6]
    assert versions(manager, ADAPTER) == [3, 6, 7, 8]
    assert manager.get(ADAPTER).ref.version == 8


def test_the_adapter_before_the_latest_always_stays(url, make_tensors, make_shards) -> None:
    manager = CheckpointManager(url, Retention(1))
    for version in range(1, 5):
        publish(manager, make_shards(make_tensors(version), 1, version), version)
    assert versions(manager, ADAPTER) == [3, 4]


def test_delete(manager, make_tensors, make_shards) -> None:
    for version in (1, 2):
        publish(manager, make_shards(make_tensors(version), 1, version), version)
    with pytest.raises(StaleRequest, match="adapter v2 is the latest and cannot be deleted"):
        manager.delete(ADAPTER, 2)
    manager.delete(ADAPTER, 1)
    assert versions(manager, ADAPTER) == [2]
    assert not [name for name in files(manager) if "v00000001" in name]
    with pytest.raises(NotFound, match="no adapter v1 to delete"):
        manager.delete(ADAPTER, 1)


def test_a_start_forgets_what_was_staged(url, manager, make_tensors, make_shards) -> None:
    put_all(manager, make_shards(make_tensors(), 2))
    manager.close()
    restarted = CheckpointManager(url, Retention(3))
    with pytest.raises(UserError, match="no shard of rank 0 of 2 has come"):
        ask(restarted, 1, 2)


def test_a_resumed_run_makes_versions_anew(url, manager, make_tensors, make_shards) -> None:
    state = {"exp_avg/w": np.zeros((2, 2), np.float32)}
    for version in (1, 2, 3):
        publish(manager, make_shards(make_tensors(version), 1, version), version)
        if version == 1:
            publish(manager, make_shards(state, 1, 1, kind=STATE), 1, kind=STATE)
    resumed = CheckpointManager(url, Retention(3), rewind_to=1)
    assert versions(resumed, ADAPTER) == [1]
    assert publish(resumed, make_shards(make_tensors(99), 1, 2), 2).version == 2
