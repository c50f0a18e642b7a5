"""What a dead child had started is found and ended."""

import subprocess
import sys
from pathlib import Path

# Starts a grandchild in a session of its own, says its number, and dies; whoever runs this adopts and ends it.
SCRIPT = """
import os, signal, subprocess, sys
from tandem.runtime import adopt, end_children
adopt()
child = subprocess.Popen([sys.executable, "-c", '''
import os, signal, subprocess, sys
grand = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(grand.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
'''])
assert child.wait() == -signal.SIGKILL
print(end_children(), flush=True)
"""


def test_what_a_dead_child_had_started_is_ended() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    grandchild, ended = map(int, ran.stdout.split())
    assert ended == 1
    assert not Path(f"/proc/{grandchild}").exists()
