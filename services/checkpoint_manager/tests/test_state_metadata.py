"""What is kept with a training state: in a file of its own, for it grows with the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from tandem.storage import METADATA_FILE, Retention, VersionStore, read_metadata
from tandem.types import AdapterRef, DataCorrupt, PublishKind, UserError
from tandem_checkpoint_manager.core import CheckpointManager

STATE = PublishKind.STATE
BASE = "a" * 64
STEP = {"step": np.array([1.0], np.float32)}


@pytest.fixture(params=["folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each sort."""
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{uuid4().hex}"


@pytest.fixture
def manager(url: str) -> Iterator[CheckpointManager]:
    made = CheckpointManager(url, Retention(3))
    yield made
    made.close()


def publish(manager: CheckpointManager, metadata_json: str, shards=()) -> AdapterRef:
    for sent in shards:
        manager.put(sent.ref, [sent.data])
    return manager.publish(STATE, 1, world_size=1, base_model=BASE, metadata_json=metadata_json)


def test_it_comes_back_and_the_manifest_stays_small(manager, make_shards) -> None:
    rows = [{"version": version, "loss": 1 / (version + 1)} for version in range(20_000)]
    publish(manager, json.dumps({"rows": rows, "next_seed": 7}), make_shards(STEP, 1, kind=STATE))
    found = manager.get(STATE)
    assert read_metadata(found) == {"rows": rows, "next_seed": 7}
    assert found.manifest.metadata == {} and len(found.manifest.encode()) < 1000
    manager.store.verify(found)


def test_the_same_again_is_welcome_however_it_is_written_and_other_is_refused(manager, make_shards) -> None:
    shards = make_shards(STEP, 1, kind=STATE)
    first = publish(manager, '{"a": 1, "b": [2]}', shards)
    again = '{"b":[2],\n"a":1}'
    assert publish(manager, again) == first == publish(manager, again, shards)
    for sent in ((), shards):
        with pytest.raises(UserError, match=r"state v1: is published already with another metadata.json"):
            publish(manager, '{"a": 2, "b": [2]}', sent)


def test_a_damaged_file_is_named(manager, make_shards) -> None:
    publish(manager, '{"next_seed": 7}', make_shards(STEP, 1, kind=STATE))
    blobs, name = manager.store.blobs, f"states/v00000001/{METADATA_FILE}"
    blobs.remove_file(name)
    with pytest.raises(DataCorrupt, match=r"v00000001/metadata.json: missing"):
        read_metadata(manager.get(STATE))
    blobs.write(name, [b'{"next_seed": 9}'])
    with pytest.raises(DataCorrupt, match=r"v00000001/metadata.json"):
        read_metadata(manager.get(STATE))


def test_a_state_that_an_earlier_version_of_tandem_left_tells_it_too(url: str) -> None:
    store = VersionStore(url)
    store.commit(STATE, 4, BASE, {"training_state.safetensors": [b"moments"]}, {"next_seed": 7})
    (found,) = store.published(STATE)
    assert read_metadata(found) == {"next_seed": 7}
