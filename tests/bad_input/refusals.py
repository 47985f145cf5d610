"""What every refusal must be: an error of its own, with what to do, and a log as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog import (
    Database,
    InvalidArgument,
    OncelogError,
)


def assert_unharmed(db: Database, *more: bytes) -> None:
    """Make sure that a log has what it should have and no more, and can still be written to."""
    log = db.log("orders")
    assert [entry.value for entry in log.read()] == [b"before", *more]
    with log.writer() as writer:
        assert writer.append(b"before", id="before").duplicate
        assert writer.append(b"after", id="after").position == 1 + len(more)


def refused(call: Callable[[], object], *words: str, error: type[OncelogError] = InvalidArgument) -> None:
    """Make sure that a call is refused by exactly this error, with these words in its message."""
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    for word in words:
        assert word in str(raised.value)


in_memory = pytest.mark.parametrize("db", ["memory"], indirect=True)
"""For tests of many cases that are refused before any home is asked: on a disk it is the same code, more slowly."""
