"""Writers fight for one store while they are stopped, woken and killed at random: what is latest is always whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tandem.storage import Published, VersionStore
from tandem.types import PublishKind

ADAPTER = PublishKind.ADAPTER
FIGHTERS, FENCED = 3, "writes nothing more there"
pytestmark = pytest.mark.slow


def begin(url: str, lifetime_s: float, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        command = [sys.executable, str(Path(__file__).with_name("fighter.py")), url, str(lifetime_s)]
        return subprocess.Popen(command, stderr=file, env=dict(os.environ))


@pytest.mark.parametrize(("where", "lifetime_s", "seconds"), [("local", 0.3, 15), ("s3", 1.5, 40)])
def test_the_latest_is_whole_and_what_was_seen_never_changes(
    request, tmp_path: Path, where: str, lifetime_s: float, seconds: float
) -> None:
    url = request.getfixturevalue("s3_url") if where == "s3" else str(tmp_path / "store")
    log, draw = tmp_path / "log", random.Random(4)
    fighters = [begin(url, lifetime_s, log) for _ in range(FIGHTERS)]
    reader, seen, stops, kills = VersionStore(url), dict[int, str](), 0, 0
    writers = set[bytes]()

    def look(found: Published) -> None:
        reader.verify(found)
        assert seen.setdefault(found.ref.version, found.ref.sha256) == found.ref.sha256
        writers.add(reader.blobs.read(f"adapters/v{found.ref.version:08d}/adapter_config.json").split()[0])

    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until or len(writers) < 2 or FENCED not in log.read_text():
            index = draw.randrange(FIGHTERS)
            if draw.random() < 0.1:
                fighters[index].kill()
                fighters[index].wait()
                fighters[index] = begin(url, lifetime_s, log)
                kills += 1
            else:
                fighters[index].send_signal(signal.SIGSTOP)
                time.sleep(draw.uniform(0, 3 * lifetime_s))
                fighters[index].send_signal(signal.SIGCONT)
                stops += 1
            if found := reader.latest(ADAPTER):
                look(found)
    finally:
        for fighter in fighters:
            fighter.kill()
            fighter.wait()
    reader.recover()
    published = reader.published(ADAPTER)
    for found in published:
        look(found)
    assert reader.latest(ADAPTER) == published[-1] and set(seen) == {found.ref.version for found in published}
    assert "Traceback" not in log.read_text()
    print(f"{where}: {len(published)} versions by {len(writers)} writers, {stops} stops, {kills} kills")
