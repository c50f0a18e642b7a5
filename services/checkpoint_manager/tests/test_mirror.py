"""The mirror: what it copies, what it checks, and that its failures are told and cost the publisher nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from tests.s3 import CUT, DROP, ENDPOINT, LOSE, faulty_proxy, make_bucket

from tandem.config import Config
from tandem.rpc.clients import CheckpointClient
from tandem.runtime import poll
from tandem.storage import Retention, VersionStore, acquire, latest, pin, read_adapter, read_scores, survey
from tandem.types import MirrorStatus, PublishKind, UserError
from tandem_checkpoint_manager import mirror as mirror_module
from tandem_checkpoint_manager.core import CheckpointManager
from tandem_checkpoint_manager.main import start
from tandem_checkpoint_manager.mirror import Mirror

ADAPTER, STATE = PublishKind.ADAPTER, PublishKind.STATE
BASE = "a" * 64
CONFIG = json.dumps({"peft_type": "LORA", "r": 5, "lora_alpha": 8, "target_modules": ["q_proj"]})


@pytest.fixture
def publish(tmp_path: Path, make_tensors, make_shards) -> Iterator[Callable[..., None]]:
    """Publishes adapters, and states of one small tensor, in the store at tmp_path/store."""
    manager = CheckpointManager(str(tmp_path / "store"), Retention(3, 1, "solved"))

    def publish(version: int, kind: PublishKind = ADAPTER) -> None:
        whole = make_tensors(version) if kind is ADAPTER else {"m": np.full((2, 2), version, np.float32)}
        for sent in make_shards(whole, 1, version, kind=kind):
            manager.put(sent.ref, [sent.data])
        config = CONFIG if kind is ADAPTER else ""
        manager.publish(kind, version, world_size=1, base_model=BASE, adapter_config_json=config)

    publish.manager = manager  # type: ignore[attr-defined]
    yield publish
    manager.close()


@contextmanager
def mirroring(manager: CheckpointManager, url: str, **more) -> Iterator[Mirror]:
    mirror = Mirror(manager.store, url, manager.retention, **more)
    try:
        yield mirror
    finally:
        mirror.close()


def settled(mirror: Mirror, wanted: Callable[[MirrorStatus], bool] = lambda status: not status.backlog) -> MirrorStatus:
    found = poll(lambda: status if wanted(status := mirror.status()) else None, every_s=0.05, for_s=60)
    assert found, mirror.status()
    return found


@pytest.fixture(params=["local", "s3"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("s3_url") if request.param == "s3" else str(tmp_path / "mirror")


def contents(url: str) -> dict[PublishKind, list[int]]:
    """What is there, every file verified, and that the pointers name the newest."""
    store = VersionStore(url)
    for kind in (ADAPTER, STATE):
        found = store.published(kind)
        for item in found:
            store.verify(item)
        assert store.latest(kind) == (found[-1] if found else None)
    return {kind: [item.ref.version for item in store.published(kind)] for kind in (ADAPTER, STATE)}


def test_all_that_is_published_is_copied_and_again_after_a_restart(publish, target, tmp_path) -> None:
    publish(1)
    publish(1, STATE)
    with mirroring(publish.manager, target) as mirror:
        status = settled(mirror)
        assert dict(status.durable) == {ADAPTER: 1, STATE: 1} and status.copy_bytes and status.copy_seconds > 0
        publish(2)
        assert mirror.status().backlog == 1
        mirror.wake()
        settled(mirror)
    for version in (3, 4, 5):
        publish(version)
    publish.manager.score(ADAPTER, 5, {"solved": 0.5})
    with mirroring(publish.manager, target) as mirror:
        settled(mirror)
    assert contents(target) == contents(str(tmp_path / "store")) == {ADAPTER: [1, 3, 4, 5], STATE: [1]}
    store = VersionStore(target)
    assert read_scores(store, ADAPTER, 5) == {"solved": 0.5}
    source, copy = (read_adapter(latest(url).ref) for url in (str(tmp_path / "store"), target))
    for path in source.iterdir():
        if path.name != "scores.json":
            assert (copy / path.name).read_bytes() == path.read_bytes()


def test_retention_and_marks_reach_the_mirror(publish, target, tmp_path) -> None:
    with mirroring(publish.manager, target) as mirror:
        for version in (1, 2, 3):
            publish(version)
        publish.manager.score(ADAPTER, 2, {"solved": 0.9})
        pin(publish.manager.store, ADAPTER, 1)
        mirror.wake()
        settled(mirror)
        for version in range(4, 8):
            publish(version)
        mirror.wake()
        settled(mirror)
    assert contents(target) == contents(str(tmp_path / "store")) == {ADAPTER: [1, 2, 5, 6, 7], STATE: []}
    assert survey(VersionStore(target)).pinned == {(ADAPTER, 1)}


def test_what_is_damaged_in_the_mirror_is_copied_anew(publish, target) -> None:
    publish(1)
    publish(2)
    with mirroring(publish.manager, target) as mirror:
        settled(mirror)
    store = VersionStore(target)
    path = store.blobs.full("adapters/v00000002/adapter_model.safetensors")
    store.blobs.fs.pipe_file(path, b"x" + store.blobs.fs.cat_file(path)[1:])
    with mirroring(publish.manager, target) as mirror:
        assert settled(mirror).durable == {ADAPTER: 2}
    assert contents(target)[ADAPTER] == [1, 2]


def test_what_is_damaged_in_the_mirror_holds_nothing_else_up(publish, tmp_path) -> None:
    publish(1)
    with mirroring(publish.manager, str(tmp_path / "mirror")) as mirror:
        settled(mirror)
        (tmp_path / "mirror/adapters/v00000001/manifest.json").write_text("{")
        publish(2)
        mirror.wake()
        status = settled(mirror, lambda status: bool(status.problem) or not status.backlog)
        assert (status.problem, status.durable) == ("", {ADAPTER: 2})
    assert latest(str(tmp_path / "mirror")).ref.version == 2


def test_a_pin_taken_back_while_the_mirror_was_down_is_taken_back_there(publish, tmp_path) -> None:
    publish(1)
    pin(publish.manager.store, ADAPTER, 1)
    target = str(tmp_path / "mirror")
    with mirroring(publish.manager, target) as mirror:
        settled(mirror, lambda status: not status.backlog and bool(survey(VersionStore(target)).pinned))
    pin(publish.manager.store, ADAPTER, 1, pinned=False)
    with mirroring(publish.manager, target) as mirror:
        settled(mirror, lambda status: not status.backlog and not survey(VersionStore(target)).pinned)


def test_what_is_damaged_in_the_store_is_named_and_not_copied(publish, target) -> None:
    publish(1)
    publish(2)
    path = Path(publish.manager.get(ADAPTER, 1).ref.url) / "adapter_model.safetensors"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with mirroring(publish.manager, target) as mirror:
        status = settled(mirror, lambda status: bool(status.problem))
    assert f"{path}: sha256 is" in status.problem and status.durable == {ADAPTER: 2} and status.backlog == 1
    assert contents(target)[ADAPTER] == [2]


def test_a_resumed_run_takes_the_mirror_back_with_it(publish, target, tmp_path, make_tensors, make_shards) -> None:
    publish(1)
    publish(1, STATE)
    publish(2)
    with mirroring(publish.manager, target) as mirror:
        settled(mirror)
    publish.manager.close()
    resumed = CheckpointManager(str(tmp_path / "store"), Retention(3), rewind_to=1)
    (sent,) = make_shards(make_tensors(99), 1, 2)
    resumed.put(sent.ref, [sent.data])
    resumed.publish(ADAPTER, 2, world_size=1, base_model=BASE, adapter_config_json=CONFIG)
    with mirroring(resumed, target) as mirror:
        status = settled(mirror, lambda status: bool(status.problem) or not status.backlog)
        assert "is another run's adapter v2; choose another checkpoint.also_to" in status.problem
    with mirroring(resumed, target, rewind_to=1) as mirror:
        settled(mirror)
    assert contents(target) == {ADAPTER: [1, 2], STATE: [1]}
    assert latest(target).ref.sha256 == resumed.get(ADAPTER).ref.sha256


@pytest.mark.parametrize("rewind_to", [None, 2])
def test_another_runs_place_is_left_alone(publish, target, tmp_path, make_tensors, make_shards, rewind_to) -> None:
    for version in (1, 2, 3, 4):
        publish(version)
    with mirroring(publish.manager, target) as mirror:
        settled(mirror)
    other = CheckpointManager(str(tmp_path / "other"), Retention(1))
    for version in (1, 2):
        (sent,) = make_shards(make_tensors(99), 1, version)
        other.put(sent.ref, [sent.data])
        other.publish(ADAPTER, version, world_size=1, base_model=BASE, adapter_config_json=CONFIG)
    with mirroring(other, target, rewind_to=rewind_to) as mirror:
        status = settled(mirror, lambda status: bool(status.problem))
    assert f"store {target} holds another run's versions; choose another checkpoint.also_to" in status.problem
    assert (status.backlog, status.durable) == (2, {}) and contents(target)[ADAPTER] == [2, 3, 4]
    other.close()


def test_what_the_mirror_refuses_names_its_own_setting(publish, tmp_path) -> None:
    publish(1)
    (tmp_path / "mirror").write_text("in the way")
    with mirroring(publish.manager, str(tmp_path / "mirror")) as mirror:
        told = settled(mirror, lambda status: bool(status.problem)).problem
    assert told.endswith("choose another checkpoint.also_to")


def test_two_managers_do_not_mirror_to_one_place(publish, tmp_path) -> None:
    publish(1)
    target = str(tmp_path / "mirror")
    with mirroring(publish.manager, target, lease_s=1) as first:
        settled(first)
        with mirroring(publish.manager, target, lease_s=1) as second:
            assert "writes it; stop that manager" in settled(second, lambda status: bool(status.problem)).problem
        assert not first.status().problem


def test_a_fault_now_and_then_is_tried_again_and_nobody_sees_it(publish, s3_endpoint, s3_url, monkeypatch) -> None:
    for version in (1, 2):
        publish(version)
    faults = cycle([500, 503, DROP, CUT, LOSE])
    with faulty_proxy(s3_endpoint) as proxy:
        monkeypatch.setenv(ENDPOINT, proxy.url)
        url = f"s3://{make_bucket()}/store"
        proxy.fault = lambda method, path: next(faults) if len(proxy.asked) % 7 == 0 else None
        with mirroring(publish.manager, url) as mirror:
            assert settled(mirror).durable == {ADAPTER: 2}
        assert len(proxy.asked) > 35  # each fault had its turn
        proxy.fault = lambda method, path: None
        assert contents(url)[ADAPTER] == [1, 2]


def test_a_mirror_that_is_down_is_told_and_caught_up_with(
    publish, s3_endpoint, s3_url, monkeypatch, tmp_path, caplog
) -> None:
    monkeypatch.setattr(mirror_module, "FIRST_RETRY_S", 0.1)
    monkeypatch.setattr("tandem.storage.objects.S3_RETRIES", {"mode": "standard", "max_attempts": 1})
    with faulty_proxy(s3_endpoint) as proxy:
        monkeypatch.setenv(ENDPOINT, proxy.url)
        url = f"s3://{make_bucket()}/store"
        proxy.fault = lambda method, path: DROP
        with mirroring(publish.manager, url) as mirror:
            for version in (1, 2):
                publish(version)  # not held up
                mirror.wake()
            status = settled(mirror, lambda status: bool(status.problem))
            assert (status.backlog, status.durable) == (2, {}) and url in status.problem
            proxy.fault = lambda method, path: None
            assert settled(mirror, lambda status: not status.problem).durable == {ADAPTER: 2}
        assert f"mirror {url} is behind, trying again in 0 s" in caplog.text


def test_a_mirror_that_is_down_for_days_is_still_tried(publish, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(mirror_module, "FIRST_RETRY_S", 0.0)
    publish(1)
    (tmp_path / "mirror").write_text("in the way")
    with mirroring(publish.manager, str(tmp_path / "mirror")) as mirror:
        assert poll(lambda: mirror._failures > 1100 or not mirror._thread.alive or None, every_s=0.05, for_s=60)
        (tmp_path / "mirror").unlink()
        assert settled(mirror, lambda status: not status.problem).durable == {ADAPTER: 1}


async def test_the_service_mirrors_and_says_so(tmp_path, make_tensors, make_shards) -> None:
    checkpoint = {"url": str(tmp_path / "store"), "also_to": str(tmp_path / "mirror")}
    service = await start(Config.model_validate({"model": {"path": "m"}, "checkpoint": checkpoint}))
    client = CheckpointClient(service.address)
    (sent,) = make_shards(make_tensors(), 1, 1)
    await client.put_shard(sent.ref, [sent.data])
    await client.publish(ADAPTER, 1, world_size=1, base_model=BASE, adapter_config_json=CONFIG)
    told = (await client.status()).mirror
    assert told and told.url == str(tmp_path / "mirror")
    assert service.mirror
    settled(service.mirror)
    await client.score(ADAPTER, 1, {"solved": 0.5})
    copy = VersionStore(str(tmp_path / "mirror"))
    assert poll(lambda: read_scores(copy, ADAPTER, 1) or None, every_s=0.05, for_s=60) == {"solved": 0.5}
    await client.close()
    await service.stop()  # waits a while for what is yet to be copied
    assert contents(str(tmp_path / "mirror"))[ADAPTER] == [1]


async def test_a_store_is_not_its_own_mirror(tmp_path) -> None:
    run, checkpoint = {"dir": str(tmp_path), "name": "r"}, {"also_to": f"{tmp_path}/r/checkpoints/"}
    with pytest.raises(UserError, match=r"checkpoint.also_to .* is checkpoint.url itself; choose another place"):
        await start(Config.model_validate({"model": {"path": "m"}, "run": run, "checkpoint": checkpoint}))
    assert not (tmp_path / "r").exists()


async def test_a_stop_gives_back_all_though_the_store_cannot_be_read(tmp_path) -> None:
    urls = [str(tmp_path / "store"), str(tmp_path / "mirror")]
    checkpoint = {"url": urls[0], "also_to": urls[1], "lease_s": 1e6}
    service = await start(Config.model_validate({"model": {"path": "m"}, "checkpoint": checkpoint}))
    assert service.mirror
    settled(service.mirror, lambda status: (tmp_path / "mirror" / "store.json").exists() and not status.backlog)
    (tmp_path / "store" / "adapters").symlink_to("adapters")  # a loop
    await service.stop()
    for url in urls:
        acquire(url, 1e6).release()  # at once, or the test would not end
