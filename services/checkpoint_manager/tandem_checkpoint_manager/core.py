"""What the checkpoint manager does, without network: take shards, publish, find, list, delete, keep few.

receive(shard) x world_size  ->  publish  ->  get / list / delete
    hashed, spooled              joined tensor by tensor into the output as it is written; never held whole
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock

from tandem.obs import get_logger, span
from tandem.runtime import reach
from tandem.storage import (
    Manifest,
    Published,
    Receiver,
    Retention,
    Staging,
    VersionStore,
    add_scores,
    best_unknown,
    check_complete,
    identify,
    measure,
    spool_folder,
    survey,
    to_remove,
)
from tandem.types import (
    AdapterRef,
    NotFound,
    PublishKind,
    ShardRef,
    StaleRequest,
    TandemError,
    UserError,
)
from tandem_checkpoint_manager.measured import record_found, record_published
from tandem_checkpoint_manager.request import Request, checked, declared, files_of

log = get_logger(__name__)


class CheckpointManager:
    """The only writer of the store at `url`. Methods may be called from several threads."""

    def __init__(
        self,
        url: str,
        retention: Retention,
        rewind_to: int | None = None,
        base_folder: Path = Path(),
        fence: Callable[[], None] = lambda: None,
        run: str = "",
    ) -> None:
        """Check the store and clear what a crash has left there. After each publication `retention` is applied.

        `rewind_to` is for a run that resumes from that version: what is newer goes, for it will be made anew.
        `base_folder` is the base model's, whose config, tokenizer and processor a published model gets. `fence`
        raises where the store has another writer by now: it is asked before each change there. `run`: see `Staging`.

        Raises:
            UserError: the store cannot be written, or holds a training state newer than `rewind_to`.
        """
        self.retention = retention
        self.base_folder = base_folder
        self.store = VersionStore(url, fence)
        self.store.blobs.check_writable()
        identify(self.store, fresh=rewind_to is None)
        self.store.recover(rewind_to)
        record_found(self.store)
        self.staging = Staging(spool_folder(url), run=run)
        self._one_of_a_kind = {kind: Lock() for kind in PublishKind}  # a large state holds up no adapter
        self._tidy = Lock()  # scores and removals
        self._base_model = ""  # of all that is published; empty where that is not known yet
        self.last = 0, 0.0  # bytes and seconds of the last publication since the start
        self._warned = False
        self.problem = ""  # what keeps old versions from going

    def close(self) -> None:
        """Forget shards that were never published."""
        try:
            self.store.blobs.fence()
        except TandemError as problem:
            log.error("%s", problem)  # where they lay, another manager's lie by now
        else:
            self.staging.close()

    def receive(self, ref: ShardRef) -> AbstractContextManager[Receiver]:
        """Receive a shard: write its chunks in the body. See `Staging.receive` for what is refused."""
        return self.staging.receive(ref)

    def take(self, ref: ShardRef) -> ShardRef:
        """Take a shard that its rank has written where shards wait. See `Staging.take` for what is refused."""
        self.staging.take(ref)
        return ref

    def put(self, ref: ShardRef, chunks: Iterable[bytes]) -> ShardRef:
        """Receive a shard from chunks at hand."""
        with self.receive(ref) as receiver:
            for chunk in chunks:
                receiver.write(chunk)
        return ref

    def publish(
        self,
        kind: PublishKind,
        version: int,
        *,
        world_size: int,
        base_model: str,
        adapter_config_json: str = "",
        metadata_json: str = "{}",
    ) -> AdapterRef:
        """Join the shards of one version and make the result the latest. The same again is welcome.

        Raises:
            UserError: a shard is missing, the request is malformed, the base model is not the store's, the
                version is published with other content, or the store cannot be written.
            StaleRequest: the version is older than the latest.
            DataCorrupt: the shards do not make one whole file.
        """
        request = checked(kind, version, world_size, base_model, adapter_config_json, metadata_json)
        about = {"tandem.kind": str(kind), "rl.policy_version": version}
        with self._one_of_a_kind[kind], span("publish", about) as told:
            began = time.monotonic()
            ref = self._publish(request)
            told.set({"tandem.bytes": ref.size})
            self.last = ref.size, time.monotonic() - began
            record_published(kind, ref, self.last[1])
            self.staging.drop_up_to(kind, version)
            with self._tidy:
                self._prune()
        return ref

    def get(self, kind: PublishKind, version: int | None = None) -> Published:
        """A published version, the latest when None. Raises NotFound, or DataCorrupt where it is damaged."""
        found = self.store.latest(kind) if version is None else self.store.find(kind, version)
        if found is None:
            name = f"{kind} v{version}" if version is not None else str(kind)
            raise NotFound(f"store {self.store.blobs.url}: no {name} is published")
        return found

    def list(self, kind: PublishKind) -> tuple[Published, ...]:
        """All published versions of a kind, oldest first."""
        return self.store.published(kind)

    def delete(self, kind: PublishKind, version: int) -> None:
        """Remove a version, or the staged shards of one that was never published.

        Raises:
            StaleRequest: it is the latest.
            NotFound: there is no such version.
        """
        with self._one_of_a_kind[kind], self._tidy:
            staged = self.staging.drop(kind, version)
            if version not in self.store.versions(kind):
                if staged:
                    return
                raise NotFound(f"store {self.store.blobs.url}: no {kind} v{version} to delete")
            latest = self.store.latest(kind)
            if latest and latest.manifest.version == version:
                raise StaleRequest(f"{kind} v{version} is the latest and cannot be deleted; publish a newer one first")
            self.store.remove(kind, version)

    def score(self, kind: PublishKind, version: int, scores: Mapping[str, float]) -> None:
        """Add figures to a published version. Raises NotFound where it is none, UserError for one not finite."""
        with self._tidy:
            add_scores(self.store, kind, version, scores)

    def _publish(self, request: Request) -> AdapterRef:
        reach("manager/publish/started")
        latest = self.store.latest(request.kind)
        self._check_base(request)
        staged = self.staging.of(request.kind, request.version)
        present = self.store.find(request.kind, request.version)
        if present and not staged:
            _check_same(request, present.manifest, declared(request, present.manifest))
        elif not present and latest and request.version < latest.manifest.version:
            raise StaleRequest(
                f"{request.what}: v{latest.manifest.version} is published already; only newer ones can follow"
            )
        else:
            complete = check_complete(staged, request.world_size, request.what)
            with self.staging.opened(complete) as shards:
                files = files_of(request, shards, self.base_folder)
                if not present:
                    with span("consolidate", {"rl.ranks": len(shards)}):
                        ref = self.store.commit(
                            request.kind, request.version, request.base_model, files, request.in_manifest
                        )
                    log.info(
                        "published %s: %d bytes from %d shards at %s",
                        request.what,
                        ref.size,
                        len(shards),
                        ref.url,
                    )
                    return ref
                entries = {name: measure(pieces) for name, pieces in files.items()}
            again = Manifest(request.kind, request.version, request.base_model, entries, request.in_manifest)
            _check_same(request, present.manifest, again)
        if latest is None or latest.manifest.version < request.version:
            self.store.point(request.kind, present.ref)  # an attempt before this one came as far as the folder
        return present.ref

    def _check_base(self, request: Request) -> None:
        """A store is of one base model, found out once: of a long run the state's manifest is large."""
        if not self._base_model:
            found = [latest.manifest.base_model for kind in PublishKind if (latest := self.store.latest(kind))]
            self._base_model = found[0] if found else ""
        if self._base_model not in ("", request.base_model):
            raise UserError(
                f"{request.what}: belongs to base model {request.base_model[:12]}..., "
                f"but store {self.store.blobs.url} holds versions "
                f"of {self._base_model[:12]}...; choose another checkpoint.url"
            )

    def _prune(self) -> None:
        reach("manager/prune/started")
        try:
            stored = survey(self.store)
            going = to_remove(stored, self.retention)
            if going and (unknown := best_unknown(stored, self.retention)) and not self._warned:
                self._warned = True
                log.warning("%s", unknown)
            for kind, version in going:
                self.store.remove(kind, version)
        except TandemError as problem:
            log.warning("old versions stay for now: %s", problem)  # what was asked for is published
            self.problem = str(problem)
        else:
            self.problem = ""


def _check_same(request: Request, present: Manifest, again: Manifest) -> None:
    if present.encode() == again.encode():
        return
    changed = [name for name in present.files if present.files[name] != again.files.get(name)] or ["metadata"]
    raise UserError(f"{request.what}: is published already with another {changed[0]}; publish the next version")
