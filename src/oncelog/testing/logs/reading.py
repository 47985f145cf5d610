"""The contract of a log's readers: what is there, and what comes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from oncelog.connect import Database
from oncelog.errors import Closed, InvalidArgument, NotFound
from oncelog.handle import Handle
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.testing.logs.fixtures import LONG_S, SMALL_SEGMENTS, LogContractFixtures
from oncelog.types import Record


class ReadContract(LogContractFixtures):
    """Reading what is there."""

    @pytest.fixture
    def filled(self, database: Database) -> Log:
        """Return a log of several segments, the last of them open."""
        log = database.log("filled", SMALL_SEGMENTS, create=True)
        for _ in range(2):
            with log.writer() as writer:
                for number in range(12):
                    writer.append_many([Record(b"%d" % number * 8000, id=None)] * 2)
        writer = log.writer()
        writer.append_many([Record(b"last")] * 3)
        log.held = writer  # type: ignore[attr-defined]
        return log

    def test_every_position_is_a_start(self, filled: Log) -> None:
        """From any position the rest of the log is read, up to its end, which is a start too."""
        everything = list(filled.read())
        assert len({entry.segment for entry in everything}) > 1
        for position in range(len(everything)):
            assert next(iter(filled.read(position))) == everything[position]
        assert list(filled.read(len(everything) - 1)) == everything[-1:]
        assert list(filled.read(len(everything))) == []

    def test_every_place_is_a_start(self, filled: Log) -> None:
        """A segment and an entry in it name the same record as its position does."""
        for entry in filled.read():
            assert next(iter(filled.read((entry.segment, entry.entry)))) == entry

    def test_every_moment_is_a_start(self, filled: Log) -> None:
        """From a moment on, all that was stored then or later; from the future nothing."""
        everything = list(filled.read())
        for entry in everything:
            for moment in (entry.timestamp, entry.timestamp + timedelta(microseconds=1)):
                expected = [later.position for later in everything if later.timestamp >= moment]
                assert [later.position for later in filled.read(moment)] == expected
        assert list(filled.read(everything[-1].timestamp + timedelta(days=1))) == []
        assert list(filled.read(datetime(1970, 1, 1, tzinfo=UTC))) == everything

    def test_earliest_and_latest(self, filled: Log) -> None:
        """The earliest is the first there is; behind the latest there is nothing to read yet."""
        assert list(filled.read("earliest")) == list(filled.read(0)) == list(filled.read())
        assert list(filled.read("latest")) == []

    def test_beyond_the_end_is_not_found(self, filled: Log) -> None:
        """A position that does not exist is an error, not an empty answer."""
        end = filled.info().last_position + 1
        for start in (end + 1, 1 << 60, (999, 0), (0, 1 << 40)):
            for open_it in (filled.read, filled.read_arrow, filled.tail):
                with pytest.raises(NotFound):
                    open_it(start)

    @pytest.mark.parametrize(
        "start",
        [-1, "newest", None, 1.0, True, (0,), (0, "1"), (0, -1), b"0", datetime(2026, 1, 1)],  # noqa: DTZ001
    )
    def test_bad_starts_are_refused(self, filled: Log, start: Any) -> None:
        """What is no start is refused by every way to read; a moment without a time zone is none."""
        last = list(filled.read())[-1]
        for bad in (start, (last.segment, -1)):
            for open_it in (filled.read, filled.read_arrow, filled.tail):
                with pytest.raises((InvalidArgument, NotFound)) as refused:
                    open_it(bad)
                assert isinstance(bad, tuple) or isinstance(refused.value, InvalidArgument)

    def test_a_limit(self, filled: Log) -> None:
        """No more than so many, by record and by column."""
        everything = list(filled.read())
        for limit in (0, 1, 5, len(everything), 1000):
            assert list(filled.read(2, limit=limit)) == everything[2 : 2 + limit]
            assert sum(batch.num_rows for batch in filled.read_arrow(2, limit=limit)) == len(everything[2 : 2 + limit])
        with pytest.raises(InvalidArgument):
            filled.read(limit=-1)

    def test_columns(self, filled: Log) -> None:
        """Columns hold what records do, all or those named, in the order named."""
        whole = pa.Table.from_batches(filled.read_arrow(3))
        expected = list(filled.read(3))
        for name in whole.column_names:
            assert whole.column(name).to_pylist() == [getattr(entry, name) for entry in expected]
        part = pa.Table.from_batches(filled.read_arrow(3, columns=["value", "position"]))
        assert part.column_names == ["value", "position"]
        assert part.equals(whole.select(["value", "position"]))
        with pytest.raises(InvalidArgument, match="colour"):
            filled.read_arrow(columns=["colour"])

    def test_reading_ends_where_the_log_did_when_it_began(self, log: Log, writer: Writer) -> None:
        """A reader does not chase a writer that goes on."""
        writer.append_many([Record(b"1"), Record(b"2")])
        with log.read() as entries:
            seen = []
            for entry in entries:
                seen.append(entry.value)
                writer.append(b"more")
        assert seen == [b"1", b"2"]

    def test_a_reader_ends_when_it_is_closed(self, log: Log, writer: Writer) -> None:
        """After its close a reader gives nothing more."""
        writer.append_many([Record(b"1"), Record(b"2")])
        entries = log.read()
        iterator = iter(entries)
        next(iterator)
        entries.close()
        with pytest.raises(Closed):
            next(iterator)

    def test_an_empty_log(self, log: Log) -> None:
        """Nothing is there to read, and that is no error."""
        assert list(log.read()) == list(log.read("latest")) == list(log.read(0)) == list(log.read_arrow()) == []
        with pytest.raises(NotFound):
            log.read(1)


class TailContract(LogContractFixtures):
    """Reading what comes."""

    def test_from_the_earliest_all_is_seen_once(self, log: Log, writer: Writer) -> None:
        """What is stored comes first, then what is appended, without gap or repeat."""
        writer.append(b"0")
        with log.tail("earliest") as entries:
            for number in range(1, 10):
                writer.append(b"%d" % number)
            seen = [next(entries) for _ in range(10)]
        assert [entry.position for entry in seen] == list(range(10))
        assert [entry.value for entry in seen] == [b"%d" % number for number in range(10)]

    @pytest.mark.parametrize("before", [0, 3])
    def test_from_the_latest_only_the_new_is_seen(self, log: Log, writer: Writer, before: int) -> None:
        """The latest is the end at the moment the tail was opened."""
        for _ in range(before):
            writer.append(b"old")
        with log.tail() as entries:
            assert entries.poll() is None
            writer.append(b"new")
            entry = entries.poll(LONG_S)
            assert entry is not None
            assert (entry.position, entry.value) == (before, b"new")

    def test_a_poll_ends_with_its_time(self, log: Log) -> None:
        """Nothing came in time: no entry, and no error."""
        with log.tail() as entries:
            assert entries.poll() is None
            assert entries.poll(timeout_s=0.01) is None

    def test_a_waiting_tail_gets_what_is_appended(self, log: Log, writer: Writer) -> None:
        """A thread that waits is woken by the next record."""
        with log.tail() as entries, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(entries.poll, LONG_S)
            ack = writer.append(b"new")
            entry = waiting.result(LONG_S)
        assert entry is not None
        assert entry.position == ack.position

    def test_a_tail_ends_with_its_log(self, database: Database) -> None:
        """The log is deleted, and another one of its name is made: no tail goes on with that one's records."""
        log = database.log("short-lived", create=True)
        with log.writer() as writer:
            writer.append(b"old")
        tails = [log.tail(0), log.tail(0, lease_s=60), log.tail()]
        assert [entry.value for tail in tails[:2] if (entry := tail.poll(LONG_S)) is not None] == [b"old"] * 2
        database.delete("short-lived")
        with database.log("short-lived", create=True).writer() as writer:
            writer.append_many([Record(b"other"), Record(b"new")])
        for tail in tails:
            with pytest.raises(NotFound, match="deleted"):
                tail.poll(LONG_S)
        database.delete("short-lived")

    @pytest.mark.parametrize("ending", ["tail", "log", "database"])
    def test_closing_from_another_thread_ends_it(self, database: Database, ending: str) -> None:
        """A thread in a tail returns when the tail, its log or its database is closed."""
        log = database.log("orders", create=True)
        entries, polled = log.tail(), log.tail()
        with ThreadPoolExecutor(2) as pool:
            iterating = pool.submit(list, entries)
            polling = pool.submit(polled.poll, LONG_S)
            ended: dict[str, list[Handle]] = {"tail": [entries, polled], "log": [log], "database": [database]}
            for handle in ended[ending]:
                handle.close()
            assert iterating.result(LONG_S) == []
            assert isinstance(polling.exception(LONG_S), Closed)

    def test_writers_and_segments_come_and_go(self, database: Database) -> None:
        """A tail follows the log over segments that roll and writers that change."""
        log = database.log("rolling", SMALL_SEGMENTS, create=True)
        with log.tail() as entries:
            for _ in range(3):
                with log.writer() as writer:
                    for _ in range(12):
                        writer.append(b"x" * 8000)
            seen = [entries.poll(LONG_S) for _ in range(36)]
            assert entries.poll() is None
        assert [entry.position for entry in seen if entry] == list(range(36))
        assert len({entry.segment for entry in seen if entry}) > len(range(3))

    def test_while_others_append(self, log: Log, writer: Writer) -> None:
        """Catching up and going live, under appends from several threads: every record once, in order."""
        go = threading.Barrier(5)

        def work(number: int) -> list[int | None]:
            go.wait()
            return [writer.append(b"%d" % number).position for _ in range(40)]

        with log.tail("earliest") as entries, ThreadPoolExecutor(4) as pool:
            working = [pool.submit(work, number) for number in range(4)]
            go.wait()
            seen = [next(entries).position for _ in range(160)]
            told = sorted(position or 0 for future in working for position in future.result(LONG_S))
        assert seen == told == list(range(160))
