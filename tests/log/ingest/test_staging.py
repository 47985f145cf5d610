"""Staging a file in public words, and small things around a log's upkeep."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from oncelog import AppendErrors, InvalidArgument, NotFound, Record
from oncelog.connect import Database
from oncelog.log.log import Log
from oncelog.log.stored import object_keys
from oncelog.log.stored.manifests import Manifests
from oncelog.log.upkeep import sealing
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from tests.log.ingest.adoption import adopt

TABLE = pa.table({"value": [b"a", b"b"], "id": ["1", "2"]})


def new_log() -> tuple[Database, SimulatedClock, Log]:
    """Return an empty log in memory."""
    clock = SimulatedClock()
    database = Database(MemoryStorage(clock=clock), clock)
    return database, clock, database.log("orders", create=True)


def test_what_is_staged_by_a_table_is_adopted_and_refused_afterwards() -> None:
    """A file made from a table, without the writer, becomes a part of the log, and its ids are known."""
    _, _, log = new_log()
    staged = log.stage([TABLE, TABLE.slice(0, 0)])
    with log.writer() as writer:
        assert adopt(writer, [staged]) == [0]
        assert writer.append(b"b", id="2").position == 1
        assert [entry.value for entry in log.read()] == [b"a", b"b"]


def test_a_bad_table_is_not_staged() -> None:
    """Rows that could not be appended cannot come in by a file either."""
    _, _, log = new_log()
    with pytest.raises(InvalidArgument, match="id, row 0"):
        log.stage([pa.table({"value": [b"a"], "id": [""]})])
    with pytest.raises(InvalidArgument, match="no records"):
        log.stage([])


def test_a_clock_that_was_once_ahead_does_not_keep_files_from_being_adopted() -> None:
    """A machine a year ahead swept the log: what is staged after that is not 'too old'."""
    database, clock, log = new_log()
    home = database._storage.home("orders")
    home.create(f"{object_keys.PREFIX}{0:020d}-orphan.parquet", [b"left behind"])
    ahead = SimulatedClock(now_us=clock.now_us() + 365 * 86_400_000_000)
    assert sealing.sweep(home, Manifests(home, ahead), ahead)
    staged = log.stage([TABLE])
    with log.writer() as writer:
        assert adopt(writer, [staged]) == [0]


def test_a_record_of_an_unknown_kind_does_not_take_the_others_with_it() -> None:
    """append_many settles every record, whatever is wrong with one of them."""
    _, _, log = new_log()
    with log.writer() as writer, pytest.raises(AppendErrors) as raised:
        writer.append_many([Record(b"a", id="1"), Record(b"b", id="2", producer="p"), Record(b"c", id="3")])
    assert [getattr(result, "position", None) for result in raised.value.results] == [0, None, 1]


def test_a_reader_of_a_log_that_was_deleted_is_told_so() -> None:
    """A log that somebody deleted on purpose is not reported as damage."""
    database, _, log = new_log()
    with log.writer() as writer:
        writer.append(b"a")
    reader = log.read()
    database.delete("orders")
    with pytest.raises(NotFound, match="deleted"):
        list(reader)


def test_a_writer_that_leaves_does_not_wait_for_all_that_could_be_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing ends sealing behind the file that is in hand; the rest is for the next writer."""
    _, _, log = new_log()
    writer = log.writer()
    sealed: list[int] = []
    begun, leaving = threading.Event(), threading.Event()

    def many_files(*_arguments: object, **_settings: object) -> Iterator[int]:
        for number in range(20):
            begun.set()
            assert leaving.wait(60)
            sealed.append(number)
            yield number

    monkeypatch.setattr(sealing, "_seal", many_files)
    keeper = writer._keeper
    keeper._housekeeper.ask("tidy", keeper._tidy)
    assert begun.wait(60)
    drain = writer._committer.drain

    def drain_and_tell(deadline_us: int | None) -> None:
        drain(deadline_us)
        leaving.set()

    monkeypatch.setattr(writer._committer, "drain", drain_and_tell)
    writer.close()
    assert sealed == [0]
