"""A tail that is taken from in parts: what was read stays in columns until somebody wants it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import oncelog
from oncelog import CorruptionError, Entry, Log, LogSettings, Record, Window
from oncelog.log import inner
from oncelog.log.stored.rows import Rows

RECORDS = 700


@pytest.fixture
def log() -> Iterator[Log]:
    """Return a log with records in one block."""
    with oncelog.connect("memory://") as db:
        made = db.log("orders", create=True)
        with made.writer() as writer:
            writer.append_many([Record(b"%d" % number, id=f"{number}") for number in range(RECORDS)])
        yield made


def test_no_more_entries_are_made_than_are_taken(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that takes few at a time does not pay for all that was read, nor hold them in memory."""
    made: list[int] = []
    entries = Rows.entries

    def watched(rows: Rows) -> list[Entry]:
        made.append(rows.count)
        return entries(rows)

    monkeypatch.setattr(Rows, "entries", watched)
    with log.tail("earliest") as tail:
        assert [entry.position for entry in tail.take(3)] == [0, 1, 2]
        assert [entry.position for entry in tail.take(2)] == [3, 4]
        assert made == [3, 2]


def test_rows_of_which_nothing_can_be_made_stay(log: Log) -> None:
    """An error is not taken for an end: who goes on has the same rows, and the same error."""

    def refuse(_: Rows) -> None:
        message = "unreadable"
        raise CorruptionError(message)

    with log.tail("earliest") as tail:
        for _ in range(2):
            with pytest.raises(CorruptionError, match="unreadable"):
                inner.take_made(tail, 3, refuse)
        assert inner.take_made(tail, 3, Rows.entries) == tail_of(log, 3)
        assert inner.has_rows(tail)
        assert len(inner.take_made(tail, RECORDS, Rows.entries) or ()) == RECORDS - 3
        assert not inner.has_rows(tail)
        assert inner.take_made(tail, 3, Rows.entries) is None


def tail_of(log: Log, count: int) -> list[Entry]:
    """Return the first entries of a log."""
    with log.read("earliest", limit=count) as reader:
        return list(reader)


def test_parts_are_the_whole(log: Log) -> None:
    """Whoever takes and polls in turn gets each record once, in order, with all that belongs to it."""
    found = []
    with log.tail("earliest") as tail:
        while entry := tail.poll():
            found += [entry, *tail.take(37)]
    with log.read("earliest") as whole:
        assert found == list(whole)
    assert len(found) == RECORDS


def test_purged_records_are_no_end() -> None:
    """A part in which all was purged does not end what is taken: records are behind it."""
    ids = [f"{number}" for number in range(50)]
    with oncelog.connect("memory://") as db:
        log = db.log("orders", LogSettings(window=Window(duration_s=600, max_keys=10)), create=True)
        with log.writer() as writer:
            for id in (*ids, *ids, "last"):
                writer.append(b"", id=id)
        log.seal()
        assert log.purge(remove=True).purged == 50
        with log.tail(48) as tail:
            assert [entry.position for entry in tail.take(3)] == [48, 49, 100]
