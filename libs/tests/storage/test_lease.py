"""One writer a store: who holds it, who may take it over, and what becomes of the one before."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
import time
from threading import Timer
from uuid import uuid4

import pytest

from tandem.storage import BlobStore, Published, VersionStore, acquire
from tandem.storage.lease import FOLDER, Process
from tandem.types import PublishKind, StaleRequest, UserError

ADAPTER = PublishKind.ADAPTER
SHORT_S = 0.4


@pytest.fixture(params=["local", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path) -> str:
    if request.param == "s3":
        return request.getfixturevalue("s3_url")
    return str(tmp_path / "store") if request.param == "local" else f"memory://lease-{uuid4().hex}"


def files(tag: str) -> dict[str, list[bytes]]:
    return {"adapter_config.json": [b"{}"], "adapter_model.safetensors": [tag.encode() * 100]}


def commit(store: VersionStore, version: int, tag: str = "a") -> None:
    store.commit(ADAPTER, version, "b" * 64, files(tag), {})


def abandon(lease) -> None:
    """The holder's process stands still: it renews nothing more."""
    lease._beating.stop()


def test_a_second_writer_is_refused_by_the_name_of_the_first(url: str) -> None:
    lease = acquire(url, SHORT_S)
    with pytest.raises(UserError, match=rf"host \S+, pid {os.getpid()}, since 20.* writes it; stop that manager"):
        acquire(url, SHORT_S)
    lease.check()
    lease.release()
    again = acquire(url, 1e6)  # given back: nobody is waited for
    with pytest.raises(UserError, match="taken over by host"):
        lease.check()
    again.check()
    abandon(again)


def test_a_holder_that_stands_still_is_replaced_and_fenced(url: str) -> None:
    first = acquire(url, SHORT_S)
    store = VersionStore(url, first.check)
    commit(store, 1)
    abandon(first)
    second = acquire(url, SHORT_S)
    successor = VersionStore(url, second.check)
    successor.recover()
    commit(successor, 2)
    for change in (
        lambda: commit(store, 2, "stale"),
        lambda: commit(store, 3),
        lambda: store.point(ADAPTER, store.published(ADAPTER)[0].ref),
        lambda: store.remove(ADAPTER, 1),
        lambda: store.blobs.create("note", b""),
    ):
        with pytest.raises(UserError, match=r"taken over by host .* writes nothing more there"):
            change()
    assert [found.ref.version for found in published(successor)] == [1, 2]
    second.release()
    assert BlobStore(url).files(FOLDER) == ("00000002.json",)


def test_who_took_a_store_over_is_named_to_one_that_makes_a_file(tmp_path) -> None:
    url = str(tmp_path / "store")
    first = acquire(url, SHORT_S)
    abandon(first)
    taken = False

    def fence() -> None:
        nonlocal taken
        first.check()
        if not taken:  # right after the check
            taken = True
            second = acquire(url, SHORT_S)
            VersionStore(url, second.check).recover()
            abandon(second)

    with pytest.raises(UserError, match="taken over by host"):
        BlobStore(url, fence=fence).create("note", b"n")


def test_a_holder_that_wakes_between_its_check_and_the_change_publishes_nothing(url: str) -> None:
    """The pause comes after any one of the checks that a commit makes: that check has passed."""
    if url.startswith("memory://"):
        pytest.skip("such a store lives and stands still with the one process that writes it")
    count = 1
    while paused_at(count, f"{url}-{count}"):
        count += 1
    assert count > 2


def paused_at(count: int, url: str) -> bool:
    """Pause a commit of v2 at so many checks, and let another take the store over; False where it ended before."""
    first = acquire(url, SHORT_S)
    commit(VersionStore(url, first.check), 1)
    passed = 0
    successors: list[VersionStore] = []

    def fence() -> None:
        nonlocal passed
        first.check()
        passed += 1
        if passed == count:
            abandon(first)
            second = acquire(url, SHORT_S)
            successors.append(VersionStore(url, second.check))
            successors[0].recover()
            before = published(successors[0])  # with v2 where it was whole before the takeover
            commit(successors[0], before[-1].ref.version + 1, "new")
            abandon(second)

    try:
        commit(VersionStore(url, fence), 2, "old")
    except (UserError, StaleRequest):
        assert successors
    abandon(first)
    if not successors:
        return False
    newest = published(successors[0])[-1]
    assert successors[0].blobs.read(f"adapters/v{newest.ref.version:08d}/adapter_model.safetensors") == b"new" * 100
    return True


def published(store: VersionStore) -> list[Published]:
    """All versions, every file verified; the last is the latest."""
    found = list(store.published(ADAPTER))
    for item in found:
        store.verify(item)
    assert store.latest(ADAPTER) == found[-1]
    return found


def test_of_many_at_once_one_gets_the_store(tmp_path) -> None:
    code = "import sys; from tandem.storage import acquire; sys.stdin.readline(); acquire(sys.argv[1], 2);"
    code += "print('got', flush=True); sys.stdin.readline()"
    pipe = subprocess.PIPE
    racers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "store")], stdin=pipe, stdout=pipe, stderr=pipe)
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdin
        racer.stdin.write(b"go\n")
        racer.stdin.flush()
    answers = [racer.stdout.readline() for racer in racers if racer.stdout]  # empty from one that has ended
    for racer in racers:
        racer.communicate(b"end\n")
    assert sorted(answers) == [b"", b"", b"got\n"]


def test_a_dead_process_of_this_machine_is_replaced_at_once(tmp_path) -> None:
    url = str(tmp_path / "store")
    code = "import os, signal, sys; from tandem.storage import acquire; acquire(sys.argv[1], 1e6);"
    subprocess.run([sys.executable, "-c", code + "os.kill(os.getpid(), signal.SIGKILL)", url], check=False)
    acquire(url).release()  # with a lifetime of 11 days, waiting would end the test


def test_a_holder_that_ends_while_it_is_watched_is_replaced_at_once(tmp_path) -> None:
    """What a killed run leaves behind ends a moment later: to go on with that run at once is no mistake."""
    url = str(tmp_path / "store")
    code = "import sys; from tandem.storage import acquire; acquire(sys.argv[1], 1e6); print('got', flush=True);"
    command = [sys.executable, "-c", code + "sys.stdin.readline()", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin and holder.stdout and holder.stdout.readline()
        killer = Timer(0.5, holder.kill)
        killer.start()
        acquire(url).release()  # the holder's lifetime is 11 days
        killer.join()


def test_a_process_elsewhere_is_never_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = dataclasses.replace(Process.current(), pid=2**22 + 1)  # more than Linux ever gives out
    assert gone.dead and not Process.current().dead
    assert dataclasses.replace(Process.current(), began="1").dead  # its number was given to another since
    assert not dataclasses.replace(gone, machine="another").dead
    assert not dataclasses.replace(gone, began="").dead


def test_a_process_that_proc_does_not_show_is_not_taken_for_dead(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    living = Process.current()
    gone = dataclasses.replace(living, pid=2**22 + 1)
    monkeypatch.setattr("tandem.storage.lease.PROC", tmp_path)  # as with hidepid=2
    assert not living.dead and gone.dead


def test_a_file_system_without_links_lets_one_alone_write_as_well(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", target)

    monkeypatch.setattr(os, "link", refuses)
    url = str(tmp_path / "store")
    lease = acquire(url, SHORT_S)
    assert not BlobStore(url).create(f"{FOLDER}/00000001.json", b"")
    with pytest.raises(UserError, match="writes it"):
        acquire(url, SHORT_S)
    lease.release()
    acquire(url, 1e6).release()


@pytest.mark.parametrize("shift_s", [-1e9, 1e9])
def test_wall_clocks_have_no_say(tmp_path, monkeypatch: pytest.MonkeyPatch, shift_s: float) -> None:
    url = str(tmp_path / "store")
    lease = acquire(url, SHORT_S)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + shift_s)
    with pytest.raises(UserError, match="writes it"):
        acquire(url, SHORT_S)
    lease.check()
    lease.release()


def test_a_lease_that_nobody_can_read_is_waited_for(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = str(tmp_path / "store")
    monkeypatch.setattr("tandem.storage.lease.LIFETIME_S", SHORT_S)
    BlobStore(url).create(f"{FOLDER}/00000007.json", b"{")
    lease = acquire(url, SHORT_S)
    lease.release()  # the count is raised no more, so that nothing lies there half written
    assert BlobStore(url).files(FOLDER) == ("00000008.json",)


def test_what_is_stored_says_who(url: str) -> None:
    lease = acquire(url, SHORT_S)
    text = BlobStore(url).read(f"{FOLDER}/00000001.json").decode()
    assert f'"pid": {os.getpid()}' in text and '"since"' in text
    lease.release()
    assert '"released": true' in BlobStore(url).read(f"{FOLDER}/00000001.json").decode()
