"""Shards that the learner's ranks send here, until they are joined: one version at a time, no more than may be served.

    PutShard rank 0 --.
    PutShard rank 1 ---+--> hashed as they come, in memory --> join --> a folder as the checkpoint manager publishes it
    PutShard rank 2 --'

Nothing from the wire names a file. What was sent for a version that is not loaded goes with the first shard of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

from tandem.storage import (
    MANIFEST,
    Manifest,
    Receiver,
    Staging,
    adapter_files,
    check_complete,
    explained,
    measure,
    parse_object,
    shard_name,
)
from tandem.types import AdapterRef, PublishKind, Pushed, ShardRef, StaleRequest, UserError
from tandem_rollout.own_folder import SETTING, free_bytes

ANEW = "load the published v{version}, or send another version"


@dataclass(eq=False, slots=True)
class Incoming:
    """A shard on its way, as long as it is the inbox's latest of its rank."""

    inbox: Inbox
    receiver: Receiver

    def write(self, chunk: bytes) -> None:
        """Take the next bytes. Raises as `Receiver.write`, and StaleRequest where another has taken its place."""
        self.inbox.check_latest(self)
        self.receiver.write(chunk)


class Inbox:
    """See the module. `most` bounds the bytes of one version's shards together."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most
        self._staging = Staging(folder, SETTING, ANEW)
        self._lock = RLock()
        self._version = -1
        self._incoming: dict[int, Incoming] = {}  # by rank

    @contextmanager
    def receive(self, ref: ShardRef) -> Iterator[Incoming]:
        """Receive a shard: write its chunks in the body. A shard of another version than before replaces what is here.

        Raises:
            UserError: no adapter's shard, too large, no room for it, or other bytes of this rank are here.
            DataCorrupt: truncated, changed on the way, or not what it was announced as.
            StaleRequest: meanwhile a shard of another version came, or this rank's once more.
        """
        if ref.kind is not PublishKind.ADAPTER:
            raise UserError(f"{shard_name(ref)}: replicas take adapters only; send it to the checkpoint manager")
        with ExitStack() as stack:
            with self._lock:  # ranks send at once, each on a thread of its own
                if ref.version != self._version:
                    self.clear()
                    self._version = ref.version
                self._check_room(ref)
                receiver = stack.enter_context(self._staging.receive(ref))
                incoming = self._incoming[ref.rank] = Incoming(self, receiver)
            try:
                yield incoming
                self.check_latest(incoming)
            finally:
                with self._lock:
                    if self._incoming.get(ref.rank) is incoming:
                        del self._incoming[ref.rank]

    def check_latest(self, incoming: Incoming) -> None:
        """Raises StaleRequest where another shard has taken this one's place."""
        if self._incoming.get(incoming.receiver.ref.rank) is not incoming:
            raise StaleRequest(f"{incoming.receiver.what}: is no longer wanted: a later one has taken its place")

    def holds(self, version: int) -> bool:
        """Whether any shard of a version is here."""
        return bool(self._staging.of(PublishKind.ADAPTER, version))

    def join(self, ref: AdapterRef, pushed: Pushed, folder: Path) -> AdapterRef:
        """Write the adapter that the shards of `ref.version` make to the empty `folder`, in a few pieces at a time, and
        let the shards go. Returns the reference by which it is published, at that folder. Blocks.

        Raises:
            UserError: a rank's shard is missing (the others stay), or the shards are of another base model.
            DataCorrupt: the shards make no whole adapter.
        """
        what = f"{PublishKind.ADAPTER} v{ref.version}, as the ranks sent it"
        held = check_complete(self._staging.of(PublishKind.ADAPTER, ref.version), pushed.world_size, what)
        metadata = parse_object(pushed.metadata_json or "{}", f"{what}: metadata_json")
        try:
            # not hashed again: whoever asked for it compares the manifest with the checkpoint manager's
            with self._staging.opened(held, check=False) as shards:
                files = adapter_files(shards, ref.base_model, pushed.adapter_config_json, what)
                entries = {}
                for name, pieces in files.items():
                    with (
                        explained(f"writing {folder / name}", writing=True, setting=SETTING),
                        open(folder / name, "xb") as file,
                    ):
                        entries[name] = measure(pieces, file.write)
        finally:
            self._staging.drop(PublishKind.ADAPTER, ref.version)
        manifest = Manifest(PublishKind.ADAPTER, ref.version, ref.base_model, entries, metadata)
        with explained(f"writing {folder / MANIFEST}", writing=True, setting=SETTING):
            (folder / MANIFEST).write_bytes(manifest.encode())
        return manifest.ref(str(folder))

    def clear(self) -> None:
        """Forget all shards, also those on their way."""
        with self._lock:
            self._incoming.clear()
            self._staging.drop(PublishKind.ADAPTER, self._version)

    def _check_room(self, ref: ShardRef) -> None:
        others = {rank: held.size for rank, held in self._staging.of(PublishKind.ADAPTER, ref.version).items()}
        others |= {rank: incoming.receiver.ref.size for rank, incoming in self._incoming.items()}
        others.pop(ref.rank, None)
        if ref.size + sum(others.values()) > self.most:
            raise UserError(
                f"{shard_name(ref)}: {ref.size} bytes, with {sum(others.values())} of other ranks, are more than the "
                f"{self.most} that an adapter for this replica can have; lower learner.lora.rank, or raise "
                "rollout.engine.max_lora_rank"
            )
        if (free := free_bytes(self.folder)) < ref.size:
            raise UserError(
                f"{shard_name(ref)}: {ref.size} bytes, but {self.folder} has {free} free; free space there or choose "
                f"another {SETTING}"
            )
