"""The words in which a person is told of a death."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.config import Config
from tandem.config.changes import keys
from tandem.types import Death, Identity, Member, Recovery, Role
from tandem_controller.telling import GPU_MEMORY, MEMORY, recovered, told

ROLLOUT = Member(Identity(Role.ROLLOUT, 2, 1), "10.0.0.7:4711", "node-7")
RANK = Member(Identity(Role.LEARNER, 1, 4), "", "node-7")
DEATH = Death(ROLLOUT, "exit code 1", ("Traceback (most recent call last):", "ValueError: no such environment"))


def test_a_death_that_the_run_gets_over() -> None:
    assert told(DEATH, "a new one is started; its 5 groups are played by the others") == (
        "rollout 2 (generation 1) at 10.0.0.7:4711 on node-7 died: exit code 1",
        "  its last lines:",
        "    Traceback (most recent call last):",
        "    ValueError: no such environment",
        "  done: a new one is started; its 5 groups are played by the others",
        "  to do: nothing, unless it happens again; then look at its last lines, and at its log: in `logs` of the run "
        "directory, or in tandem-logs where that node keeps temporary files",
    )


def test_a_death_that_ends_the_run() -> None:
    assert told(Death(RANK, "killed by SIGKILL (signal 9), most likely for want of memory")) == (
        "learner 1 (generation 4) on node-7 died: killed by SIGKILL (signal 9), most likely for want of memory",
        "  done: nothing can take its place; the run ends",
        "  to do: look who killed it: a person, or the kernel for want of memory (dmesg on that node); for memory, "
        "lower learner.microbatch_tokens or learner.image_cache_gib; then continue with --resume",
    )


@pytest.mark.parametrize(
    ("why", "lines", "remedy"),
    [
        ("Ray ended it: the node ran out of memory (OOM)", (), "give that node more memory, or lower rollout.max_con"),
        ("exit code 1", ("torch.OutOfMemoryError: CUDA out of memory. Tried",), "lower rollout.engine.gpu_memory_util"),
        ("exit code 1", ("OSError: [Errno 28] No space left on device", "bye"), "free space on that node's disk"),
        ("its node node-7 is lost", (), "see to that node"),
        ("the node died: health check failed", (), "see to that node"),
        ("killed by SIGSEGV", (), "it is a fault of native code"),
        ("killed by signal 6", (), "it is a fault of native code"),
        ("ended by SIGTERM", (), "look who ended it"),
        ("does not answer", (), "look at the network"),
        ("", (), "look at its last lines"),
        ("exit code 9", (), "look at its last lines"),
    ],
)
def test_what_to_do_follows_from_the_reason_or_from_what_it_logged(
    why: str, lines: tuple[str, ...], remedy: str
) -> None:
    (*_, todo) = told(Death(ROLLOUT, why, lines), "a new one is started")
    assert todo.startswith(f"  to do: nothing, unless it happens again; then {remedy}")


def test_the_newest_line_that_says_something_counts_and_the_reason_before_it() -> None:
    lines = ("CUDA out of memory", "No space left on device", "bye")
    assert "disk" in told(Death(ROLLOUT, "exit code 1", lines), "x")[-1]
    assert "native code" in told(Death(ROLLOUT, "killed by SIGSEGV", lines), "x")[-1]


def test_the_manager_has_no_keys_to_lower() -> None:
    death = Death(Member(Identity(Role.CHECKPOINT_MANAGER, 0, 1), "h:1"), "out of memory")
    assert told(death, "restarted")[-1].endswith("give that node more memory, or take other work off that node")


def test_keys_that_people_are_told_to_lower_exist() -> None:
    known = keys(Config.model_validate({"model": {"path": "m"}}))
    named = {
        word.strip(",") for words in (*MEMORY.values(), *GPU_MEMORY.values()) for word in words.split() if "." in word
    }
    assert len(named) >= 6 and named <= set(known)


def test_what_a_dying_process_logs_stays_in_its_lines() -> None:
    noise = (*(f"line {number}" for number in range(20)), "\x1b[31mred\r\nnext", "x" * 1000, "")
    lines = told(replace(DEATH, why="exit\ncode 1", last_lines=noise), "a\nb")
    assert lines[0].endswith("died: exit code 1") and lines[-2] == "  done: a b"
    shown = lines[2:-2]
    assert shown[0] == "    line 15" and len(shown) == 7
    assert all(line.isprintable() and len(line) <= 204 for line in shown)


def test_a_place_that_is_served_again() -> None:
    assert recovered(Recovery(DEATH, 5.0, "restarted", 12.345)) == (
        "the place of rollout 2 (generation 1) is served again, 12.3 s after its death was noticed"
    )
    assert recovered(Recovery(DEATH, 5.0, "restarted", None)).endswith("is not served again yet")
