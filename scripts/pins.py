"""Resolve requirements/*.in into pinned requirements/*.txt: `python scripts/pins.py cpu|gpu WHEELS_FOLDER`.

pip resolves; nothing is installed. dev.txt is made together with cpu.txt and holds what dev.in adds to it,
so that one environment can hold both. WHEELS_FOLDER is where requirements/shims/build.py put its wheels.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "requirements"
HEADER = "# Made by `{command}` from {source}, which gives the reasons. Python 3.11, Linux, x86-64.\n"


def resolve(wheels: str, *arguments: str) -> dict[str, str]:
    """Name to version of everything that pip would install into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        flags = ["--dry-run", "--ignore-installed", "--quiet", "--find-links", wheels]
        command = [sys.executable, "-m", "pip", "install", *flags, "--report", str(report), *arguments]
        subprocess.run(command, check=True)
        installs = json.loads(report.read_text())["install"]
    found = {item["metadata"]["name"]: item["metadata"]["version"] for item in installs}
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found.items()}


def write(name: str, command: str, source: str, pins: dict[str, str]) -> None:
    """Write the pins, sorted by name."""
    lines = [f"{package}=={version}\n" for package, version in sorted(pins.items())]
    (FOLDER / name).write_text(HEADER.format(command=command, source=source) + "".join(lines))
    print(f"requirements/{name}: {len(lines)} pins")


def main() -> None:
    """Write the lists of one profile."""
    if len(sys.argv) != 3 or sys.argv[1] not in ("cpu", "gpu"):
        raise SystemExit("usage: python scripts/pins.py cpu|gpu WHEELS_FOLDER")
    profile, wheels = sys.argv[1:]
    pins = resolve(wheels, "-r", str(FOLDER / f"{profile}.in"))
    if profile == "gpu" and pins["torch"].endswith("+cpu"):
        raise SystemExit("pins: pip found a CPU build of torch; take CPU wheels out of its settings (pip config list)")
    write(f"{profile}.txt", f"make pins PROFILE={profile}", f"base.in and {profile}.in", pins)
    if profile == "cpu":
        everything = resolve(wheels, "-r", str(FOLDER / "cpu.txt"), "-r", str(FOLDER / "dev.in"))
        added = {name: version for name, version in everything.items() if name not in pins}
        write("dev.txt", f"make pins PROFILE={profile}", "dev.in", added)


if __name__ == "__main__":
    main()
