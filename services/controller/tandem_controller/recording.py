"""The run's episodes, written beside the training into `episodes` of the run directory: see `tandem.storage.episodes`.

    played and learned from -> one thread -> train-00000012/, a part a step, thinned by `record.max_gib`
    evaluated               ->            -> eval/

Nobody waits for it: what cannot be written, or comes faster than it can be, is told once and left out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Semaphore

from tandem.config import Config
from tandem.model.chat import ChatFormat
from tandem.obs import get_logger
from tandem.storage.episode_lines import TRAIN, Beside, Label, Spell
from tandem.storage.episodes import EVAL, EpisodeWriter, train_part
from tandem.types import TrajectoryGroup, UserError
from tandem_controller.suites import Suite

log = get_logger(__name__)
RECORDED = "episodes"
WAITING = 4  # batches that may wait to be written: they are held in memory


class Recorder:
    """See the module. Its calls return at once."""

    def __init__(self, folder: Path, config: Config, version: int) -> None:
        """`version` is where the run starts or goes on."""
        self._folder, self._config, self._version = folder, config.record, version
        self._temperature = config.rollout.temperature
        self._spell = speller(config)
        self._thread = ThreadPoolExecutor(1, "record")
        self._writer: EpisodeWriter | None = None
        self._room = Semaphore(WAITING)
        self._told = self._off = False

    def step(
        self, version: int, groups: Sequence[TrajectoryGroup], advantages: Mapping[str, Mapping[int, float]]
    ) -> None:
        """What was played for `version` to learn from, and what each trajectory weighed that it did learn from."""
        kept = [group for group in groups if random.Random(group.seed).random() < self._config.share]
        if kept:
            self._submit(self._write_step, version, kept, advantages)

    def evaluation(self, version: int, suite: Suite, groups: Sequence[TrajectoryGroup]) -> None:
        """What a suite came to under a version; in place of what was recorded of the same before."""
        if self._config.evaluations:
            self._submit(self._write_evaluation, version, suite, list(groups))

    def take_back(self) -> None:
        """Have what was recorded beyond the start counted no more."""
        self._submit(self._take_back)

    async def close(self) -> None:
        """Wait until all is written."""
        await asyncio.to_thread(self._thread.shutdown)

    def _submit(self, work: Callable[..., None], *arguments: object) -> None:
        if self._off:
            return
        if not self._room.acquire(blocking=False):
            self._tell(f"{self._folder}: too slow to record all episodes; those of version {arguments[0]} are left out")
            return
        self._thread.submit(work, *arguments).add_done_callback(self._done)

    def _done(self, work: Future[None]) -> None:
        """In the thread: whatever went wrong there is no reason to end a run."""
        self._room.release()
        if problem := work.exception():
            self._off = True
            self._tell(f"no more episodes are recorded: {problem or type(problem).__name__}")

    def _tell(self, what: str) -> None:
        if not self._told:
            self._told = True
            log.warning("%s", what)

    def _open(self) -> EpisodeWriter:
        if self._writer is None:
            self._writer = EpisodeWriter(self._folder)
        return self._writer

    def _take_back(self) -> None:
        self._open().go_back(self._version)

    def _write_step(
        self, version: int, groups: Sequence[TrajectoryGroup], advantages: Mapping[str, Mapping[int, float]]
    ) -> None:
        writer = self._open()
        label = Label(TRAIN, version, self._temperature)
        writer.write(groups, Beside(label, advantages, self._spell), train_part(version))
        writer.make_room(self._config.max_gib * 2**30)

    def _write_evaluation(self, version: int, suite: Suite, groups: Sequence[TrajectoryGroup]) -> None:
        writer = self._open()
        label = Label(suite.name, version, suite.temperature)
        writer.anew(label, suite.env)
        writer.write(groups, Beside(label, spell=self._spell), EVAL)


@asynccontextmanager
async def recording(run: Path, config: Config, version: int) -> AsyncIterator[Recorder]:
    """A recorder into the run's directory; at the end it is waited for."""
    recorder = Recorder(run / RECORDED, config, version)
    if (run / RECORDED).exists():
        recorder.take_back()
    try:
        yield recorder
    finally:
        await recorder.close()


def speller(config: Config) -> Spell | None:
    """The text of each token by the model's tokenizer; None where there is none, as in a rehearsal."""
    try:
        return ChatFormat.load(config.model.path).pieces
    except UserError:
        return None
