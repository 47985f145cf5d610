"""Ends every process that tests started when the process of the tests is killed: no server outlives its test run.

A small process beside the tests reads the ids of what they start from a pipe. The pipe ends with the process of the
tests, however that ends. An id is given out again by the system: the time at which a process began tells it apart.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_PROGRAM = """
import os, signal, sys
for given in list(sys.stdin):
    pid, began = given.split()
    try:
        with open(f"/proc/{pid}/stat") as stat:
            is_same = stat.read().rpartition(")")[2].split()[19] == began
        if is_same:
            os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""

_lock = threading.Lock()


def install() -> None:
    """Have all that ``subprocess`` starts from now on end with this process."""
    start = subprocess.Popen.__init__
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=subprocess.PIPE, start_new_session=True, text=True
    )

    def started(self: Any, *arguments: Any, **options: Any) -> None:
        start(self, *arguments, **options)
        try:
            began = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[19]
        except OSError:  # it has ended already
            return
        with _lock:
            assert watcher.stdin is not None
            watcher.stdin.write(f"{self.pid} {began}\n")
            watcher.stdin.flush()

    subprocess.Popen.__init__ = started  # type: ignore[method-assign]
