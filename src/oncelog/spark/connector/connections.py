"""What stays for the life of a Python process, which Spark uses for many tasks: open databases, loaded modules."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Mapping
from typing import Literal

from oncelog.connect import Database, connect
from oncelog.log.log import Log

_OPEN: dict[tuple[object, ...], Database] = {}


def database(url: str, storage: Mapping[str, str] | None = None) -> Database:
    """Return the database at a URL, opened once in each process: neither clients nor locks survive a fork.

    ``storage`` are the options of the store's client, for a bucket.
    """
    options = dict(storage or {})
    key = (os.getpid(), url, *sorted(options.items()))
    found = _OPEN.get(key)
    if found is None or found.closed:
        found = _OPEN[key] = connect(url, options=options)
    return found


def log(url: str, name: str, storage: Mapping[str, str] | None = None, *, create: bool = False) -> Log:
    """Return a log, as URL, name and options alone say where it is."""
    return database(url, storage).log(name, create=create)


@functools.cache
def spare_what_is_loaded(task: Literal["read", "write"]) -> None:
    """Have Spark, which collects garbage after every task, pass over what the first task of its kind has loaded: to
    look at it takes as long as to write 200,000 rows, or to read a million.
    """
    del task
    gc.freeze()
