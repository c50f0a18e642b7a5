"""Every fault point is where code reaches it: a name alone would be a crash that no test has."""

from __future__ import annotations

import re
from pathlib import Path

from tandem.runtime.faults import POINTS
from tandem.types import PublishKind

ROOT = Path(__file__).parents[2]


def test_every_point_is_reached_somewhere_and_no_other() -> None:
    sources = [*ROOT.glob("libs/tandem/**/*.py"), *ROOT.glob("services/*/tandem_*/**/*.py")]
    named = {name for path in sources for name in re.findall(r'\breach\(f?"([^"]+)"\)', path.read_text())}
    reached = {name.format(kind=kind) for name in named for kind in PublishKind}
    assert reached == POINTS
