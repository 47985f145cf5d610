"""A database of each kind, and a log with one record, which must be all that is in it in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog import (
    Database,
)
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from tests.bad_input.refusals import assert_unharmed


@pytest.fixture(params=["memory", "file"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Yield a database of each kind."""
    with oncelog.connect("memory://" if request.param == "memory" else (tmp_path / "db").as_uri()) as opened:
        yield opened


@pytest.fixture
def log(db: Database) -> Iterator[Log]:
    """Yield a log with one record, which is all that may be in it in the end."""
    opened = db.log("orders", create=True)
    with opened.writer() as writer:
        writer.append(b"before", id="before")
    yield opened
    assert_unharmed(db)


@pytest.fixture
def writer(log: Log) -> Iterator[Writer]:
    """Yield the log's writer, which must go on after whatever happens to it."""
    with log.writer() as opened:
        yield opened
        assert opened.append(b"before", id="before").duplicate
