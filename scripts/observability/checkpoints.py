"""Checkpoints and storage: what saving costs, how old the latest is, and whether the file system is the limit."""

from __future__ import annotations

from typing import Any

from scripts.observability.panels import HALF, QUARTER, choice, lines, number, page, times
from scripts.observability.queries import average, busy, grown, happened, highest, rate, select, share

from tandem.obs import instruments as of

MINE = 'run="$run",role=~"$role"'
AGE = f"time() - {highest(select(of.CHECKPOINT_TIMESTAMP), 'kind')}"


def checkpoints() -> Any:
    """The page."""
    roles = choice("role", "Role", f'label_values({of.STORAGE_BYTES.name}{{run="$run"}}, role)')
    return page(
        "tandem-checkpoints",
        "Saves and publications, and the file system as the processes see it.",
        [("", _figures()), ("Saving and publishing", _saving()), ("Storage", _storage())],
        [roles],
    )


def _figures() -> list[Any]:
    return [
        number("Age of the state", "Since the latest was published.", _age("state"), "s"),
        number("Age of the adapter", "Since the latest was published.", _age("adapter"), "s"),
        number("State's version", "That a resume starts from.", highest(select(of.CHECKPOINT_VERSION, kind="state"))),
        number("State's size", "Of the latest.", highest(select(of.CHECKPOINT_BYTES, kind="state")), "bytes"),
        number("Stall of a save", "Mean; training waits so long.", average(of.SAVE_STALL, window="10m"), "s"),
        number("Saves failed", "In the shown time.", grown(of.SAVE_FAILURES), steps=((1, "red"),), curve=False),
        number("Yet to be mirrored", "Versions.", highest(select(of.MIRROR_PENDING))),
        number("Journal behind", "Groups that are not in the journal yet.", highest(select(of.JOURNAL_BACKLOG))),
    ]


def _age(kind: str) -> str:
    return f"time() - {highest(select(of.CHECKPOINT_TIMESTAMP, kind=kind))}"


def _saving() -> list[Any]:
    return [
        times("Stall", "Training held up by a save: copy, and wait for the one before.", of.SAVE_STALL),
        times("A save", "From copy to publication.", of.SAVE_TIME),
        times("A publication", "By kind.", of.PUBLISH_TIME, "kind"),
        times("Publish to load", "From export to the last replica serving it.", of.PUBLISH_TO_LOAD),
        lines("Age of the latest", "By kind.", [(AGE, "{{kind}}")], "s"),
        lines("Published", "By kind.", [(rate(of.PUBLISHED_BYTES, "kind"), "{{kind}}")], "Bps"),
    ]


def _storage() -> list[Any]:
    moved = rate(of.STORAGE_BYTES, "operation", "store", scope=MINE)
    spent = busy(of.STORAGE_TIME, "operation", "store", scope=MINE, operation="read|write")
    sync = share(rate(of.PHASE, phase="sync"), rate(of.PHASE))
    return [
        lines("Throughput", "Of all processes.", [(moved, "{{operation}}, {{store}}")], "Bps", width=QUARTER),
        lines(
            "Throughput of one stream",
            "Bytes over the seconds spent: flat at the file system's limit, whatever is asked of it.",
            [(share(moved, spent), "{{operation}}, {{store}}")],
            "Bps",
            width=QUARTER,
        ),
        lines(
            "Operations",
            "A second.",
            [(happened(of.STORAGE_TIME, "operation", "store", scope=MINE), "{{operation}}, {{store}}")],
            "ops",
            width=QUARTER,
        ),
        lines(
            "Streams at once",
            "Seconds of waiting for storage, a second.",
            [(busy(of.STORAGE_TIME, "operation", scope=MINE), "{{operation}}")],
            width=QUARTER,
        ),
        times(
            "Latency", "Of a piece read or written, of an fsync.", of.STORAGE_TIME, "operation", width=HALF, scope=MINE
        ),
        lines(
            "Waiting for synchronisation",
            "Share of wall time in which the run waits for export, publication and load.",
            [(sync, "sync")],
            "percentunit",
            width=HALF,
            percent=True,
        ),
    ]
