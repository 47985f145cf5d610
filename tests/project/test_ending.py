"""What tests start ends with them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import subprocess
from tests import ending
ending.install()
print(subprocess.Popen(["sleep", "100000"], stdout=subprocess.DEVNULL).pid, flush=True)
input()
"""


def test_a_server_ends_with_the_test_run_that_was_killed() -> None:
    """SIGKILL leaves no time to tidy up: a server that lives on would hold its port, its files and the memory."""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tests:
        assert tests.stdout is not None
        server = os.pidfd_open(int(tests.stdout.readline()))
        assert select.select([server], [], [], 0)[0] == []
        tests.send_signal(signal.SIGKILL)
    assert select.select([server], [], [], 300)[0] == [server]
    os.close(server)
