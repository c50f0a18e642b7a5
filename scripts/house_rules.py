"""The house rules no linter has: functions fit on a screen, files can be read in one sitting."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES = 60
FILE_LINES, TEST_LINES = 300, 400
GENERATED = "libs/tandem/rpc/gen/"


def problems(name: str, text: str) -> list[str]:
    """One line for each rule that the file breaks."""
    found = []
    limit = TEST_LINES if "/test_" in name else FILE_LINES
    if (length := text.count("\n")) > limit:
        found.append(f"{name}: {length} lines, more than {limit}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                where = f"{name}:{node.lineno}: {node.name}"
                found.append(f"{where} has {length} lines, more than {FUNCTION_LINES}")
    return found


def main() -> None:
    """Check every Python file that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    names = [name for name in listed if not name.startswith(GENERATED) and (ROOT / name).exists()]
    found = [problem for name in names for problem in problems(name, (ROOT / name).read_text())]
    print("\n".join(found) or f"house rules: {len(names)} files keep them")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
