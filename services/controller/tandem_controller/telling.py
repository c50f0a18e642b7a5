"""What a person is told of a death: who, where, why, what was done about it, and what to do.

rollout 2 (generation 1) at 10.0.0.7:4711 on node-7 died: exit code 1
  its last lines:
    ValueError: no such environment
  done: a new one is started on node-8; its 5 groups are played by the others
  to do: nothing, unless it happens again; then its last lines above say what is wrong with it
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tandem.types import Death, Recovery, Role

SHOWN_LINES = 8
WIDTH = 200  # characters of one of its lines
MEMORY: Mapping[Role, str] = {
    Role.ROLLOUT: "rollout.max_concurrent_episodes, rollout.engine.kv_cache_gib or rollout.engine.max_model_len",
    Role.LEARNER: "learner.microbatch_tokens or learner.image_cache_gib",
}
GPU_MEMORY: Mapping[Role, str] = {
    Role.ROLLOUT: "rollout.engine.gpu_memory_utilization or rollout.engine.max_num_seqs",
    Role.LEARNER: "learner.microbatch_tokens, or set learner.activation_checkpointing",
}
# What the reason, or what was logged last, says; the first that fits counts. {memory} and {gpu} say what to lower.
REMEDIES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), remedy)
    for pattern, remedy in (
        (r"cuda out of memory|outofmemoryerror|cuda error: out of memory", "{gpu}: the GPU's memory is full"),
        (
            r"no space left on device|enospc",
            "free space on that node's disk, or put run.dir and checkpoint.url elsewhere",
        ),
        (r"out of memory|\boom\b|oom.kill", "give that node more memory, or {memory}"),
        (
            r"\bnode\b.*\b(lost|died|dead|gone|removed|failed)\b|\b(lost|dead|removed) node\b",
            "see to that node; the run takes it back when it joins the cluster again",
        ),
        (
            r"sigkill|signal 9\b",
            "look who killed it: a person, or the kernel for want of memory (dmesg on that node); for memory, {memory}",
        ),
        (r"sigterm|signal 15\b", "look who ended it: a person, or whoever manages that node"),
        (
            r"sig(segv|abrt|bus|ill|fpe)|signal (4|6|7|8|11)\b|core dumped",
            "it is a fault of native code, or of the machine: try another node, then another driver or release",
        ),
        (
            r"no answer|does not answer|not answer|hang|hung|timed? ?out|deadline|unreachable|connection",
            "look at the network to that node, and at what the process does there",
        ),
    )
)
OTHERWISE = (
    "look at its last lines, and at its log: in `logs` of the run directory, or in tandem-logs where that node keeps "
    "temporary files"
)


def told(death: Death, action: str = "") -> tuple[str, ...]:
    """Lines for the console and the log: who died, where and why, what it logged last, what was done, what to do.

    An empty `action` says that nothing can be done: the run ends.
    """
    member = death.member
    where = f" on {member.node}" if member.node else ""
    lines = [f"{member}{where} died: {one_line(death.why) or 'nobody knows why'}"]
    if death.last_lines:
        shown = [one_line(line) for line in death.last_lines[-SHOWN_LINES:]]
        lines += ["  its last lines:", *(f"    {line}" for line in shown if line)]
    lines.append(f"  done: {one_line(action) if action else 'nothing can take its place; the run ends'}")
    return (*lines, f"  to do: {remedy(death, final=not action)}")


def remedy(death: Death, *, final: bool) -> str:
    """What a person may do about it; one that the run has got over matters only if it comes again."""
    what = _remedy(death)
    return f"{what}; then continue with --resume" if final else f"nothing, unless it happens again; then {what}"


def recovered(recovery: Recovery) -> str:
    """The line that says that all is well again."""
    died = recovery.death.member.identity
    if recovery.seconds is None:
        return f"the place of {died} is not served again yet"
    return f"the place of {died} is served again, {recovery.seconds:.1f} s after its death was noticed"


def _remedy(death: Death) -> str:
    role = death.member.identity.role
    keys = {
        "memory": f"lower {MEMORY[role]}" if role in MEMORY else "take other work off that node",
        "gpu": f"lower {GPU_MEMORY[role]}" if role in GPU_MEMORY else "take other work off that GPU",
    }
    for text in (death.why, *reversed(death.last_lines)):
        for pattern, words in REMEDIES:
            if pattern.search(text):
                return words.format(**keys)
    return OTHERWISE


def one_line(text: str) -> str:
    """One printable line of at most `WIDTH` characters: a dying process logs anything."""
    line = "".join(c if c.isprintable() else " " for c in text).rstrip()
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
