"""What every log must do, wherever it lives: one suite that each kind of database runs.

Derive a class from ``LogContract`` in a test file and give it two fixtures::

    class TestMine(LogContract):
        @pytest.fixture
        def database(self):
            with oncelog.connect("mine://…") as db:
                yield db

        @pytest.fixture
        def reopen(self, database):
            def again(*, crash):
                ...  # close it, or let its process die with all handles open
                return oncelog.connect("mine://…")

            return again

``reopen`` ends the first database and returns another one on the same logs; it may be called several times in a test.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pytest

from oncelog import limits
from oncelog.connect import Database
from oncelog.errors import (
    AppendErrors,
    Closed,
    IdConflict,
    InvalidArgument,
    LogBusy,
    NotFound,
    PartialOverlap,
)
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.types import Ack, Record

LONG_S = 60.0
"""Longer than anything here takes: what waits so long has failed."""

SMALL_SEGMENTS = LogSettings(segment_bytes=limits.SEGMENT_BYTES_MIN)
OFF = LogSettings(idempotence="off")
CONTENT = LogSettings(idempotence="content")
ORIGINAL = LogSettings(on_conflict="original")


class Reopen(Protocol):
    """Ends a database, by closing it or by a crash, and opens it again."""

    def __call__(self, *, crash: bool = False) -> Database:
        """Return a new database on the same logs."""
        ...


class LogContractFixtures:
    """What the suites need: override ``database`` and ``reopen``."""

    @pytest.fixture
    def database(self) -> Iterator[Database]:
        """Yield a new, empty database: override this."""
        raise NotImplementedError

    @pytest.fixture
    def reopen(self, database: Database) -> Reopen:
        """Return what ends ``database`` and opens it again: override this."""
        raise NotImplementedError

    @pytest.fixture
    def log(self, database: Database) -> Log:
        """Return a new log with the default settings."""
        return database.log("orders", create=True)

    @pytest.fixture
    def writer(self, log: Log) -> Iterator[Writer]:
        """Yield its writer."""
        with log.writer() as writer:
            yield writer


FULL = Record(
    b"paid",
    id="order-42",
    stream="orders",
    type="Paid",
    headers={"trace": b"\x00\xff", "a": b""},
    tenant="shop",
)


class AppendContract(LogContractFixtures):
    """One record at a time."""

    def test_a_record_comes_back_as_it_was_given(self, log: Log, writer: Writer) -> None:
        """Every field a user gave is there again, at the place the ack told."""
        ack = append(writer, FULL)
        (entry,) = log.read()
        assert (entry.position, entry.segment, entry.entry, entry.timestamp) == place(ack)
        assert Record(*(getattr(entry, name) for name in Record.__struct_fields__)) == FULL

    @pytest.mark.parametrize("value", [b"", b"\x00", bytearray(b"ab"), memoryview(b"abc"), b"x" * 300_000])
    def test_values_of_every_kind(self, log: Log, writer: Writer, value: bytes) -> None:
        """Any bytes are a value, also none, and what can be seen as bytes is stored as bytes."""
        writer.append(value)
        assert values(log) == [bytes(value)]

    def test_positions_count_from_zero_without_gaps(self, log: Log, writer: Writer) -> None:
        """Positions and entries are dense, and readers see them as the acks told."""
        acks = [writer.append(b"%d" % number, id=str(number)) for number in range(20)]
        assert [ack.position for ack in acks] == list(range(20))
        assert [place(ack) for ack in acks] == places(log)
        assert not any(ack.duplicate or ack.conflict for ack in acks)

    def test_a_retry_gets_the_original_ack(self, log: Log, writer: Writer) -> None:
        """A duplicate is an answer: the place and the time of the first, and nothing is stored."""
        first = append(writer, FULL)
        writer.append(b"between")
        again = append(writer, FULL)
        assert again == duplicate_of(first)
        assert len(values(log)) == again.entry + 2  # type: ignore[operator]

    def test_records_without_an_id_are_each_their_own(self, log: Log, writer: Writer) -> None:
        """Without an id nothing is promised and nothing is taken for a retry."""
        acks = [writer.append(b"same") for _ in range(3)]
        assert [ack.position for ack in acks] == [0, 1, 2]
        assert values(log) == [b"same"] * 3

    @pytest.mark.parametrize("id", ["a", "ü" * 127, "x" * 255, "\x00", " ", "0"])
    def test_ids_of_every_kind(self, writer: Writer, id: str) -> None:
        """An id is 1 to 255 bytes of any text."""
        first = writer.append(b"v", id=id)
        assert writer.append(b"v", id=id) == duplicate_of(first)
        assert not writer.append(b"v", id=id[:-1] + "z").duplicate

    @pytest.mark.parametrize("id", ["", "ü" * 128, "x" * 256, "\ud800", 7, b"a"])
    def test_bad_ids_are_refused(self, log: Log, writer: Writer, id: Any) -> None:
        """An id that cannot be kept is refused before anything is written."""
        with pytest.raises(InvalidArgument, match="id"):
            writer.append(b"v", id=id)
        assert values(log) == []

    @pytest.mark.parametrize(
        "bad",
        [
            {"value": "text"},
            {"value": None},
            {"value": b"x" * (limits.VALUE_BYTES_MAX + 1)},
            {"stream": "s" * (limits.LABEL_BYTES_MAX + 1)},
            {"type": 7},
            {"tenant": "\udfff"},
            {"headers": {"a": "text"}},
            {"headers": {7: b""}},
            {"headers": {str(number): b"" for number in range(limits.HEADERS_MAX + 1)}},
            {"headers": {"a": b"x" * limits.HEADER_BYTES_MAX}},
            {"timeout_s": -1},
            {"timeout_s": float("nan")},
        ],
        ids=lambda bad: next(iter(bad)),
    )
    def test_bad_arguments_are_refused(self, log: Log, writer: Writer, bad: dict[str, Any]) -> None:
        """What cannot be stored, or makes no sense, is refused by append and submit, and nothing is written."""
        for attempt in (writer.append, writer.submit):
            with pytest.raises(InvalidArgument):
                attempt(**{"value": b"v", "id": "1"} | bad)
        writer.append(b"good", id="1")
        assert values(log) == [b"good"]

    def test_without_a_timeout(self, writer: Writer) -> None:
        """No limit, and an endless one, are no error."""
        assert [writer.append(b"v", timeout_s=limit).position for limit in (None, float("inf"))] == [0, 1]

    def test_timestamps_never_go_back(self, log: Log, writer: Writer) -> None:
        """Within a log, later records have no earlier time."""
        for _ in range(50):
            writer.append(b"v")
        times = [entry.timestamp for entry in log.read()]
        assert times == sorted(times)
        assert times[0].tzinfo is UTC


class SubmitContract(LogContractFixtures):
    """Records on their way."""

    def test_futures_have_the_acks_in_order(self, log: Log, writer: Writer) -> None:
        """Submitted records are stored in the order they were submitted."""
        futures = [writer.submit(b"%d" % number, id=str(number)) for number in range(100)]
        acks = [future.result(LONG_S) for future in futures]
        assert [ack.position for ack in acks] == list(range(100))
        assert [place(ack) for ack in acks] == places(log)

    def test_a_retry_joins_what_is_in_flight(self, log: Log, writer: Writer) -> None:
        """Attempts with one id, all on their way at once, leave one record and get one place."""
        futures = [writer.submit(b"v", id=str(number % 3)) for number in range(30)]
        acks = [future.result(LONG_S) for future in futures]
        assert [place(ack) for ack in acks] == [place(acks[number % 3]) for number in range(30)]
        assert [ack.duplicate for ack in acks] == [False] * 3 + [True] * 27
        assert values(log) == [b"v"] * 3

    def test_a_conflict_is_in_the_future(self, log: Log, writer: Writer) -> None:
        """The one with other content learns it from its own future, in flight or stored."""
        first = writer.submit(b"v", id="1")
        other = writer.submit(b"w", id="1")
        assert isinstance(other.exception(LONG_S), IdConflict)
        first.result(LONG_S)
        assert isinstance(writer.submit(b"w", id="1").exception(LONG_S), IdConflict)
        assert values(log) == [b"v"]

    def test_a_future_can_be_awaited(self, writer: Writer) -> None:
        """``asyncio.wrap_future`` makes a future awaitable."""

        async def main() -> Sequence[Ack]:
            waiting = [asyncio.wrap_future(writer.submit(b"v", id=str(number))) for number in range(10)]
            return await asyncio.wait_for(asyncio.gather(*waiting), LONG_S)

        assert [ack.position for ack in asyncio.run(main())] == list(range(10))

    def test_flush_waits_for_all_that_was_submitted(self, log: Log, writer: Writer) -> None:
        """After a flush everything is durable, whoever holds the futures."""
        for number in range(50):
            writer.submit(b"%d" % number)
        writer.flush()
        assert values(log) == [b"%d" % number for number in range(50)]
        assert writer.last_position == len(values(log)) - 1

    def test_no_more_is_pending_than_may_be(self, database: Database) -> None:
        """Submit waits for room, so that a fast producer cannot fill the memory; everything is stored, in order."""
        log = database.log("bounded", LogSettings(pending_records=5, pending_bytes=limits.KIB), create=True)
        with log.writer() as writer:
            pending, futures = [], []
            for number in range(200):
                futures.append(writer.submit(b"%d" % number, id=str(number)))
                pending.append(log.info().window["pending"] or 0)
            assert [future.result(LONG_S).position for future in futures] == list(range(200))
        assert max(pending) <= log.settings.pending_records


class ConflictContract(LogContractFixtures):
    """One id, two contents."""

    @pytest.mark.parametrize(
        "change",
        [
            {"value": b"paiD"},
            {"value": b""},
            {"stream": "order"},
            {"stream": None},
            {"type": "paid"},
            {"tenant": ""},
            {"headers": None},
            {"headers": {"trace": b"\x00\xff"}},
            {"headers": {"trace": b"", "a": b"\x00\xff"}},
        ],
        ids=str,
    )
    def test_other_content_is_a_conflict(self, log: Log, writer: Writer, change: dict[str, Any]) -> None:
        """All that was given but the id counts, on every way in; nothing is written, and the first stands."""
        writer.append(b"before")
        first = append(writer, FULL)
        other = Record(**{name: getattr(FULL, name) for name in Record.__struct_fields__} | change)
        with pytest.raises(IdConflict, match="order-42") as refused:
            append(writer, other)
        assert refused.value.position == first.position
        with pytest.raises(AppendErrors) as many:
            writer.append_many([other])
        assert isinstance(many.value.results[0], IdConflict)
        with pytest.raises(IdConflict):
            writer.append_batch([other])
        with pytest.raises(AppendErrors):
            writer.append_arrow(table(other))
        assert values(log) == [b"before", b"paid"]

    def test_the_order_of_headers_does_not_count(self, writer: Writer) -> None:
        """Headers are a mapping: two orders of it say the same."""
        first = writer.append(b"v", id="1", headers={"a": b"1", "b": b"2"})
        assert writer.append(b"v", id="1", headers={"b": b"2", "a": b"1"}) == duplicate_of(first)

    def test_the_original_answers_if_so_asked(self, database: Database) -> None:
        """With on_conflict="original" a conflict is answered with the first one's place, and marked."""
        log = database.log("original", ORIGINAL, create=True)
        with log.writer() as writer:
            first = writer.append(b"v", id="1")
            expected = Ack(*place(first), duplicate=True, conflict=True)
            assert writer.append(b"w", id="1") == expected
            assert writer.submit(b"w", id="1").result(LONG_S) == expected
            assert writer.append_many([Record(b"w", id="1"), Record(b"n", id="2")])[0] == expected
            assert writer.append_batch([Record(b"w", id="1")]) == [expected]
            acks = writer.append_arrow(table(Record(b"w", id="1"), Record(b"v", id="1")))
            assert acks.positions.tolist() == [first.position] * 2
            assert acks.conflicts.tolist() == [True, False]
            assert acks.duplicates.tolist() == [True, True]
        assert values(log) == [b"v", b"n"]


class ManyContract(LogContractFixtures):
    """Many records in one call: each decided on its own, or all as one."""

    def test_append_many_decides_each_record(self, log: Log, writer: Writer) -> None:
        """Known, new and nameless records in one call: each gets its own answer, in order."""
        known = writer.append(b"a", id="a")
        records = [Record(b"n"), Record(b"a", id="a"), Record(b"b", id="b"), Record(b"n"), Record(b"b", id="b")]
        acks = writer.append_many(records)
        assert [(ack.position, ack.duplicate) for ack in acks] == [
            (1, False), (0, True), (2, False), (3, False), (2, True),
        ]  # fmt: skip
        assert acks[1] == duplicate_of(known)
        assert acks[4] == duplicate_of(acks[2])
        assert [place(ack) for ack in (acks[1], acks[0], acks[2], acks[3])] == places(log)

    def test_append_many_settles_every_record_then_tells_which_were_refused(self, log: Log, writer: Writer) -> None:
        """Bad records and conflicts do not keep the others out, and each has its own result."""
        bad: Any = "text"
        records = [Record(b"1", id="1"), Record(bad, id="2"), Record(b"x", id="1"), Record(b"3", id="3"), Record(b"4")]
        with pytest.raises(AppendErrors, match="2 of 5") as refused:
            writer.append_many(records)
        results = refused.value.results
        kinds = [type(result) for result in results]
        assert kinds == [Ack, InvalidArgument, IdConflict, Ack, Ack]
        assert [result.position for result in results if isinstance(result, Ack)] == [0, 1, 2]
        assert values(log) == [b"1", b"3", b"4"]

    def test_nothing_to_append(self, log: Log, writer: Writer) -> None:
        """No records are no error, and leave nothing."""
        assert writer.append_many([]) == []
        assert writer.append_batch([]) == []
        assert writer.append_arrow(table()).positions.tolist() == []
        assert values(log) == []

    def test_more_than_fits_a_block(self, database: Database) -> None:
        """Large calls are cut into blocks; order, answers and retries do not notice."""
        log = database.log("cut", LogSettings(block_records=7, block_bytes=limits.KIB), create=True)
        records = [Record(b"%d" % number * (number % 50 + 1), id=str(number)) for number in range(100)]
        with log.writer() as writer:
            acks = writer.append_many(records)
            assert [place(ack) for ack in acks] == places(log)
            assert writer.append_many(records) == [duplicate_of(ack) for ack in acks]
            assert writer.append_arrow(table(*records)).duplicates.all()
        assert values(log) == [record.value for record in records]

    def test_a_batch_is_written_whole_and_recognised_whole(self, log: Log, writer: Writer) -> None:
        """All new: written. Exactly the stored one: its original acks."""
        batch = [Record(b"%d" % number, id=str(number)) for number in range(5)]
        acks = writer.append_batch(batch)
        writer.append(b"between", id="between")
        assert writer.append_batch(batch) == [duplicate_of(ack) for ack in acks]
        assert [place(ack) for ack in acks] == places(log)[:5]
        assert values(log) == [record.value for record in batch] + [b"between"]

    def test_a_batch_that_overlaps_is_refused_whole(self, log: Log, writer: Writer) -> None:
        """Neither stored exactly so nor all new: refused, naming what is known, and nothing is written."""
        a, b, c = (Record(id.encode(), id=id) for id in "abc")
        writer.append_batch([a, b])
        for mixed, known, new in (
            ([a, c], ("a",), ("c",)),
            ([c, b], ("b",), ("c",)),
            ([a], ("a",), ()),
            ([b, a], ("b", "a"), ()),
            ([a, b, c], ("a", "b"), ("c",)),
        ):
            with pytest.raises(PartialOverlap) as refused:
                writer.append_batch(mixed)
            assert (refused.value.known, refused.value.new) == (known, new)
        assert values(log) == [b"a", b"b"]
        assert not writer.append(b"c", id="c").duplicate

    def test_a_batch_that_cannot_be_one_is_refused(self, database: Database) -> None:
        """A repeated id, ids on some records only, more ids than the window keeps: nothing is written."""
        log = database.log("small", LogSettings(window=Window(max_keys=3)), create=True)
        with log.writer() as writer:
            for bad in (
                [Record(b"1", id="a"), Record(b"2", id="b"), Record(b"1", id="a")],
                [Record(b"1", id="a"), Record(b"2")],
                [Record(b"1"), Record(b"2", id="a")],
                [Record(b"%d" % number, id=str(number)) for number in range(4)],
            ):
                with pytest.raises(InvalidArgument):
                    writer.append_batch(bad)
            assert values(log) == []
            assert len(writer.append_batch([Record(b"v")] * 4)) == len(values(log))


class ArrowContract(LogContractFixtures):
    """Columns in, columns out."""

    def test_columns_are_records(self, log: Log, writer: Writer) -> None:
        """Rows are stored as the records they spell, and a retry by record is recognised."""
        acks = writer.append_arrow(table(FULL, Record(b"bare"), Record(b"2", id="2")))
        assert acks.positions.dtype == np.int64
        assert acks.positions.tolist() == [0, 1, 2]
        assert [column.tolist() for column in (acks.duplicates, acks.conflicts)] == [[False] * 3] * 2
        assert [entry.headers for entry in log.read()] == [FULL.headers, None, None]
        assert append(writer, FULL).duplicate
        assert writer.append(b"2", id="2").duplicate

    def test_rows_are_decided_one_by_one(self, log: Log, writer: Writer) -> None:
        """Known rows, new rows, nameless rows and rows that repeat one above them."""
        writer.append(b"a", id="a")
        rows = [Record(b"n"), Record(b"a", id="a"), Record(b"b", id="b"), Record(b"n"), Record(b"b", id="b")]
        acks = writer.append_arrow(table(*rows))
        assert acks.positions.tolist() == [1, 0, 2, 3, 2]
        assert acks.duplicates.tolist() == [False, True, False, False, True]
        assert values(log) == [b"a", b"n", b"b", b"n"]

    def test_a_row_in_conflict_does_not_keep_the_others_out(self, log: Log, writer: Writer) -> None:
        """Conflicts are told after every other row is stored, with a result for each row."""
        writer.append(b"a", id="a")
        with pytest.raises(AppendErrors) as refused:
            writer.append_arrow(table(Record(b"x", id="a"), Record(b"b", id="b")))
        assert [type(result) for result in refused.value.results] == [IdConflict, Ack]
        assert values(log) == [b"a", b"b"]

    @pytest.mark.parametrize(
        "columns",
        [
            {"value": pa.array([b"1", b"2"], pa.large_binary()), "id": pa.array(["1", "2"], pa.large_string())},
            {"value": pa.array([b"1", b"2"]), "id": pa.array(["1", "2"]).dictionary_encode()},
            {"id": pa.array(["1", "2"]), "value": pa.chunked_array([[b"1"], [b"2"]])},
            {"value": pa.array([b"0", b"1", b"2"])[1:], "id": pa.array(["0", "1", "2"])[1:]},
        ],
    )
    def test_types_that_mean_the_same(self, log: Log, writer: Writer, columns: dict[str, Any]) -> None:
        """Large, chunked, sliced and dictionary columns are as good as plain ones."""
        assert writer.append_arrow(pa.table(columns)).positions.tolist() == [0, 1]
        assert [(entry.id, entry.value) for entry in log.read()] == [("1", b"1"), ("2", b"2")]

    @pytest.mark.parametrize(
        "columns",
        [
            {"id": ["1", "2"]},
            {"value": [b"1", None]},
            {"value": ["text", "text"]},
            {"value": [b"1", b"2"], "colour": ["red", "blue"]},
            {"value": [b"1", b"2"], "id": [1, 2]},
            {"value": [b"1", b"2"], "id": ["1", ""]},
            {"value": [b"1", b"2"], "id": ["1", "x" * 256]},
            {"value": [b"1", b"2"], "tenant": ["1", "x" * 2000]},
            {"value": [b"1", b"2"], "headers": [b"1", b"2"]},
        ],
        ids=str,
    )
    def test_a_table_with_a_fault_is_refused_whole(self, log: Log, writer: Writer, columns: dict[str, Any]) -> None:
        """One bad column or row: a clear error, and nothing of the table is written."""
        with pytest.raises(InvalidArgument):
            writer.append_arrow(pa.table(columns))
        assert values(log) == []

    def test_what_is_not_a_table(self, writer: Writer) -> None:
        """Something else than a table is refused by name."""
        rows: Any = [{"value": b"1"}]
        with pytest.raises(InvalidArgument, match="list"):
            writer.append_arrow(rows)


class IdempotenceContract(LogContractFixtures):
    """Ids from the content, no ids at all, and changing one's mind."""

    def test_content_ids(self, database: Database) -> None:
        """Without an id the content is the id, by record and by column alike; with one, that counts."""
        log = database.log("content", CONTENT, create=True)
        bare, labelled = Record(b"v"), Record(b"v", headers={"a": b"1"}, type="T")
        with log.writer() as writer:
            first = append(writer, bare)
            assert append(writer, bare) == duplicate_of(first)
            second = append(writer, labelled)
            assert not second.duplicate
            acks = writer.append_arrow(table(labelled, bare, Record(b"new"), Record(b"v", id="mine")))
            assert acks.duplicates.tolist() == [True, True, False, False]
            assert acks.positions.tolist() == [1, 0, 2, 3]
            assert writer.append_many([bare, Record(b"new")])[1].duplicate
            assert writer.append_batch([bare])[0].duplicate
        assert all(entry.id for entry in log.read())

    def test_off_refuses_ids_and_deduplicates_nothing(self, database: Database) -> None:
        """A log that keeps no window says so, on every way in, and stores whatever comes."""
        log = database.log("off", OFF, create=True)
        named = Record(b"v", id="1")
        with log.writer() as writer:
            for refuse in (
                lambda: append(writer, named),
                lambda: writer.submit(b"v", id="1"),
                lambda: writer.append_batch([named]),
                lambda: writer.append_arrow(table(named)),
            ):
                with pytest.raises(InvalidArgument, match="idempotence"):
                    refuse()
            with pytest.raises(AppendErrors) as refused:
                writer.append_many([named, Record(b"w")])
            assert [type(result) for result in refused.value.results] == [InvalidArgument, Ack]
            writer.append_many([Record(b"w")] * 2)
            writer.append_batch([Record(b"w")] * 2)
            writer.append_arrow(table(Record(b"w"), Record(b"w")))
            assert not log.info().window
        assert values(log) == [b"w"] * 7
        assert all(entry.id is None for entry in log.read())

    def test_switched_on_later_the_records_with_ids_are_known(self, database: Database) -> None:
        """The window is built from the log: what carries an id is known, what does not is not."""
        log = database.log("orders", create=True)
        with log.writer() as writer:
            first = writer.append(b"v", id="1")
        log.configure(OFF)
        with log.writer() as writer:
            writer.append(b"nameless")
            with pytest.raises(InvalidArgument):
                writer.append(b"v", id="1")
        log.configure(CONTENT)
        with log.writer() as writer:
            assert writer.append(b"v", id="1") == duplicate_of(first)
            assert not writer.append(b"nameless").duplicate
        assert values(log) == [b"v", b"nameless", b"nameless"]

    def test_a_window_made_larger_knows_what_the_log_still_shows(self, database: Database) -> None:
        """What the larger window covers is known from the log, although a snapshot of the smaller one is there."""
        small = LogSettings(window=Window(max_keys=2))
        log = database.log("grown", small, create=True)
        with log.writer() as writer:
            acks = [writer.append(b"v", id=str(number)) for number in range(5)]
            writer.snapshot()
        log.configure(LogSettings(window=Window(max_keys=100)))
        with log.writer() as writer:
            assert [writer.append(b"v", id=str(number)) for number in range(5)] == [duplicate_of(ack) for ack in acks]

    def test_a_window_made_smaller_forgets_the_oldest(self, database: Database) -> None:
        """Only so many keys are kept, the newest."""
        log = database.log("shrunk", create=True)
        with log.writer() as writer:
            for number in range(5):
                writer.append(b"v", id=str(number))
            writer.snapshot()
        log.configure(LogSettings(window=Window(max_keys=2)))
        with log.writer() as writer:
            assert writer.append(b"v", id="4").duplicate
            assert writer.append(b"v", id="3").duplicate
            assert not writer.append(b"v", id="2").duplicate


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

    @pytest.mark.parametrize("ending", ["tail", "log", "database"])
    def test_closing_from_another_thread_ends_it(self, database: Database, ending: str) -> None:
        """A thread in a tail returns when the tail, its log or its database is closed."""
        log = database.log("orders", create=True)
        entries, polled = log.tail(), log.tail()
        with ThreadPoolExecutor(2) as pool:
            iterating = pool.submit(list, entries)
            polling = pool.submit(polled.poll, LONG_S)
            for handle in {"tail": [entries, polled], "log": [log], "database": [database]}[ending]:
                handle.close()  # type: ignore[attr-defined]
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


class SettingsContract(LogContractFixtures):
    """Opening, settings and names."""

    def test_a_log_is_created_only_when_asked(self, database: Database) -> None:
        """A name that is mistyped does not become a log."""
        with pytest.raises(NotFound, match="create=True"):
            database.log("orders")
        assert database.logs() == []
        database.log("orders", create=True)
        database.log("orders")
        database.log("orders", create=True)
        assert database.logs() == ["orders"]

    def test_settings_that_differ_are_named(self, database: Database) -> None:
        """Opening with other settings tells which, and changes nothing; without any, the stored ones hold."""
        stored = LogSettings(window=Window(max_keys=10), on_conflict="original")
        assert database.log("orders", stored, create=True).settings == stored
        assert database.log("orders").settings == stored
        assert database.log("orders", create=True).settings == stored
        database.log("orders", stored)
        with pytest.raises(InvalidArgument, match=r"window\.max_keys: stored 10, given 20") as refused:
            database.log("orders", LogSettings(window=Window(max_keys=20), on_conflict="original"), create=True)
        assert "on_conflict" not in str(refused.value)
        assert database.log("orders").settings == stored

    def test_configure(self, database: Database) -> None:
        """New settings hold for the writers opened after it, for every handle, and are the stored ones then."""
        log, other = database.log("orders", create=True), database.log("orders")
        with log.writer() as writer:
            writer.append(b"v", id="1")
        log.configure(ORIGINAL)
        assert log.settings == other.settings == other.info().settings == ORIGINAL
        with other.writer() as writer:
            assert writer.append(b"w", id="1").conflict
        with pytest.raises(InvalidArgument):
            database.log("orders", LogSettings())

    @pytest.mark.parametrize(
        "bad",
        [
            LogSettings(idempotence="maybe"),  # type: ignore[arg-type]
            LogSettings(window=Window(max_keys=0)),
            LogSettings(window=Window(duration_s=-1)),
            LogSettings(window=Window(max_keys=1.5)),  # type: ignore[arg-type]
            LogSettings(window=Window(duration_s=float("nan"))),
            LogSettings(segment_bytes=1),
            LogSettings(block_bytes=limits.BLOCK_BYTES_MAX + 1),
            LogSettings(pending_records=0),
        ],
        ids=str,
    )
    def test_bad_settings_are_refused(self, database: Database, bad: LogSettings) -> None:
        """Settings that cannot hold are refused by name, on creation and later, and nothing is created."""
        with pytest.raises(InvalidArgument, match="settings"):
            database.log("orders", bad, create=True)
        assert database.logs() == []
        log = database.log("orders", create=True)
        with pytest.raises(InvalidArgument, match="settings"):
            log.configure(bad)
        assert log.settings == LogSettings()

    @pytest.mark.parametrize(
        "name", ["a", "ä", "日本", "x" * 255, "ü" * 127, "A.b-c_1", "%41", "a b", "shop/orders", ".hidden", "CON", "~"]
    )
    def test_names_of_every_kind(self, database: Database, name: str) -> None:
        """A name is 1 to 255 bytes of text, and names that look alike are different logs."""
        neighbours = {name, "A", "b", name[:-1] + "z", name.swapcase()}
        for each in neighbours:
            with database.log(each, create=True).writer() as writer:
                writer.append(each.encode())
        assert database.logs() == sorted(neighbours)
        assert values(database.log(name)) == [name.encode()]

    @pytest.mark.parametrize("name", ["", ".", "..", "/", "a/../b", "/a", "a//b", "x" * 256, "a\n", "\ud800", 7, None])
    def test_bad_names_are_refused(self, database: Database, name: Any) -> None:
        """No name leads out of the database, or cannot be written down."""
        with pytest.raises(InvalidArgument, match="name"):
            database.log(name, create=True)
        assert database.logs() == []

    def test_info(self, log: Log, writer: Writer) -> None:
        """What an operator asks for is told, and counts what was done."""
        assert (log.info().first_position, log.info().last_position) == (0, -1)
        writer.append(b"v", id="1")
        writer.append(b"v", id="1")
        writer.append_many([Record(b"w", id="2"), Record(b"n")])
        with pytest.raises(IdConflict):
            writer.append(b"x", id="1")
        info = log.info()
        assert (info.name, info.first_position, info.last_position) == ("orders", 0, 2)
        assert info.counters is not None
        counted = info.counters
        assert [counted.attempts, counted.stored, counted.duplicates, counted.conflicts] == [5, 3, 1, 1]
        assert counted.commits > 0
        assert counted.bytes_written > 0
        assert (info.window["keys"], info.window["pending"]) == (2, 0)
        writer.snapshot()
        assert list(log.info().snapshots.values()) == [3]


class LifeContract(LogContractFixtures):
    """Opening, closing, and who may write."""

    def test_leaving_the_with_stores_what_was_submitted(self, log: Log) -> None:
        """Nobody has to hold the futures."""
        with log.writer() as writer:
            futures = [writer.submit(b"%d" % number) for number in range(20)]
        assert [future.result(0).position for future in futures] == list(range(20))
        assert len(values(log)) == len(futures)

    @pytest.mark.parametrize("ending", ["writer", "log", "database"])
    def test_a_closed_writer_says_so(self, database: Database, ending: str) -> None:
        """Closed by itself, by its log or by its database, a writer stores what is pending and then refuses."""
        log = database.log("orders", create=True)
        writer = log.writer()
        future = writer.submit(b"pending", id="1")
        ended: dict[str, Any] = {"writer": writer, "log": log, "database": database}
        ended[ending].close()
        ended[ending].close()
        assert future.result(0).position == 0
        for use in _uses_of_a_writer(writer):
            with pytest.raises(Closed):
                use()

    def test_a_closed_log_and_database_say_so(self, database: Database, log: Log) -> None:
        """Nothing can be done with what is closed, and it is not asked of storage first."""
        other = database.log("other", create=True)
        log.close()
        for use in (
            log.writer,
            log.read,
            log.read_arrow,
            log.tail,
            log.info,
            lambda: log.read(99),
            lambda: log.settings,
        ):
            with pytest.raises(Closed):
                use()
        assert list(other.read()) == []
        database.close()
        for use in (database.logs, lambda: database.log("orders"), other.read):
            with pytest.raises(Closed):
                use()

    def test_a_database_ends_what_was_opened_through_logs_nobody_kept(self, database: Database) -> None:
        """Writers and tails end with their database, whether or not the log they came from is still in hand."""
        writer = database.log("orders", create=True).writer()
        entries = database.log("orders").tail()
        gc.collect()
        database.close()
        with pytest.raises(Closed):
            writer.append(b"v")
        assert list(entries) == []

    def test_one_writer_at_a_time(self, log: Log) -> None:
        """A second writer waits, then is told that the log is busy; once the first is closed it may."""
        with log.writer() as first:
            with pytest.raises(LogBusy):
                log.writer(wait_s=0)
            with pytest.raises(LogBusy):
                log.writer(wait_s=0.02)
            first.append(b"1")
        with log.writer(wait_s=0) as second:
            assert second.append(b"2").position == 1

    def test_a_writer_that_waits_gets_the_log_when_it_is_free(self, log: Log) -> None:
        """Waiting for a writer ends when that one is closed."""
        first = log.writer()
        first.append(b"1", id="1")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(log.writer, wait_s=LONG_S)
            first.close()
            with waiting.result(LONG_S) as second:
                assert second.append(b"1", id="1").duplicate

    def test_a_bad_takeover_is_refused(self, log: Log) -> None:
        """There are two ways to take over, and they have names."""
        rude: Any = "rude"
        with pytest.raises(InvalidArgument, match="rude"):
            log.writer(takeover=rude)

    def test_threads_share_a_writer(self, log: Log, writer: Writer) -> None:
        """A hundred threads, ten ids: ten records, and every answer of one id is the same place."""
        go = threading.Barrier(100)

        def attempt(number: int) -> Ack:
            go.wait()
            return writer.append(b"%d" % (number % 10), id=str(number % 10))

        with ThreadPoolExecutor(100) as pool:
            acks = list(pool.map(attempt, range(100)))
        assert sorted(values(log)) == [b"%d" % number for number in range(10)]
        for number in range(10):
            same = acks[number::10]
            assert {place(ack) for ack in same} == {place(same[0])}
            assert [ack.duplicate for ack in same].count(False) == 1


class ReopenContract(LogContractFixtures):
    """Coming back, after a close and after a crash."""

    @pytest.fixture(params=[False, True], ids=["closed", "crashed"])
    def crash(self, request: pytest.FixtureRequest) -> bool:
        """Return whether the database ends by a crash."""
        return bool(request.param)

    def test_what_was_acknowledged_is_there(self, log: Log, reopen: Reopen, *, crash: bool) -> None:
        """Every acknowledged record is at its place, with its time."""
        writer = log.writer()
        acks = [writer.append(b"%d" % number, id=str(number)) for number in range(10)]
        again = reopen(crash=crash).log("orders")
        with again.writer() as writer:
            assert places(again) == [place(ack) for ack in acks]
            assert writer.append(b"next").position == len(acks)

    def test_a_retry_gets_the_original_ack(self, log: Log, reopen: Reopen, *, crash: bool) -> None:
        """Retries, by record, by column and by batch, meet what was stored before; conflicts too."""
        writer = log.writer()
        single = append(writer, FULL)
        batch = [Record(b"1", id="1"), Record(b"2", id="2")]
        pair = writer.append_batch(batch)
        rows = [Record(b"3", id="3"), Record(b"4", id="4", type="T")]
        writer.append_arrow(table(*rows))
        with reopen(crash=crash).log("orders").writer() as writer:
            assert append(writer, FULL) == duplicate_of(single)
            assert writer.append_batch(batch) == [duplicate_of(ack) for ack in pair]
            assert [ack.duplicate for ack in writer.append_many(rows)] == [True, True]
            assert writer.append_arrow(table(*rows)).positions.tolist() == [3, 4]
            with pytest.raises(PartialOverlap):
                writer.append_batch(batch[:1])
            with pytest.raises(IdConflict):
                writer.append(b"other", id="3")

    def test_with_a_snapshot_and_a_gap_behind_it(self, log: Log, reopen: Reopen, *, crash: bool) -> None:
        """What the snapshot has and what came after it are known alike."""
        writer = log.writer()
        acks = []
        for number in range(30):
            acks.append(writer.append(b"%d" % number, id=str(number)))
            if number % 10 == 0:
                writer.snapshot()
        again = reopen(crash=crash).log("orders")
        with again.writer() as writer:
            retries = [writer.append(b"%d" % number, id=str(number)) for number in range(30)]
        assert retries == [duplicate_of(ack) for ack in acks]

    def test_again_and_again(self, database: Database, reopen: Reopen, *, crash: bool) -> None:
        """Many lives of one log, over segments that roll: positions go on, every retry is known."""
        del database
        acks: list[Ack] = []
        db = reopen()
        log = db.log("lives", SMALL_SEGMENTS, create=True)
        for life in range(4):
            writer = log.writer()
            retries = [writer.append(b"%d" % number * 8000, id=str(number)) for number in range(len(acks))]
            assert retries == [duplicate_of(ack) for ack in acks]
            acks += [writer.append(b"%d" % number * 8000, id=str(number)) for number in range(life * 6, life * 6 + 6)]
            log = reopen(crash=crash).log("lives")
        assert places(log) == [place(ack) for ack in acks]
        assert [ack.position for ack in acks] == list(range(24))

    def test_settings_and_epochs_are_kept(self, database: Database, reopen: Reopen, *, crash: bool) -> None:
        """A log comes back as it was configured, and every writer has an epoch of its own."""
        log = database.log("orders", CONTENT, create=True)
        writer = log.writer()
        writer.append(b"v")
        before = log.info()
        again = reopen(crash=crash).log("orders", CONTENT)
        with again.writer() as writer:
            assert writer.append(b"v").duplicate
            after = again.info()
        assert after.log_id == before.log_id
        assert after.epoch > before.epoch
        assert after.settings == CONTENT

    def test_segments_are_numbered_on(self, log: Log, reopen: Reopen, *, crash: bool) -> None:
        """No segment and entry is ever given twice."""
        writer = log.writer()
        writer.append(b"1")
        again = reopen(crash=crash).log("orders")
        with again.writer() as writer:
            writer.append(b"2")
        pairs = [(entry.segment, entry.entry) for entry in again.read()]
        assert all(first < second for first, second in pairwise(pairs))


class LogContract(
    AppendContract,
    SubmitContract,
    ConflictContract,
    ManyContract,
    ArrowContract,
    IdempotenceContract,
    ReadContract,
    TailContract,
    SettingsContract,
    LifeContract,
    ReopenContract,
):
    """The public surface of a log, as programs are written against it."""


def append(writer: Writer, record: Record) -> Ack:
    """Append a record as it is."""
    fields = {name: getattr(record, name) for name in Record.__struct_fields__}
    return writer.append(**fields)


def table(*records: Record) -> pa.Table:
    """Return records as a user's table: all columns of a plain log."""
    text = {name: pa.array([getattr(record, name) for record in records], pa.string()) for name in _LABELS}
    headers = [None if record.headers is None else list(record.headers.items()) for record in records]
    return pa.table(
        {
            "value": pa.array([record.value for record in records], pa.binary()),
            **text,
            "headers": pa.array(headers, pa.map_(pa.string(), pa.binary())),
        }
    )


_LABELS = ("id", "stream", "type", "tenant")


def values(log: Log) -> list[bytes]:
    """Return the values of all records."""
    return [entry.value for entry in log.read()]


def places(log: Log) -> list[tuple[int | None, int | None, int | None, datetime | None]]:
    """Return where all records are."""
    return [(entry.position, entry.segment, entry.entry, entry.timestamp) for entry in log.read()]


def place(ack: Ack) -> tuple[int | None, int | None, int | None, datetime | None]:
    """Return where an ack says that its record is."""
    return ack.position, ack.segment, ack.entry, ack.timestamp


def duplicate_of(ack: Ack) -> Ack:
    """Return what a retry of a record must be answered, given the first one's ack."""
    return Ack(*place(ack), duplicate=True)


def _uses_of_a_writer(writer: Writer) -> list[Callable[[], object]]:
    return [
        lambda: writer.append(b"v"),
        lambda: writer.submit(b"v"),
        lambda: writer.append_many([Record(b"v")]),
        lambda: writer.append_batch([Record(b"v")]),
        lambda: writer.append_arrow(table(Record(b"v"))),
        writer.flush,
        writer.snapshot,
    ]
