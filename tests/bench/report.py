"""What every benchmark prints: medians and spread of two sides measured in turn, and their ratio; kept as history."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

HISTORY = Path("runs/bench.jsonl")


def show(name: str, unit: str, sides: Mapping[str, Sequence[float]]) -> None:
    """Print a table of the sides, the first one's median over each other's as a ratio, and append it to the history."""
    first = statistics.median(next(iter(sides.values())))
    table = Table(title=f"{name} ({unit})", title_justify="left")
    for column in ("side", "median", "least", "most", "repeats", "first / this"):
        table.add_column(column, justify="left" if column == "side" else "right")
    for side, values in sides.items():
        middle = statistics.median(values)
        figures = (f"{middle:.1f}", f"{min(values):.1f}", f"{max(values):.1f}", str(len(values)))
        table.add_row(side, *figures, f"{first / middle:.2f}")
    Console().print(table)
    HISTORY.parent.mkdir(exist_ok=True)
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    row = {
        "name": name,
        "unit": unit,
        "time": time.time(),
        "machine": machine,
        "sides": {k: list(v) for k, v in sides.items()},
    }
    with HISTORY.open("a") as file:
        file.write(json.dumps(row) + "\n")
