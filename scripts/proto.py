"""Generate libs/tandem/rpc/gen from proto/; `--check` fails when what is committed differs.

protoc names Python modules by proto path (tandem.common.v1); ours live under tandem.rpc.gen, so imports are
rewritten.
"""

import filecmp
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
GEN = ROOT / "libs/tandem/rpc/gen"
IMPORT = re.compile(r"^(from|import) tandem\.(\w+\.v\d+)", re.MULTILINE)


def generate(out: Path) -> None:
    """Write the generated package into `out` (made if missing)."""
    with tempfile.TemporaryDirectory() as raw:
        files = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
        flags = [
            f"--proto_path={PROTO}",
            f"--python_out={raw}",
            f"--pyi_out={raw}",
            f"--grpc_python_out={raw}",
        ]
        if protoc.main(["protoc", *flags, *files]) != 0:
            raise SystemExit("proto: protoc refused the files above")
        for path in sorted(Path(raw).rglob("*.py*")):
            target = out / path.relative_to(Path(raw) / "tandem")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(IMPORT.sub(r"\1 tandem.rpc.gen.\2", path.read_text()))
    for folder in [out, *(path for path in out.rglob("*") if path.is_dir())]:
        (folder / "__init__.py").touch()


def differences(left: Path, right: Path) -> list[str]:
    """Relative paths that are missing on one side or differ."""
    names = {
        path.relative_to(base)
        for base in (left, right)
        for path in base.rglob("*.py*")
        if "__pycache__" not in path.parts
    }

    def same(name: Path) -> bool:
        sides = (left / name, right / name)
        return all(side.exists() for side in sides) and filecmp.cmp(*sides, shallow=False)

    return sorted(str(name) for name in names if not same(name))


def main() -> None:
    """Generate, or check."""
    if "--check" not in sys.argv[1:]:
        generate(GEN)
        return
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        if drift := ", ".join(differences(Path(fresh), GEN)):
            raise SystemExit(f"proto: generated code is out of date ({drift}); run `make proto` and commit")


if __name__ == "__main__":
    main()
