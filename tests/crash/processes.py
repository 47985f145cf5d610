"""Starting the programs of ``worker.py``, talking to them in lines, and ending them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Self

ROOT = Path(__file__).parents[2]


class Process:
    """A program of ``worker.py`` that runs until the ``with`` is left, or it is killed."""

    def __init__(self, program: str, *arguments: str, stdout: int | IO[bytes] = subprocess.PIPE) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.worker", program, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=stdout,
        )
        self.pid = self._process.pid

    def tell(self, line: str) -> None:
        """Give it a line to read."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> list[str]:
        """Wait for the next line it prints, and return its words; ``[]`` when it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().split()

    def ask(self, line: str) -> list[str]:
        """Give it a line and return what it answers."""
        self.tell(line)
        return self.hear()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a power button would, and wait until it has ended."""
        self._process.kill()
        self._process.wait()

    def wait_until_stopped(self) -> None:
        """Wait until a SIGSTOP has had its effect."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def finish(self) -> int:
        """Tell it that there is nothing more to read; return how it ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
