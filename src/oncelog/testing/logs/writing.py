"""The contract of a log's writer: one record, many, batches, columns; conflicts and idempotence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, as_completed, wait
from datetime import UTC
from queue import Queue
from typing import Any

import pytest

from oncelog import limits
from oncelog.connect import Database
from oncelog.errors import AppendErrors, IdConflict, InvalidArgument
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.testing.logs.fixtures import (
    CONTENT,
    FULL,
    LONG_S,
    OFF,
    ORIGINAL,
    LogContractFixtures,
    append,
    duplicate_of,
    place,
    places,
    table,
    values,
)
from oncelog.types import Ack, Record


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

    def test_a_future_is_a_future(self, writer: Writer) -> None:
        """What the standard library does with futures works: waiting for many, callbacks, which may append again."""
        again: Queue[Future[Ack]] = Queue()
        futures = [writer.submit(b"%d" % number, id=str(number)) for number in range(20)]
        futures[0].add_done_callback(lambda _: again.put(writer.submit(b"0", id="0")))
        assert not futures[0].cancel()
        assert {future.result() for future in as_completed(futures, LONG_S)} == {future.result() for future in futures}
        assert wait(futures, LONG_S).not_done == set()
        assert again.get(timeout=LONG_S).result(LONG_S) == duplicate_of(futures[0].result())

    def test_flush_waits_for_all_that_was_submitted(self, log: Log, writer: Writer) -> None:
        """After a flush everything is durable, also when nobody holds the futures."""
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
            assert writer.append_arrow(table(bare, Record(b"new"))).duplicates.all()
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
            assert all(map(isinstance, refused.value.results, (InvalidArgument, Ack)))
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
