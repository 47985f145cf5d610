"""A log that a command works on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import oncelog
from oncelog.cli.terminal.options import meant
from oncelog.errors import NotFound, OncelogError

if TYPE_CHECKING:
    from oncelog.connect import Database
    from oncelog.log.log import Log


@contextmanager
def opened(url: str, name: str, *, create: bool = False) -> Iterator[Log]:
    """Open a log that is there, or make it if asked to; of one that is not there, say what makes it in a shell."""
    with oncelog.connect(url) as db:
        try:
            log = db.log(name, create=create)
        except NotFound as error:
            hint = f"{_meant(db, name)}make it with oncelog log create, or see oncelog log list"
            message = f"there is no log {name!r} at {url}: {hint}"
            raise NotFound(message) from error
        yield log


def _meant(db: Database, name: str) -> str:
    with suppress(OncelogError):  # who may not list the logs is not told of them
        return meant(name, db.logs())
    return ""
