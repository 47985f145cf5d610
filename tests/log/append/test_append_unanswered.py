"""What a writer does, and what its callers are told, while storage does not answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncelog import limits
from oncelog.connect import Database
from oncelog.errors import Closed, LogBusy, Unavailable, WriterFenced
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.logs.fixtures import duplicate_of, place, places, table, values
from oncelog.types import Record
from tests.log.watched import LONG_S, WatchedStorage, orders, until


@pytest.fixture
def clock() -> SimulatedClock:
    """Return a clock that runs through every wait."""
    return SimulatedClock(auto_advance=True)


@pytest.fixture
def storage(clock: SimulatedClock) -> WatchedStorage:
    """Return a storage that a test can stop."""
    return WatchedStorage(clock=clock)


class TestBackpressure:
    """No more waits for storage than the settings allow."""

    @pytest.mark.parametrize("limit", [{"pending_records": 3}, {"pending_bytes": limits.KIB}], ids=str)
    def test_without_room_nothing_is_taken(
        self, storage: WatchedStorage, clock: SimulatedClock, limit: dict[str, int]
    ) -> None:
        """When too much is pending and time runs out, the record is refused, surely not written, and may be retried."""
        log = orders(Database(storage, clock), **limit)
        with log.writer() as writer:
            storage.otherwise = "refused"
            futures = [writer.submit(b"x" * 300, id=str(number)) for number in range(3)]
            for attempt in (writer.append, writer.submit):
                with pytest.raises(Unavailable, match="pending") as refused:
                    attempt(b"y" * 300, id="y", timeout_s=1)
                assert refused.value.outcome == "not written"
                assert refused.value.retry_after_s > 0
            storage.otherwise = "stored"
            assert [future.result(LONG_S).position for future in futures] == [0, 1, 2]
            assert writer.append(b"y" * 300, id="y", timeout_s=None).duplicate is False
        assert len(values(log)) == 4

    def test_submit_goes_on_when_there_is_room_again(self, storage: WatchedStorage, clock: SimulatedClock) -> None:
        """A thread that waits for room is let in as soon as storage has taken something."""
        log = orders(Database(storage, clock), pending_records=2)
        storage.hold()
        with log.writer() as writer, ThreadPoolExecutor(1) as pool:
            writer.submit(b"0")
            storage.wait_for_offers(1)
            writer.submit(b"1")
            waiting = pool.submit(lambda: writer.submit(b"2", timeout_s=None).result(LONG_S))
            storage.let_go()
            assert waiting.result(LONG_S).position == 2
        assert values(log) == [b"0", b"1", b"2"]

    def test_one_record_larger_than_all_that_may_be_pending(
        self, storage: WatchedStorage, clock: SimulatedClock
    ) -> None:
        """A record that alone is too much for the limit is stored when nothing else is pending."""
        log = orders(Database(storage, clock), pending_bytes=limits.KIB)
        with log.writer() as writer:
            writer.append(b"x" * 100_000)
            writer.append_batch([Record(b"y" * 10_000)] * 10)
        assert len(values(log)) == 11

    @pytest.mark.parametrize("kind", ["many", "arrow"])
    def test_a_call_that_was_taken_in_part_has_an_unknown_outcome(
        self, storage: WatchedStorage, clock: SimulatedClock, kind: str
    ) -> None:
        """Without room for the second half, the first is on its way: nobody may call that "not written"."""
        log = orders(Database(storage, clock), block_records=2, pending_records=3)
        records = [Record(b"%d" % number, id=str(number)) for number in range(6)]

        def attempt(timeout_s: float | None) -> list[int]:
            if kind == "arrow":
                return list(writer.append_arrow(table(*records), timeout_s=timeout_s).positions)
            return [ack.position or 0 for ack in writer.append_many(records, timeout_s=timeout_s)]

        with log.writer() as writer:
            storage.otherwise = "refused"
            with pytest.raises(Unavailable) as refused:
                attempt(1)
            storage.otherwise = "stored"
            writer.flush(timeout_s=None)
            assert values(log)
            assert refused.value.outcome == "unknown"
            assert attempt(None) == list(range(6))
        assert values(log) == [record.value for record in records]


class TestTimeouts:
    """Time that runs out before storage answers."""

    @pytest.mark.parametrize("in_flight_max", [1, 4])
    def test_every_way_in_tells_that_the_outcome_is_unknown(self, clock: SimulatedClock, in_flight_max: int) -> None:
        """What stays pending gets an error that says so; the retry of each gets the place it was going to all along."""
        storage = WatchedStorage(clock=clock, in_flight_max=in_flight_max)
        log = orders(Database(storage, clock))
        with log.writer() as writer:
            storage.otherwise = "refused"
            attempts: list[Any] = [
                lambda t: [writer.append(b"1", id="1", timeout_s=t)],
                lambda t: writer.append_many([Record(b"2", id="2"), Record(b"3", id="3")], timeout_s=t),
                lambda t: writer.append_batch([Record(b"4", id="4"), Record(b"5", id="5")], timeout_s=t),
            ]
            for attempt in (*attempts, lambda t: writer.flush(timeout_s=t)):
                with pytest.raises(Unavailable) as unknown:
                    attempt(0.5)
                assert unknown.value.outcome == "unknown"
            storage.otherwise = "stored"
            acks = [ack for attempt in attempts for ack in attempt(None)]
        assert [ack.position for ack in acks] == list(range(5))
        assert all(ack.duplicate for ack in acks)
        assert [place(ack) for ack in acks] == places(log)

    def test_a_duplicate_of_what_is_not_durable_yet_is_not_acknowledged(
        self, storage: WatchedStorage, clock: SimulatedClock
    ) -> None:
        """Acknowledged means durable: a retry that joins waits as long as the first."""
        log = orders(Database(storage, clock))
        with log.writer() as writer:
            storage.otherwise = "refused"
            first = writer.submit(b"v", id="1")
            for _ in range(3):
                with pytest.raises(Unavailable) as unknown:
                    writer.append(b"v", id="1", timeout_s=1)
                assert unknown.value.outcome == "unknown"
            assert not first.done()
            storage.otherwise = "stored"
            assert writer.append(b"v", id="1", timeout_s=None) == duplicate_of(first.result(LONG_S))

    def test_what_was_stored_before_is_answered_during_an_outage(
        self, storage: WatchedStorage, clock: SimulatedClock
    ) -> None:
        """A duplicate needs no storage: the window knows its place."""
        log = orders(Database(storage, clock))
        with log.writer() as writer:
            first = writer.append(b"v", id="1")
            storage.otherwise = "refused"
            pending = writer.submit(b"w", id="2")
            assert writer.append(b"v", id="1") == duplicate_of(first)
            assert writer.append_many([Record(b"v", id="1")]) == [duplicate_of(first)]
            assert not pending.done()
            storage.otherwise = "stored"
            writer.close(timeout_s=None)  # the clock runs while this waits

    def test_what_nobody_waits_for_any_longer_is_stored(self, storage: WatchedStorage, clock: SimulatedClock) -> None:
        """A write whose time ran out stays pending, and somebody offers it again: the next append may never come."""
        log = orders(Database(storage, clock))
        with log.writer() as writer:
            writer.append(b"0")
            storage.answers.append("refused")
            with pytest.raises(Unavailable):
                writer.append(b"1", timeout_s=0)
            until(lambda: writer.last_position == 1)
        assert values(log) == [b"0", b"1"]

    def test_failures_are_counted(self, storage: WatchedStorage, clock: SimulatedClock) -> None:
        """An operator sees how often storage failed, and why."""
        log = orders(Database(storage, clock))
        with log.writer() as writer:
            storage.answers += ["refused", "lost"]
            writer.append(b"v", timeout_s=None)
            counted = log.info().counters
            assert counted is not None
            assert (counted.storage_failures, counted.commits, counted.stored) == (2, 1, 1)
            assert "lost" in counted.last_failure


class TestLeaving:
    """Closing while storage does not answer."""

    @pytest.mark.parametrize("answer", ["lost", "refused"])
    def test_leaving_with_an_unknown_outcome_says_so(
        self, storage: WatchedStorage, clock: SimulatedClock, answer: Any
    ) -> None:
        """The with raises, the futures do not hang, the log is let go, and the next writer decides."""
        log = orders(Database(storage, clock))
        writer = log.writer()
        storage.otherwise = answer
        future = writer.submit(b"v", id="1")
        with pytest.raises(Unavailable) as unknown, writer:
            pass
        told = future.exception(LONG_S)
        for error in (unknown.value, told):
            assert isinstance(error, Unavailable)
            assert error.outcome == "unknown"
        with pytest.raises(Closed):
            writer.append(b"w")
        storage.otherwise = "stored"
        with log.writer(wait_s=0) as writer:
            assert writer.append(b"v", id="1").duplicate is (answer == "lost")
        assert values(log) == [b"v"]

    def test_a_database_ends_everything_although_one_writer_cannot(
        self, storage: WatchedStorage, clock: SimulatedClock
    ) -> None:
        """One log that cannot be flushed does not leave the others' writers and tails open."""
        database = Database(storage, clock)
        stuck, fine = database.log("1 stuck", create=True), database.log("2 fine", create=True)
        first, second, tail = stuck.writer(), fine.writer(), fine.tail()
        storage.otherwise = "refused"
        first.submit(b"v", id="1")
        with pytest.raises(Unavailable) as unknown:
            database.close()
        assert unknown.value.outcome == "unknown"
        for use in (first.flush, second.flush, tail.poll, fine.info, stuck.info):
            with pytest.raises(Closed):
                use()
        storage.otherwise = "stored"
        with Database(storage, clock).log("2 fine").writer(wait_s=0) as writer:
            assert writer.append(b"v").position == 0

    def test_closing_waits_for_a_block_on_its_way(self, storage: WatchedStorage, clock: SimulatedClock) -> None:
        """Nobody gets the log while a block of its last writer may still arrive."""
        log = orders(Database(storage, clock))
        writer = log.writer()
        storage.hold()
        future = writer.submit(b"v", id="1")
        storage.wait_for_offers(1)
        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(writer.close, timeout_s=None)
            with pytest.raises(LogBusy):
                orders(Database(storage, clock)).writer(wait_s=0)
            assert not closing.done()
            storage.let_go()
            closing.result(LONG_S)
        assert future.result(0).position == 0

    def test_nothing_is_taken_while_the_segment_is_being_closed(
        self, storage: WatchedStorage, clock: SimulatedClock
    ) -> None:
        """An append that meets a close is stored or refused; it is never acknowledged and then not there."""
        log = orders(Database(storage, clock))
        writer = log.writer()
        writer.append(b"first")
        storage.hold_creates(lambda key: key.startswith("manifest/"))
        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(writer.close)
            storage.wait_for_create(lambda key: key.startswith("manifest/"))
            for use in (writer.append, writer.submit):
                with pytest.raises(Closed):
                    use(b"late")
            for many in (writer.append_many, writer.append_batch):
                with pytest.raises(Closed):
                    many([Record(b"late")])
            storage.let_go()
            closing.result(LONG_S)
        assert values(log) == [b"first"]

    def test_a_close_ends_although_others_go_on_appending(self, storage: WatchedStorage, clock: SimulatedClock) -> None:
        """Closing does not wait for a gap in the traffic: what comes after it is refused, what came before is there."""
        log = orders(Database(storage, clock), pending_records=2)
        writer = log.writer()
        acknowledged: list[int] = []

        def work() -> None:
            while True:
                acknowledged.append(writer.append(b"v", timeout_s=None).position or 0)

        with ThreadPoolExecutor(8) as pool:
            working = [pool.submit(work) for _ in range(8)]
            until(lambda: len(acknowledged) > 20)
            writer.close(timeout_s=None)  # the clock runs while this waits
            assert [type(future.exception(LONG_S)) for future in working] == [Closed] * 8
        assert sorted(acknowledged) == [entry.position for entry in log.read()]

    def test_a_writer_that_was_fenced_closes_quietly(self, storage: WatchedStorage, clock: SimulatedClock) -> None:
        """All it had acknowledged is durable: there is nothing to complain about, and nothing to undo."""
        log = orders(Database(storage, clock))
        with log.writer() as old:
            old.append(b"v", id="1")
            new = orders(Database(storage, clock)).writer(takeover="force")
            assert new.append(b"v", id="1").duplicate
        assert new.append(b"w").position == 1
        with pytest.raises(LogBusy):
            log.writer(wait_s=0)
        new.close()

    def test_what_was_never_offered_is_told_apart(self, storage: WatchedStorage, clock: SimulatedClock) -> None:
        """Of a writer that lost its log: what was on its way is unknown, what had not left is surely not written."""
        log = orders(Database(storage, clock), block_records=1)
        old = log.writer()
        storage.hold(lambda offer: offer.segment == 0)
        futures = [old.submit(b"%d" % number, id=str(number)) for number in range(3)]
        storage.wait_for_offers(1)
        with orders(Database(storage, clock)).writer(takeover="force"):
            storage.let_go()
            errors = [future.exception(LONG_S) for future in futures]
        assert [error.outcome for error in errors if isinstance(error, WriterFenced)] == [
            "unknown", "not written", "not written",
        ]  # fmt: skip
        assert values(log) == []
