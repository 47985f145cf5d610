"""Becoming the writer in the name of a server: the manifest says who holds the log, and of two takers one wins."""

from __future__ import annotations

import pytest

from oncelog.connect import Database
from oncelog.errors import LogBusy, WriterFenced
from oncelog.log import inner
from oncelog.log.open_writer import Term
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage


def test_the_manifest_names_the_server_that_holds_a_log(memory_bucket: Bucket) -> None:
    """Every other server finds the holder by it; a process that is no server is named by nothing."""
    with Database(ObjectStorage(memory_bucket)) as db:
        log = db.log("orders", create=True)
        assert (inner.holding(log).open, inner.holding(log).holder) == (False, None)
        writer = inner.hold(log, Term(("a", 3)), 0, ask=False)
        assert (inner.holding(log).open, inner.holding(log).holder) == (True, ("a", 3))
        writer.append(b"v", id="1")
        writer.close()
        assert not inner.holding(log).open
        with log.writer() as embedded:
            assert embedded.append(b"v", id="1").duplicate
            assert (inner.holding(log).open, inner.holding(log).holder) == (True, None)


def test_a_log_that_another_took_meanwhile_is_not_taken(memory_bucket: Bucket) -> None:
    """Both looked at the same epoch: the second does not take the log from the first, which lives."""
    with Database(ObjectStorage(memory_bucket)) as first, Database(ObjectStorage(memory_bucket)) as second:
        log = first.log("orders", create=True)
        epoch = inner.holding(log).epoch
        winner = inner.hold(log, Term(("a", 1), epoch), 0, ask=False)
        with pytest.raises(LogBusy, match="just now"):
            inner.hold(second.log("orders"), Term(("b", 1), epoch), 0, ask=False)
        assert winner.append(b"v").position == 0
        assert inner.holding(log).holder == ("a", 1)


def test_a_dead_server_is_fenced_by_the_next(memory_bucket: Bucket) -> None:
    """Taken from its epoch, the holder that only slept cannot write any more."""
    with Database(ObjectStorage(memory_bucket)) as first, Database(ObjectStorage(memory_bucket)) as second:
        sleeper = inner.hold(first.log("orders", create=True), Term(("a", 1)), 0, ask=False)
        sleeper.append(b"v", id="1")
        log = second.log("orders")
        with inner.hold(log, Term(("b", 1), inner.holding(log).epoch), 0, ask=False) as taker:
            assert taker.append(b"v", id="1").duplicate
            with pytest.raises(WriterFenced):
                sleeper.append(b"w", id="2")
            assert taker.append(b"w", id="2").position == 1
