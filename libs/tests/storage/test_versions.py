"""The store: whole or not there, latest by pointer, mended at the start; on folder and object store."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import fsspec
import numpy as np
import pytest
from safetensors.numpy import save

from tandem.storage import VersionStore, latest, open_tensors, read_adapter, read_manifest
from tandem.types import AdapterRef, DataCorrupt, NotFound, PublishKind, UserError

BASE = "b" * 64
ADAPTER, STATE = PublishKind.ADAPTER, PublishKind.STATE


@pytest.fixture(params=["folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store of each sort."""
    if request.param == "folder":
        yield str(tmp_path / "store")
        return
    name = uuid4().hex
    yield f"memory://{name}/store"
    fs = fsspec.filesystem("memory")
    if fs.exists(f"/{name}"):
        fs.rm(f"/{name}", recursive=True)


def publish(store: VersionStore, version: int, kind: PublishKind = ADAPTER, fill: float = 1.0) -> AdapterRef:
    data = save({"w": np.full((64, 64), fill, np.float32)})
    pieces = [data[:100], data[100:]]
    if kind is ADAPTER:
        files = {"adapter_model.safetensors": pieces, "adapter_config.json": [b"{}"]}
    else:
        files = {"training_state.safetensors": pieces}
    return store.commit(kind, version, BASE, {**files, "note": [b"n"]}, {"step": version})


def tamper(store: VersionStore, path: str, change) -> None:
    full = store.blobs.full(path)
    store.blobs.fs.pipe_file(full, change(store.blobs.fs.cat_file(full)))


def flip(data: bytes) -> bytes:
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


def everything(store: VersionStore) -> set[str]:
    return {name.removeprefix(store.blobs.root) for name in store.blobs.fs.find(store.blobs.root)}


def test_commit_find_latest_and_read_back(url: str, tmp_path: Path) -> None:
    store = VersionStore(url)
    assert store.latest(ADAPTER) is None and store.published(ADAPTER) == ()
    first, second = publish(store, 1), publish(store, 12, fill=2.0)
    assert (second.name, second.url) == ("tandem-v00000012", f"{store.blobs.url}/adapters/v00000012")
    assert [item.ref for item in store.published(ADAPTER)] == [first, second]
    assert latest(url).ref == second and latest(url).manifest.metadata == {"step": 12}
    assert store.find(ADAPTER, 1).ref == first  # type: ignore[union-attr]
    assert store.find(ADAPTER, 2) is None and store.latest(STATE) is None
    folder = read_adapter(second, cache=tmp_path / "cache")
    names = {"adapter_model.safetensors", "adapter_config.json", "note", "manifest.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest() == second.sha256
    with open_tensors(second, cache=tmp_path / "cache") as tensors:
        assert (tensors.get_slice("w")[3:5] == np.full((2, 64), 2.0)).all()
    with pytest.raises(NotFound, match="no state is published"):
        latest(url, STATE)


def test_equal_content_has_an_equal_manifest(url: str) -> None:
    assert publish(VersionStore(url), 1).sha256 == publish(VersionStore(f"{url}2"), 1).sha256
    assert publish(VersionStore(f"{url}3"), 1, fill=3.0).sha256 != publish(VersionStore(url + "4"), 1).sha256


def test_a_failing_write_leaves_nothing_and_the_latest_stays(url: str) -> None:
    store = VersionStore(url)
    before = publish(store, 1)
    seen = everything(store)

    def breaks() -> Iterator[bytes]:
        yield b"half"
        raise DataCorrupt("shard truncated")

    with pytest.raises(DataCorrupt, match="shard truncated"):
        store.commit(ADAPTER, 2, BASE, {"ok": [b"1"], "adapter_model.safetensors": breaks()}, {})
    assert latest(url).ref == before and everything(store) == seen


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "note", "manifest.json"])
def test_a_flipped_bit_is_found_and_the_file_named(url: str, tmp_path: Path, name: str) -> None:
    store = VersionStore(url)
    ref = publish(store, 4)
    change = (lambda data: b"m") if name == "note" else flip
    tamper(store, f"adapters/v00000004/{name}", change)
    with pytest.raises(DataCorrupt, match=name):
        read_adapter(ref, cache=tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_flipped_bit_in_metadata_is_found_without_a_reference(url: str) -> None:
    store = VersionStore(url)
    publish(store, 4)
    publish(store, 5)
    tamper(store, "adapters/v00000004/manifest.json", lambda data: data.replace(b'"step": 4', b'"step": 6'))
    with pytest.raises(DataCorrupt, match=r"v00000004/manifest.json: does not match its own checksum"):
        store.find(ADAPTER, 4)
    assert latest(url).ref.version == 5


def test_missing_and_truncated_files(url: str, tmp_path: Path) -> None:
    store = VersionStore(url)
    ref = publish(store, 4)
    tamper(store, "adapters/v00000004/adapter_model.safetensors", lambda data: data[:-8])
    with pytest.raises(DataCorrupt, match=r"adapter_model.safetensors: [0-9]+ bytes, the manifest says"):
        read_adapter(ref, cache=tmp_path / "cache")
    store.blobs.remove_file("adapters/v00000004/adapter_model.safetensors")
    with pytest.raises(DataCorrupt, match="missing"):
        read_adapter(ref, cache=tmp_path / "cache")


def test_a_manifest_may_not_name_files_outside_its_folder(tmp_path: Path) -> None:
    store = VersionStore(str(tmp_path))
    store.blobs.write("adapters/secret", [b"s"])
    ref = store.commit(ADAPTER, 1, BASE, {"../secret": [b"s"]}, {})
    with pytest.raises(DataCorrupt, match=re.escape("names the file '../secret'")):
        read_manifest(ref)


@pytest.mark.parametrize(
    ("kind", "names", "missing"),
    [
        (ADAPTER, [], "adapter_config.json"),
        (ADAPTER, ["adapter_model.safetensors"], "adapter_config.json"),
        (ADAPTER, ["adapter_config.json", "training_state.safetensors"], "adapter_model.safetensors"),
        (STATE, ["adapter_config.json", "adapter_model.safetensors"], "training_state.safetensors"),
    ],
)
def test_a_manifest_must_list_the_files_of_its_kind(tmp_path: Path, kind, names: list[str], missing: str) -> None:
    ref = VersionStore(str(tmp_path)).commit(kind, 1, BASE, {name: [b"1"] for name in names}, {})
    (Path(ref.url) / missing).write_bytes(b"never hashed")
    with pytest.raises(DataCorrupt, match=f"manifest.json: does not list {missing}, without which there is no {kind}"):
        read_adapter(ref)


def test_another_folder_under_a_reference_is_refused(url: str, tmp_path: Path) -> None:
    store = VersionStore(url)
    ref = publish(store, 1)
    other = publish(store, 2, fill=5.0)
    wrong = AdapterRef(1, other.url, ref.sha256, ref.name, BASE, ref.size)
    with pytest.raises(DataCorrupt, match="is not the manifest of tandem-v00000001"):
        read_adapter(wrong, cache=tmp_path / "cache")


def test_recover_sweeps_what_a_crash_left(url: str) -> None:
    store = VersionStore(url)
    publish(store, 1)
    seen = everything(store)
    store.blobs.write("adapters/v00000002/adapter_model.safetensors", [b"half"])  # no manifest yet
    store.blobs.write(".staging/states-v00000003/training_state.safetensors", [b"half"])
    assert len(everything(store)) == len(seen) + 2
    store.recover()
    assert everything(store) == seen and latest(url).ref.version == 1


def test_recover_moves_a_pointer_that_a_crash_left_behind(url: str) -> None:
    store = VersionStore(url)
    old, new = publish(store, 1), publish(store, 2)
    store.point(ADAPTER, old)  # as if killed after the folder became visible, before the pointer was written
    store.recover()
    assert latest(url).ref == new


def test_recover_serves_the_newest_whole_version_where_the_latest_is_damaged(url: str) -> None:
    store = VersionStore(url)
    good = publish(store, 1)
    publish(store, 2)
    tamper(store, "adapters/v00000002/manifest.json", flip)
    with pytest.raises(DataCorrupt, match=r"v00000002/manifest.json"):
        latest(url)
    store.recover()
    assert latest(url).ref == good
    assert "/adapters/v00000002/adapter_model.safetensors" in everything(store)  # left for a person to look at


def test_a_torn_pointer(url: str) -> None:
    store = VersionStore(url)
    ref = publish(store, 1)
    tamper(store, "adapters/latest.json", lambda data: data[: len(data) // 2])
    with pytest.raises(DataCorrupt, match=r"adapters/latest.json"):
        latest(url)
    store.recover()
    assert latest(url).ref == ref


def test_rewind_forgets_adapters_ahead_of_the_state(url: str) -> None:
    store = VersionStore(url)
    publish(store, 10, STATE)
    for version in (9, 10, 11, 12):
        publish(store, version)
    store.recover(rewind_to=10)
    assert store.versions(ADAPTER) == (9, 10) and latest(url).ref.version == 10
    assert latest(url, STATE).ref.version == 10


def test_rewind_to_the_start(url: str) -> None:
    store = VersionStore(url)
    publish(store, 1)
    store.recover(rewind_to=0)
    assert everything(store) == set()


def test_rewind_never_removes_a_training_state(url: str) -> None:
    store = VersionStore(url)
    publish(store, 10, STATE)
    publish(store, 11)
    seen = everything(store)
    with pytest.raises(UserError, match="holds training state v10, newer than v0; resume that run, or choose"):
        store.recover(rewind_to=0)
    assert everything(store) == seen


def test_rewind_drops_a_state_that_never_became_the_latest(url: str) -> None:
    store = VersionStore(url)
    old = publish(store, 10, STATE)
    publish(store, 20, STATE)
    store.point(STATE, old)  # what a resuming run has read: it continues from 10
    store.recover(rewind_to=10)
    assert latest(url, STATE).ref == old and store.versions(STATE) == (10,)


def test_rewind_where_a_person_has_removed_the_newest_state(url: str) -> None:
    store = VersionStore(url)
    old = publish(store, 10, STATE)
    publish(store, 20, STATE)
    store.blobs.remove_folder("states/v00000020")  # damaged, say; the pointer still names it
    store.recover(rewind_to=10)
    assert latest(url, STATE).ref == old
    tamper(store, "states/latest.json", lambda data: b"{")
    with pytest.raises(UserError, match="holds training state v10, newer than v0"):
        store.recover(rewind_to=0)


def test_the_cache_keeps_the_newest_few(tmp_path: Path) -> None:
    store = VersionStore(f"memory://{uuid4().hex}")
    for version in range(1, 8):
        read_adapter(publish(store, version), cache=tmp_path)
    assert sorted(path.name[:16] for path in tmp_path.glob("*/*")) == [f"tandem-v0000000{v}" for v in (4, 5, 6, 7)]


def test_a_damaged_cache_is_found(tmp_path: Path) -> None:
    store = VersionStore(f"memory://{uuid4().hex}")
    ref = publish(store, 1)
    cached = read_adapter(ref, cache=tmp_path) / "adapter_model.safetensors"
    cached.write_bytes(flip(cached.read_bytes()))
    with pytest.raises(DataCorrupt, match=r"adapter_model.safetensors: sha256"):
        read_adapter(ref, cache=tmp_path)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "set checkpoint.url"),
        ("nosuch://bucket/x", "store nosuch://bucket/x: .*check checkpoint.url"),
        ("/dev/null/store", "writing /dev/null/store.*a file stands where a folder should"),
        ("/proc/nosuch/store", "writing /proc/nosuch/store.*check checkpoint.url"),
    ],
)
def test_stores_that_cannot_be_written(url: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        VersionStore(url).blobs.check_writable()
    assert "\n" not in str(caught.value)


def test_published_files_are_readable_by_others(tmp_path: Path) -> None:
    publish(VersionStore(str(tmp_path)), 1)
    folder = tmp_path / "adapters" / "v00000001"
    reference = tmp_path / "made"
    reference.mkdir()
    assert folder.stat().st_mode == reference.stat().st_mode
    assert json.loads((folder / "manifest.json").read_text())["version"] == 1
