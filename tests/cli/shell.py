"""Running ``oncelog`` as people and scripts do: as a process."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

import msgspec

COMMAND = (sys.executable, "-m", "oncelog.cli")
TIMEOUT_S = 600
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Outcome(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: bytes
    err: bytes

    @property
    def json(self) -> Any:
        """The one JSON object that was printed."""
        return msgspec.json.decode(self.out)

    @property
    def seen(self) -> str:
        """What was printed, without colours and movements of the cursor."""
        return _ESCAPE.sub("", self.out.decode())

    @property
    def lines(self) -> list[Any]:
        """The JSON objects that were printed, one a line."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    @property
    def errors(self) -> list[Any]:
        """The JSON objects on stderr, one a line."""
        return [msgspec.json.decode(line) for line in self.err.splitlines()]


def environment(url: str | None) -> dict[str, str]:
    """Return an environment in which nothing but the URL tells the command what to do."""
    left_out = {"FORCE_COLOR", "COLUMNS", "ONCELOG_URL", "PYTHONUNBUFFERED"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return kept | {"TERM": "xterm-256color", "NO_COLOR": "1"} | ({} if url is None else {"ONCELOG_URL": url})


def shell(*arguments: str, url: str | None = None, given: bytes = b"") -> Outcome:
    """Run a command to its end."""
    done = subprocess.run(
        [*COMMAND, *arguments], input=given, env=environment(url), capture_output=True, timeout=TIMEOUT_S, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def started(*arguments: str, url: str) -> subprocess.Popen[bytes]:
    """Start a command whose three streams are pipes."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def stream(pipe: IO[bytes] | None) -> IO[bytes]:
    """Return a stream that is known to be there."""
    assert pipe is not None
    return pipe


def terminal(*arguments: str, url: str, typed: bytes = b"", columns: int = 100) -> Outcome:
    """Run a command in a terminal, in which something is typed; return all that is seen as ``out``."""
    pid, descriptor = pty.fork()
    if pid == 0:  # pragma: no cover (another process)
        os.execve(COMMAND[0], [*COMMAND, *arguments], environment(url) | {"COLUMNS": str(columns)})
    os.write(descriptor, typed)
    seen = b"".join(iter(lambda: _read(descriptor), b""))
    _, status = os.waitpid(pid, 0)
    os.close(descriptor)
    return Outcome(os.waitstatus_to_exitcode(status), seen, b"")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # what a terminal says when nobody is there any more
        return b""


def keys(objects: Sequence[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    """Return some values of each object."""
    return [tuple(found[name] for name in names) for found in objects]
