"""Databases that stay open for the life of a Python process: Spark uses its processes again for many tasks."""

from __future__ import annotations

import os

from oncelog.connect import Database, connect
from oncelog.log.log import Log

_OPEN: dict[tuple[int, str], Database] = {}


def database(url: str) -> Database:
    """Return the database at a URL, opened once in each process: neither clients nor locks survive a fork."""
    key = (os.getpid(), url)
    found = _OPEN.get(key)
    if found is None or found.closed:
        found = _OPEN[key] = connect(url)
    return found


def log(url: str, name: str, *, create: bool = False) -> Log:
    """Return a log, as URL and name alone say where it is."""
    return database(url).log(name, create=create)
