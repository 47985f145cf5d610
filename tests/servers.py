"""A PostgreSQL of its own for the tests: started for real, on a socket in a folder, and ended by its process id."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
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
