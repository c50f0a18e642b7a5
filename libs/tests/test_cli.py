"""The command line: quick commands stay quick, known failures are one line."""

import subprocess
import sys

import pytest

from tandem import cli
from tandem.types import DataCorrupt, Unavailable, UserError


def test_a_command_does_not_import_what_other_commands_need() -> None:
    code = (
        "import sys; sys.argv[1:] = ['train']; import tandem.cli as c; c.build_app(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("problem", "code"), [(UserError("a"), 2), (DataCorrupt("a"), 2), (Unavailable("a"), 1)])
def test_a_known_failure_is_one_line_and_its_exit_code(
    problem: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise problem

    monkeypatch.setattr(cli, "build_app", lambda: broken)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, capsys.readouterr().err) == (code, "tandem: a\n")
