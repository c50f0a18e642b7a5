"""What S3 does that a folder does not: uploads in parts, refusals under load, lost answers, uploads left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.s3 import CUT, CUT_ANSWER, DROP, ENDPOINT, LOSE, FaultyProxy, faulty_proxy, make_bucket

from tandem.storage import BlobStore, FileEntry, VersionStore, acquire, latest, measure, read_adapter
from tandem.types import DataCorrupt, NotFound, PublishKind, StaleRequest, TandemError, Unavailable

ADAPTER = PublishKind.ADAPTER
PART = 5 * 2**20  # the least that S3 takes, but for the last
PIECES = [bytes([n]) * 2**20 for n in range(12)]


@pytest.fixture
def proxy(s3_endpoint: str, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """Between the test and the server."""
    monkeypatch.setattr("tandem.storage.blobs.UPLOAD_BLOCK_BYTES", PART)
    with faulty_proxy(s3_endpoint) as proxy:
        monkeypatch.setenv(ENDPOINT, proxy.url)
        yield proxy


@pytest.fixture
def blobs(proxy: FaultyProxy) -> BlobStore:
    return BlobStore(f"s3://{make_bucket()}/store")


def uploads(blobs: BlobStore) -> list[str]:
    """Keys of uploads that have not ended."""
    return [upload["Key"] for upload in blobs.fs.list_multipart_uploads(blobs.root.partition("/")[0])]


def once(proxy: FaultyProxy, fault: str | int, method: str, part: str) -> list[str]:
    """The next request of that method whose path holds `part` fails; the list holds its path then."""
    hit: list[str] = []

    def decide(asked: str, path: str) -> str | int | None:
        if hit or asked != method or part not in path:
            return None
        hit.append(path)
        return fault

    proxy.fault = decide
    return hit


@pytest.mark.parametrize(
    ("fault", "method", "part"),
    [
        (503, "POST", "?uploads"),
        (500, "PUT", "partNumber=2"),
        (CUT, "PUT", "partNumber=2"),
        (LOSE, "PUT", "partNumber=3"),
        (DROP, "POST", "uploadId="),
        (LOSE, "POST", "uploadId="),  # it has ended there; tried again, there is no such upload
    ],
)
def test_an_upload_in_parts_gets_over_a_fault(proxy, blobs, fault, method, part) -> None:
    hit = once(proxy, fault, method, part)
    entry = blobs.write("folder/large", PIECES)
    assert hit and entry == measure(PIECES)
    with blobs.open_read("folder/large") as file:
        assert file.read() == b"".join(PIECES)
    assert uploads(blobs) == []


def test_a_lost_answer_to_a_small_file_is_no_failure(proxy, blobs) -> None:
    hit = once(proxy, LOSE, "PUT", "small")
    assert blobs.write("small", [b"abc"]) == measure([b"abc"])
    assert hit and blobs.read("small") == b"abc"
    hit = once(proxy, LOSE, "PUT", "pointer")
    blobs.replace("pointer", b"1")
    assert hit and blobs.read("pointer") == b"1"
    hit = once(proxy, LOSE, "PUT", "pointer")
    blobs.replace("pointer", b"2")
    assert hit and blobs.read("pointer") == b"2"


def test_what_another_has_written_is_never_replaced_by_a_new_file(blobs) -> None:
    blobs.write("a", [b"theirs"])
    with pytest.raises(StaleRequest, match="store/a: another process has written it"):
        blobs.write("a", [b"ours"])
    assert blobs.read("a") == b"theirs"
    blobs.write("large", [b"theirs"])
    with pytest.raises(StaleRequest, match="store/large"):
        blobs.write("large", PIECES)
    assert blobs.read("large") == b"theirs" and uploads(blobs) == []


def test_a_store_that_stays_down_is_unavailable_and_nothing_half_is_seen(proxy, blobs, monkeypatch) -> None:
    monkeypatch.setattr("tandem.storage.objects.S3_RETRIES", {"mode": "standard", "max_attempts": 2})
    store = VersionStore(blobs.url)
    small = {"adapter_config.json": [b"{}"], "adapter_model.safetensors": [b"1"]}
    first = store.commit(ADAPTER, 1, "b" * 64, small, {})
    proxy.fault = lambda method, path: CUT if "partNumber=2" in path else None
    with pytest.raises(Unavailable, match=r"v00000002/adapter_model\.safetensors"):
        store.commit(ADAPTER, 2, "b" * 64, {**small, "adapter_model.safetensors": PIECES}, {})
    assert latest(blobs.url).ref == first and store.versions(ADAPTER) == (1,)
    assert uploads(blobs) == []
    proxy.fault = lambda method, path: None
    second = store.commit(ADAPTER, 2, "b" * 64, {**small, "adapter_model.safetensors": PIECES}, {})
    assert latest(blobs.url).ref == second


def test_a_source_that_fails_in_the_middle_leaves_nothing(blobs) -> None:
    def breaks() -> Iterator[bytes]:
        yield from PIECES[:8]
        raise DataCorrupt("truncated")

    with pytest.raises(DataCorrupt):
        blobs.write("a", breaks())
    with pytest.raises(NotFound):
        blobs.read("a")
    assert uploads(blobs) == []


def test_uploads_that_a_killed_writer_left_are_given_up_at_the_next_start(blobs) -> None:
    code = """
import os, signal, sys
from tandem.storage import VersionStore
from tandem.types import PublishKind

def pieces():
    for n in range(12):
        yield bytes([n]) * 2**20
    os.kill(os.getpid(), signal.SIGKILL)

files = {"adapter_config.json": [b"{}"], "adapter_model.safetensors": pieces()}
VersionStore(sys.argv[1]).commit(PublishKind.ADAPTER, 1, "b" * 64, files, {})
"""
    subprocess.run([sys.executable, "-c", code, blobs.url], check=False, env=dict(os.environ))
    other = BlobStore(blobs.url + "-other")
    fs, bucket = other.fs, other.root.partition("/")[0]
    fs.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{other.root.partition('/')[2]}/theirs")
    assert sorted(uploads(blobs)) == ["store-other/theirs", "store/adapters/v00000001/adapter_model.safetensors"]
    store = VersionStore(blobs.url)
    store.recover()
    assert uploads(blobs) == ["store-other/theirs"]  # another store's are not ours to end
    assert store.versions(ADAPTER) == () and store.published(ADAPTER) == ()


def test_what_is_removed_is_no_longer_listed(blobs, tmp_path) -> None:
    store, reader = VersionStore(blobs.url), VersionStore(blobs.url)
    for version in (1, 2):
        files = {"adapter_config.json": [b"{}"], "adapter_model.safetensors": PIECES}
        ref = store.commit(ADAPTER, version, "b" * 64, files, {})
        assert reader.versions(ADAPTER)[-1] == version
    store.remove(ADAPTER, 1)
    assert reader.versions(ADAPTER) == (2,) and reader.find(ADAPTER, 1) is None
    assert (read_adapter(ref, tmp_path) / "adapter_model.safetensors").read_bytes() == b"".join(PIECES)
    assert isinstance(store.published(ADAPTER)[0].manifest.files["adapter_config.json"], FileEntry)


@pytest.mark.parametrize("fault", [DROP, CUT_ANSWER])
def test_a_read_that_never_succeeds_is_told_in_one_line(proxy, blobs, monkeypatch, fault) -> None:
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    monkeypatch.setattr("tandem.storage.objects.S3_RETRIES", {"mode": "standard", "max_attempts": 1})
    store = VersionStore(blobs.url)
    files = {"adapter_model.safetensors": [b"abc" * 1000], "adapter_config.json": [b"{}"]}
    store.commit(ADAPTER, 1, "b" * 64, files, {})
    found = store.find(ADAPTER, 1)
    assert found
    proxy.fault = lambda method, path: fault if method == "GET" and "adapter_model" in path else None
    with pytest.raises(Unavailable, match=r"reading .*adapters/v00000001/adapter_model.safetensors: "):
        store.verify(found)


def test_a_sweep_gives_up_only_what_a_store_uploads(proxy, blobs) -> None:
    bucket = blobs.root.partition("/")[0]
    for key in ("adapters/v00000001/adapter_model.safetensors", "others/adapters/v00000001/adapter_model.safetensors"):
        blobs.fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
    VersionStore(f"s3://{bucket}").recover()
    assert uploads(blobs) == ["others/adapters/v00000001/adapter_model.safetensors"]


def test_a_lease_whose_old_files_cannot_be_cleared_is_given_back(proxy, blobs) -> None:
    acquire(blobs.url).release()
    proxy.fault = lambda method, path: 403 if method == "DELETE" and "00000001.json" in path else None
    with pytest.raises(TandemError, match=r"removing .*lease/00000001.json"):
        acquire(blobs.url)
    assert json.loads(blobs.read("lease/00000002.json"))["released"]
