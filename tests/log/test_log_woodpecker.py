"""Idempotent writes as Woodpecker has them: what goes wrong between a write, its answer, a snapshot and a crash."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

import oncelog
from oncelog.connect import Database
from oncelog.errors import IdConflict, NotFound, OncelogError, Unavailable, WriterFenced
from oncelog.format import block
from oncelog.settings import Window
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.logs.fixtures import duplicate_of, place, places, values
from oncelog.testing.storage import FaultyStorage
from oncelog.types import Ack, Record
from tests.log.retries import BIG, ROOT, SMALL_SEGMENTS, on_disk, retried, write
from tests.log.watched import LONG_S, WatchedStorage, orders, until


@pytest.fixture(params=["crash", "power cut"])
def end(request: pytest.FixtureRequest) -> Callable[[SimulatedDisk], None]:
    """Return what ends a process: its own death, or the machine's, which loses all that was not synced."""
    return SimulatedDisk.crash if request.param == "crash" else SimulatedDisk.power_cut


Ending = Callable[[SimulatedDisk], None]


class TestEdgeCases:
    """The eight cases at the end of the seed, each under its name."""

    def test_case_1_crash_between_write_and_snapshot(self, end: Ending) -> None:
        """What came after the last snapshot is found in the log: no retry of it is a second write."""
        disk = SimulatedDisk()
        writer = orders(on_disk(disk)).writer()
        acks = write(writer, range(50))
        writer.snapshot()
        acks += write(writer, range(50, 70))
        end(disk)
        log = orders(on_disk(disk))
        assert list(log.info().snapshots.values()) == [50]
        with log.writer() as writer:
            assert write(writer, range(70)) == retried(acks)
        assert len(values(log)) == 70

    def test_case_2_fake_failure_stored_but_the_answer_lost(self) -> None:
        """An append whose answer is lost is unknown, not failed; its retry settles it where it is."""
        storage, clock = FaultyStorage(MemoryStorage()), SimulatedClock(auto_advance=True)
        log = orders(Database(storage, clock))
        with log.writer() as writer:
            write(writer, range(1))
            storage.fail_at(1, "after")
            storage.faults.fail_forever(lambda operation, _: Unavailable("away") if operation == "append" else None)
            with pytest.raises(Unavailable) as unknown:
                writer.append(b"X", id="X", timeout_s=1)
            assert unknown.value.outcome == "unknown"
            assert values(log) == [b"0", b"X"]
            storage.faults.heal()
            ack = writer.append(b"X", id="X", timeout_s=None)
        assert (ack.position, ack.duplicate) == (1, True)
        assert [place(ack)] == places(log)[1:]

    @pytest.mark.parametrize("stored", [True, False])
    def test_case_3_failover_with_writes_in_flight(self, *, stored: bool) -> None:
        """The new writer decides: stored is a duplicate where it is, not stored is new; the old one learns neither."""
        storage = WatchedStorage()
        log = orders(Database(storage), block_records=1)
        old = log.writer()
        write(old, range(1))
        storage.answers += ["lost"] if stored else ["refused"]
        storage.otherwise = "refused"
        futures = [old.submit(b"X", id="X"), old.submit(b"Y", id="Y")]
        storage.wait_for_offers(2)
        until(lambda: old.counts().storage_failures)
        new_log = orders(Database(storage))
        new = new_log.writer(takeover="force")
        storage.otherwise = "stored"
        retry = [new.append(b"Y", id="Y"), new.append(b"X", id="X")]
        assert [ack.duplicate for ack in retry] == [False, stored]
        assert [place(ack) for ack in retry] == [places(log)[2], places(log)[1]] if stored else places(log)[1:]
        errors = [future.exception(LONG_S) for future in futures]
        assert [type(error) for error in errors] == [WriterFenced] * 2
        assert errors[0].outcome == "unknown"  # type: ignore[union-attr]
        assert sorted(values(new_log)) == [b"0", b"X", b"Y"]
        new.close()
        with new_log.writer() as third:
            assert [third.append(value, id=value.decode()) for value in (b"Y", b"X")] == retried(retry)

    @pytest.mark.parametrize("sealed", [False, True])
    def test_case_4_segment_finalized_since_the_snapshot(self, end: Ending, *, sealed: bool) -> None:
        """Where the snapshot stopped is read on from, whether that segment is open, closed or sealed by now."""
        disk = SimulatedDisk()
        log = orders(on_disk(disk), **SMALL_SEGMENTS)
        writer = log.writer()
        acks = write(writer, range(3), 8000)
        writer.snapshot()
        acks += write(writer, range(3, 20), 8000)
        assert acks[2].segment == acks[3].segment == 0
        assert acks[-1].segment
        if sealed:
            assert log.seal().segments
        end(disk)
        with orders(on_disk(disk)).writer() as writer:
            assert write(writer, range(20), 8000) == retried(acks)

    def test_case_5_segment_truncated(self, end: Ending) -> None:
        """Truncation takes what the window has forgotten and no more; what is left is known without the rest."""
        disk, clock = SimulatedDisk(), SimulatedClock()
        log = orders(on_disk(disk, clock), **SMALL_SEGMENTS, window=Window(duration_s=600))
        writer = log.writer()
        write(writer, range(10), 8000)
        writer.snapshot()
        clock.advance(601)
        acks = write(writer, range(10, 20), 8000)
        log.truncate(before=15)
        first = log.info().first_position
        assert 0 < first <= 10
        with pytest.raises(NotFound) as gone:
            log.read(0)
        assert gone.value.first == first
        end(disk)
        log = orders(on_disk(disk, clock))
        with log.writer() as writer:
            assert write(writer, range(10, 20), 8000) == retried(acks)
            assert [ack.position for ack in write(writer, range(3), 8000)] == [20, 21, 22]

    def test_case_6_new_segment_rolled_after_the_snapshot(self, end: Ending) -> None:
        """Segments that the snapshot has never heard of are read from their beginning."""
        disk = SimulatedDisk()
        writer = orders(on_disk(disk), **SMALL_SEGMENTS).writer()
        acks = write(writer, range(2))
        writer.snapshot()
        acks += [writer.append(BIG, id=f"big {number}") for number in range(3)]
        end(disk)
        with orders(on_disk(disk)).writer() as writer:
            again = write(writer, range(2)) + [writer.append(BIG, id=f"big {number}") for number in range(3)]
        assert again == retried(acks)
        assert len({ack.segment for ack in acks}) == 3

    def test_case_7_snapshot_write_fails(self) -> None:
        """Appends go on, the snapshot before it stands, the next attempt succeeds; a crash in between loses nothing."""
        storage, clock = FaultyStorage(MemoryStorage()), SimulatedClock()
        log = orders(Database(storage, clock), snapshot_records=10, window=Window(max_keys=100_000))
        writer = log.writer()
        acks = write(writer, range(10))
        until(lambda: log.info().snapshots)
        storage.faults.fail_forever(
            lambda operation, key: Unavailable("full") if operation == "create" and "snapshot" in key else None
        )
        acks += write(writer, range(10, 35))
        until(lambda: writer.counts().snapshot_failures)
        with pytest.raises(Unavailable):
            writer.snapshot()
        assert list(log.info().snapshots.values()) == [10]
        storage.restart()
        log = orders(Database(storage, clock))
        with log.writer() as writer:
            assert write(writer, range(35)) == retried(acks)
            acks += write(writer, range(35, 45))
            until(lambda: max(log.info().snapshots.values()) > 35)
        assert len(values(log)) == 45

    def test_case_8_retry_after_the_window(self) -> None:
        """An id older than the window is forgotten, so its retry is a new write; one younger is not."""
        clock = SimulatedClock()
        log = orders(Database(MemoryStorage(), clock), window=Window(duration_s=600))
        with log.writer() as writer:
            first = writer.append(b"X", id="X")
            clock.advance(599)
            assert writer.append(b"X", id="X") == duplicate_of(first)
            clock.advance(2)
            second = writer.append(b"X", id="X")
            assert (second.position, second.duplicate) == (1, False)
            assert writer.append(b"X", id="X") == duplicate_of(second)
        assert values(log) == [b"X", b"X"]

    def test_case_8_after_a_restart_the_window_is_as_old_as_it_was(self) -> None:
        """The up-time of all writers counts together; the time without one does not."""
        clock = SimulatedClock()
        log = orders(Database(MemoryStorage(), clock), window=Window(duration_s=600))
        with log.writer() as writer:
            first = writer.append(b"X", id="X")
            clock.advance(300)
        clock.advance(86_400)
        with log.writer() as writer:
            clock.advance(299)
            assert writer.append(b"X", id="X") == duplicate_of(first)
            clock.advance(2)
            assert not writer.append(b"X", id="X").duplicate

    def test_case_8_the_oldest_go_when_there_are_too_many(self) -> None:
        """The window keeps so many keys, and forgets the oldest first."""
        with orders(Database(MemoryStorage()), window=Window(max_keys=3)).writer() as writer:
            acks = write(writer, range(5))
            assert write(writer, range(2, 5)) == retried(acks[2:])
            assert not write(writer, range(1))[0].duplicate


class TestAtOnce:
    """Many attempts of one write while it is in flight."""

    @pytest.mark.parametrize("in_flight_max", [1, 4])
    def test_two_threads_with_one_id(self, in_flight_max: int) -> None:
        """One record and two equal acks, neither given before the record is durable."""
        storage = WatchedStorage(in_flight_max=in_flight_max)
        log = orders(Database(storage))
        storage.hold()
        with log.writer() as writer, ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(writer.append, b"v", id="1") for _ in range(2)]
            until(lambda: writer.counts().duplicates)
            storage.wait_for_offers(1)
            assert not any(future.done() for future in futures)
            assert values(log) == []
            storage.let_go()
            acks = [future.result(LONG_S) for future in futures]
        assert sorted(ack.duplicate for ack in acks) == [False, True]
        assert [place(ack) for ack in acks] == places(log) * 2

    def test_a_hundred_threads_with_ten_ids(self) -> None:
        """All in flight at once: ten records, and each id has one place."""
        storage = WatchedStorage()
        log = orders(Database(storage))
        storage.hold()
        with log.writer() as writer, ThreadPoolExecutor(100) as pool:
            futures = [pool.submit(writer.append, b"%d" % (n % 10), id=str(n % 10)) for n in range(100)]
            until(lambda: writer.counts().attempts == 100)
            storage.let_go()
            acks = [future.result(LONG_S) for future in futures]
        assert sorted(values(log)) == [b"%d" % number for number in range(10)]
        assert {place(ack) for ack in acks} == set(places(log))
        for number in range(10):
            assert len({place(ack) for ack in acks[number::10]}) == 1

    @pytest.mark.parametrize("on_conflict", ["error", "original"])
    def test_other_bytes_while_the_first_is_in_flight_are_a_conflict(self, on_conflict: Any) -> None:
        """Not a join: the other waits until the first is stored, and is then told of it, by every way in."""
        storage = WatchedStorage()
        log = orders(Database(storage), on_conflict=on_conflict)
        storage.hold()
        with log.writer() as writer, ThreadPoolExecutor(4) as pool:
            first = writer.submit(b"v", id="1")
            storage.wait_for_offers(1)
            others: list[Future[Any]] = [
                pool.submit(writer.append, b"w", id="1"),
                pool.submit(writer.append_many, [Record(b"w", id="1")]),
                pool.submit(writer.append_batch, [Record(b"w", id="1")]),
                writer.submit(b"w", id="1"),
            ]
            until(lambda: writer.counts().conflicts >= 3)
            assert not any(other.done() for other in others)
            storage.let_go()
            ack = first.result(LONG_S)
            answers: list[Any] = [other.exception(LONG_S) or other.result() for other in others]
        if on_conflict == "error":
            kinds = [IdConflict, oncelog.AppendErrors, IdConflict, IdConflict]
            assert [type(answer) for answer in answers] == kinds
            assert answers[0].position == ack.position
        else:
            expected = Ack(*place(ack), duplicate=True, conflict=True)
            assert answers == [expected, [expected], [expected], expected]
        assert values(log) == [b"v"]


class TestPending:
    """Writes whose outcome is not known."""

    @pytest.mark.parametrize("in_flight_max", [1, 4])
    def test_every_offer_of_one_write_is_the_same_at_the_same_place(self, in_flight_max: int) -> None:
        """A block once offered is offered byte for byte again, whatever was submitted and retried meanwhile."""
        clock = SimulatedClock(auto_advance=True)
        storage = WatchedStorage(clock=clock, in_flight_max=in_flight_max)
        log = orders(Database(storage, clock))
        storage.otherwise = "lost"
        with log.writer() as writer:
            futures = [writer.submit(b"%d" % number, id=str(number)) for number in range(3)]
            for number in count(3):
                futures.append(writer.submit(b"%d" % number, id=str(number)))
                futures.append(writer.submit(b"0", id="0"))
                storage.wait_for_offers(number)
                if number == 12:
                    break
            storage.otherwise = "stored"
            acks = [future.result(LONG_S) for future in futures]
        blocks: dict[tuple[int, int], set[bytes]] = {}
        for offer in storage.offers:
            blocks.setdefault((offer.segment, offer.number), set()).add(offer.block)
        assert len(storage.offers) > len(blocks)
        assert {len(offered) for offered in blocks.values()} == {1}
        assert sorted({place(ack) for ack in acks}) == places(log)
        assert values(log) == [b"%d" % number for number in range(13)]

    @pytest.mark.parametrize("answer", ["lost", "refused"])
    def test_pending_survives_a_failed_commit_and_is_settled_at_its_place(self, answer: Any) -> None:
        """Nobody retries, nobody waits: what was submitted is stored all the same, where it was to be."""
        clock = SimulatedClock(auto_advance=True)
        storage = WatchedStorage(clock=clock)
        log = orders(Database(storage, clock))
        with log.writer() as writer:
            write(writer, range(1))
            storage.answers += [answer] * 5
            with pytest.raises(Unavailable) as unknown:
                writer.append(b"X", id="X", timeout_s=0)
            assert unknown.value.outcome == "unknown"
            writer.flush(timeout_s=None)
            assert [entry.value for entry in log.read()] == [b"0", b"X"]
            assert writer.append(b"X", id="X").position == 1
        assert len({offer for offer in storage.offers if offer.number == 1}) == 1

    def test_eviction_never_takes_a_pending_id(self) -> None:
        """However many and however old, ids in flight are known; once stored they are evicted like all others."""
        clock = SimulatedClock()
        storage = WatchedStorage(clock=clock)
        log = orders(Database(storage, clock), window=Window(max_keys=2, duration_s=60))
        with log.writer() as writer, ThreadPoolExecutor(20) as pool:
            write(writer, range(100, 102))
            storage.hold()
            futures = [pool.submit(writer.append, b"%d" % n, id=str(n), timeout_s=None) for n in range(10)]
            until(lambda: writer.window_state["pending"] == 10)
            clock.advance(3600)
            retries = [pool.submit(writer.append, b"%d" % n, id=str(n), timeout_s=None) for n in range(10)]
            until(lambda: writer.counts().duplicates == 10)
            state = writer.window_state
            assert (state["pending"], state["keys"], state["evicted"]) == (10, 10, 2)
            storage.let_go()
            acks = [future.result(LONG_S) for future in futures]
            assert [future.result(LONG_S) for future in retries] == retried(acks)
            writer.append(b"next", id="next")
            writer.append(b"next", id="next")
            assert (writer.window_state["keys"] or 0) <= 2
        assert sorted(ack.position or 0 for ack in acks) == list(range(2, 12))
        assert len(values(log)) == 13

    @pytest.mark.parametrize("in_flight_max", [1, 4])
    def test_a_writer_whose_block_has_an_unknown_outcome_rolls(self, in_flight_max: int) -> None:
        """The segment closes only when its tail is known: no position and no entry is ever given twice."""
        clock = SimulatedClock(auto_advance=True)
        storage = WatchedStorage(clock=clock, in_flight_max=in_flight_max)
        log = orders(Database(storage, clock), **SMALL_SEGMENTS, block_records=1)
        with log.writer() as writer:
            write(writer, range(1))
            storage.answers += ["lost", "refused", "lost", "lost"]
            futures = [writer.submit(BIG, id=str(number)) for number in range(1, 5)]
            acks = [future.result(LONG_S) for future in futures]
            segments = [offer.segment for offer in storage.offers]
            assert segments == sorted(segments)
            assert len(segments) >= 1 + 4 + 4
        assert [place(ack) for ack in acks] == places(log)[1:]
        assert [entry.position for entry in log.read()] == list(range(5))
        assert len({(entry.segment, entry.entry) for entry in log.read()}) == 5
        assert len({entry.segment for entry in log.read()}) > 2


def clock_goes_on_until(clock: SimulatedClock, condition: Callable[[], bool], step_s: float = 5) -> None:
    """Let time pass until something holds."""

    def later() -> bool:
        clock.advance(step_s)
        return condition()

    until(later)


class TestTime:
    """Neither an outage nor a clock ages the window."""

    def test_an_outage_longer_than_the_window(self) -> None:
        """Retries arrive when the outage ends: what was stored before it is known, and so is what was on its way."""
        clock = SimulatedClock()
        storage = WatchedStorage(clock=clock)
        log = orders(Database(storage, clock), window=Window(duration_s=600))
        with log.writer() as writer:
            before = write(writer, range(3))
            clock.advance(60)
            storage.otherwise = "refused"
            on_its_way = writer.submit(b"X", id="X")
            until(lambda: writer.counts().storage_failures)
            clock_goes_on_until(clock, lambda: writer.counts().storage_failures >= 10, step_s=600)
            assert write(writer, range(3)) == retried(before)
            storage.otherwise = "stored"
            clock_goes_on_until(clock, on_its_way.done)
            assert write(writer, range(3)) == retried(before)
            assert writer.append(b"X", id="X") == duplicate_of(on_its_way.result(0))
            clock.advance(541)
            assert not any(ack.duplicate for ack in write(writer, range(3)))

    def test_a_storage_that_hangs_longer_than_the_window(self) -> None:
        """A storage that does not answer at all is an outage too."""
        clock = SimulatedClock()
        storage = WatchedStorage(clock=clock)
        log = orders(Database(storage, clock), window=Window(duration_s=600))
        with log.writer() as writer:
            before = write(writer, range(3))
            storage.hold()
            hanging = writer.submit(b"X", id="X")
            storage.wait_for_offers(4)
            clock.advance(7200)
            assert write(writer, range(3)) == retried(before)
            storage.answers.append("refused")
            storage.let_go()
            clock_goes_on_until(clock, hanging.done)
            assert write(writer, range(3)) == retried(before)

    @pytest.mark.parametrize("jump_s", [3600, -3600])
    @pytest.mark.parametrize("with_snapshots", [True, False])
    def test_the_clock_jumps_an_hour(self, jump_s: int, *, with_snapshots: bool) -> None:
        """Age is counted in up-time: nothing is forgotten early, snapshots or not, and nothing is kept for longer."""
        disk, clock = SimulatedDisk(), SimulatedClock()
        log = orders(on_disk(disk, clock), window=Window(duration_s=600))
        writer = log.writer()
        acks = write(writer, range(5))
        writer.snapshot()
        clock.jump(jump_s)
        acks += write(writer, range(5, 10))
        writer.snapshot()
        times = [ack.timestamp for ack in acks if ack.timestamp]
        assert times == sorted(times)
        if not with_snapshots:
            home = LocalStorage(ROOT, disk, clock).home("orders")
            for key in log.info().snapshots:
                home.delete(key)
        disk.power_cut()
        clock.jump(jump_s)
        with orders(on_disk(disk, clock)).writer() as writer:
            assert write(writer, range(10)) == retried(acks)
            clock.advance(599)
            assert write(writer, range(10)) == retried(acks)
            clock.advance(2)
            assert not any(ack.duplicate for ack in write(writer, range(10)))


class TestOff:
    """Idempotence that nobody asked for costs nothing."""

    def test_no_id_is_stored_and_no_window_kept(self) -> None:
        """The blocks have one column, the value; there is no window, and no snapshot however many records come."""
        storage = MemoryStorage()
        log = orders(Database(storage), idempotence="off", snapshot_records=1)
        with log.writer() as writer:
            for _ in range(5):
                writer.append(b"v")
            writer.append_many([Record(b"v")] * 3)
            writer.snapshot()
            assert dict(writer.window_state) == {}
        home = storage.home("orders")
        found, _ = home.blocks(0, 0, None, 1 << 30)
        assert [block.decode(buffer).payload.schema.names for buffer in found] == [["value"]] * 6
        assert home.list("dedup_snapshot/") == []
        with contextlib.suppress(OncelogError), log.writer() as writer:
            writer.append(b"v", id="1")
            pytest.fail("an id was taken by a log that cannot keep its promise")

    def test_records_without_ids_have_no_id_column(self) -> None:
        """Where ids are allowed, blocks without any do not spend a byte on them."""
        storage = MemoryStorage()
        log = orders(Database(storage))
        with log.writer() as writer:
            writer.append(b"v")
            writer.append_many([Record(b"v")] * 3)
            writer.append(b"v", id="1")
        found, _ = storage.home("orders").blocks(0, 0, None, 1 << 30)
        assert [block.decode(buffer).payload.schema.names for buffer in found] == [
            ["value"],
            ["value"],
            ["value", "id"],
        ]
