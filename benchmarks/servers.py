"""Starting servers and ending them, by the process that was started and no other."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.contender import NotInstalledError

_START_S = 60.0


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def binary(name: str, package: str, folders: Sequence[Path] = ()) -> str:
    """Return where a program is; ``NotInstalledError`` names the package that has it."""
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=os.pathsep.join([*map(str, folders), str(beside), os.environ.get("PATH", "")]))
    if found is None:
        message = f"not installed: {package}"
        raise NotInstalledError(message)
    return found


class Server:
    """One server process, with what it says in a file."""

    def __init__(self, command: Sequence[str], log: Path, ready: Callable[[], object], user: str | None = None) -> None:
        """Start it, and wait until ``ready`` does not raise any more."""
        self._log = log
        identity = {"user": user, "group": user_group(user), "extra_groups": []} if user is not None else {}
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent, **identity)  # type: ignore[call-overload]
        self._wait(ready)

    @property
    def pid(self) -> int:
        """The process."""
        return int(self._process.pid)

    def _wait(self, ready: Callable[[], object]) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                ready()
            except Exception as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.end(signal.SIGKILL)
                    message = f"did not start: {self._log.read_text(errors='replace')[-500:]}"
                    raise RuntimeError(message) from error
                time.sleep(0.005)
            else:
                return

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, and wait until it has ended."""
        if self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(_START_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def user_group(user: str) -> int:
    """Return the group of a user."""
    import pwd  # noqa: PLC0415  where there is no root, nobody needs it

    return pwd.getpwnam(user).pw_gid
