"""Adapters that the ranks send: the same bytes and the same checks as by the store, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rollout_service import Running, serving
from rollout_shards import Sent, config_with, push, pushed, sent, shards, tensors, unknown

from tandem.types import AdapterRef, DataCorrupt, NotFound, PublishKind, StaleRequest, TandemError, UserError
from tandem_rollout import adapters
from tandem_rollout.base_model import BaseModel
from tandem_rollout.inbox import Inbox
from tandem_rollout.own_folder import PREFIX, OwnFolder, parent_for

BARE = AdapterRef(0, "", "", "", "", 0)
Publish = Callable[..., AdapterRef]


@pytest.fixture(scope="module")
def one(publish: Publish) -> AdapterRef:
    return publish(1)


@pytest.fixture(scope="module")
def two(publish: Publish) -> AdapterRef:
    return publish(2)


@pytest.fixture(scope="module")
def three(publish: Publish) -> AdapterRef:
    return publish(3)


@asynccontextmanager
async def serving_first(base: BaseModel, first: AdapterRef, folder: Path) -> AsyncIterator[Running]:
    """A replica that serves version 1, sent to it."""
    async with serving(base, {"sync": {"folder": str(folder)}}) as running:
        await running.client.load_adapter(unknown(first), await push(running.client, first, 2))
        yield running


def held(folder: Path) -> dict[str, set[str]]:
    """What lies in the replica's folder: adapters, and the shards that wait."""
    (own,) = folder.glob(f"{PREFIX}*")
    return {
        "adapters": {path.name[:16] for path in own.iterdir() if path.name != "shards"},
        "shards": {path.name for path in (own / "shards").iterdir()},
    }


async def test_versions_follow_one_another_and_no_more_than_two_are_held(
    base: BaseModel, one: AdapterRef, two: AdapterRef, three: AdapterRef, tmp_path: Path
) -> None:
    async with serving_first(base, one, tmp_path) as running:
        for version, ref in ((2, two), (3, three)):
            given = await push(running.client, ref, 2)
            await running.client.load_adapter(unknown(ref), given)
            assert await running.client.load_adapter(unknown(ref), given) == running.replica._loaded  # a retry
            (running.replica._folder.path / "tandem-v00000009-cut-off").mkdir()  # of a load whose caller went away
            left = {"tandem-v00000009"}
            assert held(tmp_path) == {"adapters": {f"tandem-v0000000{version}", *left}, "shards": set()}
        await running.client.load_adapter(BARE)
        assert held(tmp_path) == {"adapters": set(), "shards": set()}
        await running.client.load_adapter(unknown(ref), await push(running.client, ref, 2))
        given = await push(running.client, ref, 3)  # sent once more, by another number of ranks
        assert await running.client.load_adapter(unknown(ref), given) == running.replica._loaded
        assert held(tmp_path) == {"adapters": {"tandem-v00000003"}, "shards": set()}


async def test_shards_that_were_never_loaded_go_with_the_next_version(
    base: BaseModel, one: AdapterRef, two: AdapterRef, three: AdapterRef, tmp_path: Path
) -> None:
    async with serving_first(base, one, tmp_path) as running:
        await push(running.client, two, 2)
        first = shards(three, 2)[0]
        await running.client.put_shard(first.ref, first.chunks())
        assert held(tmp_path)["shards"] == {f"adapter-v00000003-rank00000-{first.ref.sha256}.safetensors"}
        with pytest.raises(UserError, match=r"v3, as the ranks sent it: no shard of rank 1 of 2 has come"):
            await running.client.load_adapter(unknown(three), pushed(three, 2))
        await running.client.load_adapter(two)  # from the store, as one that has missed a shard would
        assert held(tmp_path) == {"adapters": {"tandem-v00000002"}, "shards": set()}


async def test_a_stream_that_breaks_leaves_nothing(
    base: BaseModel, one: AdapterRef, two: AdapterRef, tmp_path: Path
) -> None:
    (shard,) = shards(two, 1)

    def half() -> Iterator[bytes]:
        yield shard.data[:1000]
        raise ConnectionResetError("the rank is gone")

    async with serving_first(base, one, tmp_path) as running:
        with pytest.raises((asyncio.CancelledError, TandemError)):
            await running.client.put_shard(shard.ref, half())
        for _ in range(1000):  # until the server has seen the end of it
            if not held(tmp_path)["shards"]:
                break
            await asyncio.sleep(0.01)
        assert held(tmp_path) == {"adapters": {"tandem-v00000001"}, "shards": set()}
        assert (await running.client.status()).policy_version == 1


def flipped(shard: Sent) -> Sent:
    data = bytearray(shard.data)
    data[-1] ^= 1
    return replace(shard, data=bytes(data))


def put_wrong(shard: Sent) -> dict[str, tuple[Sent, type[TandemError], str]]:
    """Shards that are refused as they come, each with the error that says why."""
    name = "shard of adapter v2, rank 0 of 1"
    state = replace(shard.ref, kind=PublishKind.STATE)
    return {
        "truncated": (replace(shard, data=shard.data[:-9]), DataCorrupt, f"{name}: truncated"),
        "flipped bit": (flipped(shard), DataCorrupt, f"{name}: sha256 is"),
        "longer": (replace(shard, data=shard.data + b"\0"), DataCorrupt, f"{name}: more bytes than the"),
        "no shard": (sent(b"no safetensors", 2, 0, 1), DataCorrupt, f"{name}: no safetensors file, or truncated"),
        "other version": (Sent(replace(shard.ref, version=3), shard.data), DataCorrupt, "the file says version 2"),
        "other rank": (Sent(replace(shard.ref, rank=1, world_size=2), shard.data), DataCorrupt, "the file says rank 0"),
        "state": (Sent(replace(state), shard.data), UserError, "shard of state v2.*replicas take adapters only"),
        "huge": (replace(shard, ref=replace(shard.ref, size=2**40)), UserError, "are more than the .* that an adapter"),
    }


@pytest.mark.parametrize("case", put_wrong(sent(b"?", 2, 0, 1)))
async def test_a_bad_shard_is_one_clear_error(
    base: BaseModel, one: AdapterRef, two: AdapterRef, tmp_path: Path, case: str
) -> None:
    (good,) = shards(two, 1)
    shard, kind, message = put_wrong(good)[case]
    async with serving_first(base, one, tmp_path) as running:
        with pytest.raises(kind, match=message) as refused:
            await running.client.put_shard(shard.ref, shard.chunks())
        assert "\n" not in str(refused.value)
        assert held(tmp_path) == {"adapters": {"tandem-v00000001"}, "shards": set()}
        assert (await running.client.status()).policy_version == running.replica.engine.policy_version == 1
        await running.client.load_adapter(unknown(two), await push(running.client, two, 1))


def joined_wrong(two: AdapterRef) -> dict[str, tuple[list[Sent], str, type[TandemError], str]]:
    """Shards that are whole each, but make no adapter: with the config to join them by, and the error."""
    whole, config = tensors(two), pushed(two, 2).adapter_config_json
    name = min(whole)
    missing = {key: value for key, value in whole.items() if key != name}
    wide = {key: value.astype(np.float64) for key, value in whole.items()}
    one_wide = whole | {name: whole[name].astype(np.float64)}
    halves = [shards(two, 2)[0], shards(two, 2, one_wide)[1]]
    other_base = shards(two, 2, base_model="f" * 64)
    unknown_module = whole | {key.replace("q_proj", "lm_head"): value for key, value in whole.items()}
    return {
        "dtype": (list(shards(two, 2, wide)), config, DataCorrupt, "is F64; all must be F32 or BF16"),
        "dtypes differ": (halves, config, DataCorrupt, r"is F32 in .* rank 0 of 2 but F64 in"),
        "no partner": (list(shards(two, 2, missing)), config, DataCorrupt, "is there without its lora_"),
        "other rank": (list(shards(two, 2)), config_with(two, r=4), DataCorrupt, "adapter_config_json says r 4"),
        "no config": (list(shards(two, 2)), "{", UserError, "adapter_config_json: not valid JSON"),
        "base model": (list(other_base), config, UserError, "belongs to base model ffffffffffff"),
        "module": (
            list(shards(two, 2, unknown_module)),
            config,
            UserError,
            "applies no adapter to .*lm_head",
        ),
        "half": ([shards(two, 2)[0], shards(two, 2, missing)[1]], config, DataCorrupt, "is in no shard"),
    }


CASES = ["dtype", "dtypes differ", "no partner", "other rank", "no config", "base model", "module", "half"]


@pytest.mark.parametrize("case", CASES)
async def test_shards_that_make_no_adapter_are_one_clear_error(
    base: BaseModel, one: AdapterRef, two: AdapterRef, tmp_path: Path, case: str
) -> None:
    wrong, config, kind, message = joined_wrong(two)[case]
    async with serving_first(base, one, tmp_path) as running:
        for shard in wrong:
            await running.client.put_shard(shard.ref, shard.chunks())
        with pytest.raises(kind, match=message) as refused:
            await running.client.load_adapter(unknown(two), replace(pushed(two, 2), adapter_config_json=config))
        assert "\n" not in str(refused.value)
        assert held(tmp_path) == {"adapters": {"tandem-v00000001"}, "shards": set()}
        assert (await running.client.status()).policy_version == running.replica.engine.policy_version == 1
        await running.client.load_adapter(unknown(two), await push(running.client, two, 1))


async def test_duplicate_ranks(
    base: BaseModel, one: AdapterRef, two: AdapterRef, publish: Publish, tmp_path: Path
) -> None:
    other = publish(2, scale=0.1)
    first, again = shards(two, 2)[0], shards(other, 2)[0]
    async with serving_first(base, one, tmp_path) as running:
        await running.client.put_shard(first.ref, first.chunks())
        await running.client.put_shard(first.ref, first.chunks())  # the same: welcome
        with pytest.raises(UserError, match=r"other bytes of this rank are here .* load the published v2, or send"):
            await running.client.put_shard(again.ref, again.chunks())
        third = shards(two, 3)[2]
        with pytest.raises(UserError, match="rank 2 of 3: shards of 2 ranks are here"):
            await running.client.put_shard(third.ref, third.chunks())
        with pytest.raises(UserError, match="the shards are of 2 ranks, not of 3"):
            await running.client.load_adapter(unknown(two), pushed(two, 3))


def test_a_later_shard_takes_an_unfinished_ones_place(two: AdapterRef, three: AdapterRef, tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "shards", 2**30)
    old, new = shards(two, 1)[0], shards(three, 1)[0]
    with pytest.raises(StaleRequest, match="v2, rank 0 of 1: is no longer wanted"), inbox.receive(old.ref) as slow:
        slow.write(old.data[:100])
        with inbox.receive(new.ref) as fast:
            fast.write(new.data)
        slow.write(old.data[100:])
    assert inbox.holds(3) and not inbox.holds(2)
    assert [path.name.rpartition("-")[0] for path in inbox.folder.iterdir()] == ["adapter-v00000003-rank00000"]


def test_all_ranks_together_are_bounded(two: AdapterRef, tmp_path: Path) -> None:
    first, second = shards(two, 2)
    inbox = Inbox(tmp_path / "shards", first.ref.size + second.ref.size - 1)
    with inbox.receive(first.ref) as receiving:
        with pytest.raises(UserError, match="are more than the"), inbox.receive(second.ref):
            raise AssertionError("was taken")
        receiving.write(first.data)
    with pytest.raises(UserError, match=r"lower learner\.lora\.rank"), inbox.receive(second.ref):
        raise AssertionError("was taken")


@pytest.fixture
def small_disk(two: AdapterRef, tmp_path: Path) -> Iterator[Path]:
    """A file system in memory with room for the shards of one adapter, but not for what they make, too."""
    folder = tmp_path / "small"
    folder.mkdir()
    size = 3 * len(shards(two, 1)[0].data) // 2
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_memory_folder(base: BaseModel, two: AdapterRef, small_disk: Path) -> None:
    """No room for a shard, then none for its second half, then none for what the shards make."""
    (shard,) = shards(two, 1)
    half = b"x" * (len(shard.data) // 2)
    async with serving(base, {"sync": {"folder": str(small_disk)}}) as running:
        other = small_disk / "of another process"
        other.write_bytes(2 * half)
        with pytest.raises(UserError, match=r"but .* has \d+ free; free space there or choose another sync.folder"):
            await running.client.put_shard(shard.ref, shard.chunks())
        other.unlink()
        with (
            pytest.raises(UserError, match=r"spooling .*: No space left on device; .* another sync.folder"),
            running.replica.receive(shard.ref) as receiving,
        ):
            other.write_bytes(2 * half)
            for chunk in shard.chunks():
                receiving.write(chunk)
        other.unlink()
        given = await push(running.client, two, 2)
        with pytest.raises(UserError, match=r"writing .*adapter_model.safetensors: No space left on device"):
            await running.client.load_adapter(unknown(two), given)
        assert held(small_disk) == {"adapters": set(), "shards": set()} and running.engine.policy_version == 0
        grow = await asyncio.create_subprocess_exec("mount", "-o", "remount,size=64m", str(small_disk))
        assert await grow.wait() == 0
        await running.client.load_adapter(unknown(two), await push(running.client, two, 2))


async def test_a_full_memory_folder_and_a_published_adapter(base: BaseModel, two: AdapterRef, small_disk: Path) -> None:
    async with serving(base, {"sync": {"folder": str(small_disk)}}) as running:
        other = small_disk / "of another process"
        other.write_bytes(b"x" * len(shards(two, 1)[0].data))
        with pytest.raises(UserError, match=r"adapter_model.safetensors: No space left .* another sync\.folder"):
            await running.client.load_adapter(two)
        assert held(small_disk)["adapters"] == set() and running.engine.policy_version == 0
        other.unlink()
        assert (await running.client.load_adapter(two)).policy_version == 2


def test_a_store_that_lets_an_adapter_go_while_it_is_copied_is_not_blamed_on_the_folder(
    base: BaseModel, two: AdapterRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, read = tmp_path / "store", adapters.read_adapter
    shutil.copytree(two.url, store)

    def read_then_gone(*arguments: Any, **more: Any) -> Path:
        folder = read(*arguments, **more)
        (store / "adapter_model.safetensors").unlink()
        return folder

    monkeypatch.setattr(adapters, "read_adapter", read_then_gone)
    with pytest.raises(NotFound, match=r"reading .*adapter_model\.safetensors: not there"):
        adapters.stage_adapter(replace(two, url=str(store)), adapters.AdapterRules(base, 64, True), tmp_path / "own")
    assert list((tmp_path / "own").iterdir()) == []


def test_a_folder_swept_as_soon_as_it_is_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another process that starts: its owner has not locked it yet."""
    make, made = tempfile.mkdtemp, list[str]()

    def make_then_swept(**given: Any) -> str:
        made.append(make(**given))
        if len(made) == 1:
            shutil.rmtree(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_then_swept)
    own = OwnFolder(tmp_path)
    assert str(own.path) == made[1] and list(tmp_path.iterdir()) == [own.path]
    own.close()


LEFT = """
import os, sys
from pathlib import Path
from tandem_rollout.own_folder import OwnFolder
own = OwnFolder(Path(sys.argv[1]))
(own.path / "adapter").write_bytes(b"x")
print(own.path, flush=True)
if len(sys.argv) > 2:
    os.kill(os.getpid(), 9)
sys.stdin.read()
"""


def test_what_a_killed_process_has_left_is_swept_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", LEFT, str(tmp_path), "die"], capture_output=True, text=True)
    left = Path(killed.stdout.strip())
    assert killed.returncode == -9 and (left / "adapter").exists()
    command = [sys.executable, "-c", LEFT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living:
        assert living.stdout is not None
        used = Path(living.stdout.readline().strip())
        assert not left.exists()
        own = OwnFolder(tmp_path)
        assert (used / "adapter").exists() and own.path.exists()
        living.communicate("")
    own.close()
    assert list(tmp_path.iterdir()) == [used]  # ended in order, but without `close`
    OwnFolder(tmp_path).close()
    assert not list(tmp_path.iterdir())


def test_memory_is_used_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert parent_for(str(tmp_path / "given"), 0) == tmp_path / "given"
    assert parent_for("", 2**60) == tmp_path
    assert parent_for("", 1) == (Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path)
