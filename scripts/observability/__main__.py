"""Writes deploy/grafana/dashboards and deploy/prometheus/rules; with --check, says which of them is stale."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from scripts.observability.checkpoints import checkpoints
from scripts.observability.cluster import cluster
from scripts.observability.learner import learner
from scripts.observability.overview import overview
from scripts.observability.rollout import rollout
from scripts.observability.rules import rules

ROOT = Path(__file__).parents[2]


def generated() -> Iterator[tuple[Path, str]]:
    """Every file, from the root, and its text."""
    for made in (overview(), rollout(), learner(), checkpoints(), cluster()):
        text = json.dumps(made, cls=JSONEncoder, sort_keys=True, indent=1)
        yield Path("deploy/grafana/dashboards") / f"{made.uid}.json", text + "\n"
    yield Path("deploy/prometheus/rules/tandem.yaml"), rules()


def main() -> None:
    """See the module."""
    if "--check" in sys.argv:
        stale = [str(path) for path, text in generated() if not _is(ROOT / path, text)]
        print(
            "\n".join(f"{path} is stale: make dashboards" for path in stale) or "dashboards and rules are as generated"
        )
        sys.exit(bool(stale))
    for path, text in generated():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)
        print(path)


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    main()
