"""Servers for the tests: PostgreSQL and ``oncelog serve``, started for real, and ended by their process ids."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psycopg

_START_S = 60.0
_AGAIN_S = 0.01
_OPTIONS = ("fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=60")


def _binary(name: str) -> str:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))
    assert found is not None, "PostgreSQL is not installed: scripts/debian postgres"
    return found


@contextlib.contextmanager
def postgresql(port: int | None = None) -> Iterator[str]:
    """Start a server; yield the URL of a database in it. It refuses to run as root, and takes short paths only.

    With a ``port`` of this machine it listens there, too, for those who know no sockets in folders.
    """
    folder = Path(tempfile.mkdtemp(prefix="oncelog-pg-"))
    user = "nobody" if os.getuid() == 0 else None
    identity = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user is not None else {}
    if user is not None:
        shutil.chown(folder, user, pwd.getpwnam(user).pw_gid)
    try:
        made = [_binary("initdb"), "-D", "data", "-A", "trust", "-U", "queue", "-E", "UTF8", "--no-locale", "--no-sync"]
        subprocess.run(made, cwd=folder, check=True, capture_output=True, **identity)  # type: ignore[call-overload]
        listening = (f"listen_addresses={'' if port is None else '127.0.0.1'}", f"port={port or 5432}")
        options = [part for option in (*_OPTIONS, *listening) for part in ("-c", option)]
        command = [_binary("postgres"), "-D", "data", "-k", str(folder), *options]
        with (folder.parent / f"{folder.name}.log").open("wb") as output:
            server = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, **identity)  # type: ignore[call-overload]
        try:
            url = f"postgresql://queue@/postgres?host={folder}&port={port or 5432}"
            _wait(url, server)
            yield url
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        (folder.parent / f"{folder.name}.log").unlink(missing_ok=True)


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    """Ask until it answers: a server says nothing when it is ready."""
    pause = threading.Event()
    for _ in range(round(_START_S / _AGAIN_S)):
        assert server.poll() is None, "PostgreSQL ended at once"
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            pause.wait(_AGAIN_S)
        else:
            return
    message = "PostgreSQL does not answer"
    raise AssertionError(message)


class Serving:
    """A real ``oncelog serve`` in a process of its own, on free ports of loopback."""

    def __init__(self, url: str, options: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        """Start it, and return when it is ready."""
        self.url = url
        command = [sys.executable, "-m", "oncelog.cli", "serve", "--url", url, "--json"]
        for flag in ("--grpc", "--http"):
            if flag not in options:
                command += [flag, "127.0.0.1:0"]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by end)
        self.process = subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0", **(environment or {})},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            message = f"oncelog serve ended with {self.process.returncode}: {self.errors()}"
            raise AssertionError(message)
        addresses = json.loads(line)
        self.grpc: str = addresses["grpc"]
        self.http: str = addresses["http"]

    def errors(self) -> str:
        """Return what it has written to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode()

    def stop(self) -> int:
        """Have it drain; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()
