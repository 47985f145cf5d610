"""One server for a database on a disk: a lock on its folder, which the operating system takes back when it dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from oncelog.errors import LogBusy, Unavailable
from oncelog.storage.local import links

LOCK = ".server.lock"


@contextlib.contextmanager
def holding(url: str) -> Iterator[None]:
    """Hold the folder of a ``file://`` database; ``LogBusy`` with the other server's pid if it has one."""
    if not url.startswith("file:"):
        yield
        return
    folder = Path(unquote(urlsplit(url).path))
    try:
        links.check_owner(folder)
        folder.mkdir(mode=links.FOLDER_MODE, parents=True, exist_ok=True)
        descriptor = links.create_file(folder.resolve() / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        message = f"{folder}: {error.strerror}"
        raise Unavailable(message) from error
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).strip()
        pid = int(text) if text.isdigit() else None
        message = f"{folder}: process {pid or '?'} serves this database already; a database on a disk has one server"
        raise LogBusy(message, pid=pid) from None
    os.pwrite(descriptor, f"{os.getpid()}".ljust(32).encode(), 0)
