"""Idempotent writes as Woodpecker has them: what goes wrong between a write, its answer, a snapshot and a crash."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog import limits
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.errors import (
    CorruptionError,
    IdConflict,
    NotFound,
    OncelogError,
    Unavailable,
    WriterFenced,
)
from oncelog.format import block
from oncelog.log import snapshots
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.storage.local import LocalStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.faults import Killed
from oncelog.testing.log_contract import duplicate_of, place, places, values
from oncelog.testing.storage import FaultyStorage
from oncelog.types import Ack, Record
from tests.log.watched import LONG_S, WatchedStorage, orders, until

ROOT = Path("/data/shop")
BIG = b"x" * (limits.SEGMENT_BYTES_MIN + 1)
"""A value that fills a segment: the next block goes into another."""

SMALL_SEGMENTS = {"segment_bytes": limits.SEGMENT_BYTES_MIN}


def on_disk(disk: SimulatedDisk, clock: SimulatedClock | None = None) -> Database:
    """Return the database of a process that was just started on a simulated disk."""
    return Database(LocalStorage(ROOT, disk, clock or SYSTEM), clock or SYSTEM)


def write(writer: Writer, numbers: range, size_bytes: int = 0) -> list[Ack]:
    """Append a record with an id for each number. To do it again is to retry."""
    return [writer.append(b"%d" % number + b"." * size_bytes, id=str(number)) for number in numbers]


def retried(acks: list[Ack]) -> list[Ack]:
    """Return what a retry of each must be answered."""
    return [duplicate_of(ack) for ack in acks]


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
        log = orders(Database(storage, clock), snapshot_records=10)
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
            answers = [other.exception(LONG_S) or other.result() for other in others]
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
        storage.hold()
        with log.writer() as writer, ThreadPoolExecutor(20) as pool:
            futures = [pool.submit(writer.append, b"%d" % n, id=str(n), timeout_s=None) for n in range(10)]
            until(lambda: writer.window_state["pending"] == 10)
            clock.advance(3600)
            retries = [pool.submit(writer.append, b"%d" % n, id=str(n), timeout_s=None) for n in range(10)]
            until(lambda: writer.counts().duplicates == 10)
            assert (writer.window_state["pending"], writer.window_state["evicted"]) == (10, 0)
            storage.let_go()
            acks = [future.result(LONG_S) for future in futures]
            assert [future.result(LONG_S) for future in retries] == retried(acks)
            writer.append(b"next", id="next")
            writer.append(b"next", id="next")
            assert (writer.window_state["keys"] or 0) <= 2
        assert sorted(ack.position or 0 for ack in acks) == list(range(10))
        assert len(values(log)) == 11

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


class TestSnapshots:
    """A snapshot saves time and nothing else."""

    @pytest.fixture
    def crashed(self, tmp_path: Path) -> tuple[Path, list[Ack]]:
        """Return a folder with a log that crashed: four segments of records, snapshots after 10 and 20."""
        log = orders(oncelog.connect((tmp_path / "live").as_uri()), **SMALL_SEGMENTS)
        writer = log.writer()
        acks = []
        for number in range(3):
            acks += write(writer, range(number * 10, number * 10 + 10), 8000)
            if number < 2:
                writer.snapshot()
        assert sorted(log.info().snapshots.values()) == [10, 20]
        assert len({ack.segment for ack in acks}) == 4
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
        writer.close()
        return tmp_path / "crashed", acks

    @staticmethod
    def snapshot_files(folder: Path) -> list[Path]:
        """Return the files of the snapshots, oldest first."""
        return sorted(folder.rglob("snapshot_*"))

    @pytest.fixture(params=["a byte of the head", "a byte within", "a byte near the end", "half of it", "all of it"])
    def damage(self, request: pytest.FixtureRequest) -> Callable[[Path], None]:
        """Return what is done to a file."""

        def do(path: Path) -> None:
            content = bytearray(path.read_bytes())
            if request.param == "half of it":
                del content[len(content) // 2 :]
            elif request.param == "all of it":
                content.clear()
            else:
                where = {"a byte of the head": 20, "a byte within": len(content) // 2, "a byte near the end": -9}
                content[where[request.param]] ^= 1
            path.write_bytes(content)

        return do

    def test_newest_damaged_the_one_before_is_used(
        self, crashed: tuple[Path, list[Ack]], damage: Callable[[Path], None]
    ) -> None:
        """The older snapshot and the longer gap give the same window. (What came before it cannot be read here.)"""
        folder, acks = crashed
        damage(self.snapshot_files(folder)[-1])
        next(iter(sorted(folder.rglob("*.blocks")))).unlink()
        assert acks[9].segment == 1  # so the gap behind the older snapshot begins in a segment that is there
        with orders(oncelog.connect(folder.as_uri())).writer() as writer:
            assert write(writer, range(30), 8000) == retried(acks)

    def test_all_damaged_the_log_is_read(self, crashed: tuple[Path, list[Ack]], damage: Callable[[Path], None]) -> None:
        """Without a snapshot to believe, the log itself says what was seen."""
        folder, acks = crashed
        for path in self.snapshot_files(folder):
            damage(path)
        with orders(oncelog.connect(folder.as_uri())).writer() as writer:
            assert write(writer, range(30), 8000) == retried(acks)
            writer.snapshot()
        with orders(oncelog.connect(folder.as_uri())).writer() as writer:
            assert write(writer, range(30), 8000) == retried(acks)

    def test_all_gone_the_log_is_read(self, crashed: tuple[Path, list[Ack]]) -> None:
        """Deleting every snapshot loses time, never correctness."""
        folder, acks = crashed
        for path in self.snapshot_files(folder):
            path.unlink()
        with orders(oncelog.connect(folder.as_uri())).writer() as writer:
            assert write(writer, range(30), 8000) == retried(acks)

    @pytest.mark.parametrize("keep_snapshots", [True, False])
    def test_never_an_empty_window(self, crashed: tuple[Path, list[Ack]], *, keep_snapshots: bool) -> None:
        """When neither a snapshot nor the log can tell, opening fails: nothing is taken for new by guessing."""
        folder, _ = crashed
        for path in self.snapshot_files(folder):
            if keep_snapshots:
                path.write_bytes(b"")
            else:
                path.unlink()
        next(iter(sorted(folder.rglob("*.blocks")))).unlink()
        log = orders(oncelog.connect(folder.as_uri()))
        for _ in range(2):
            with pytest.raises((CorruptionError, NotFound)):
                log.writer()

    def test_of_another_log_is_not_believed(self, tmp_path: Path) -> None:
        """A snapshot that got under a log's name by mistake says nothing about it."""
        database = oncelog.connect(tmp_path.as_uri())
        for name in ("orders", "other"):
            with database.log(name, create=True).writer() as writer:
                writer.append(name.encode(), id="1")
                writer.append(name.encode(), id=name)
                writer.snapshot()
        database.close()
        mine, theirs = (next(iter((tmp_path / "logs" / name).rglob("snapshot_*"))) for name in ("orders", "other"))
        shutil.copy(theirs, mine)
        with orders(oncelog.connect(tmp_path.as_uri())).writer() as writer:
            assert writer.append(b"orders", id="1").duplicate
            assert not writer.append(b"orders", id="other").duplicate

    def test_ahead_of_what_was_decided_is_not_believed(self) -> None:
        """A snapshot of records that a fence cut off would make their retries vanish."""
        storage = MemoryStorage()
        ahead = orders(Database(storage))
        with ahead.writer() as writer:
            write(writer, range(5))
            writer.snapshot()
        key = next(iter(ahead.info().snapshots))
        bytes_ahead = storage.home("orders").read(key).to_pybytes()
        shorter = MemoryStorage()
        home, source = shorter.home("orders"), storage.home("orders")
        for name in source.list(""):
            if name.endswith(("00000001", "00000002")) or name.startswith("bodies/0000000000000000000"):
                home.create(name, [source.read(name)])
        home.delete("manifest/00000000000000000003")
        home.create(key, [bytes_ahead])
        with orders(Database(shorter)).writer() as writer:
            assert [ack.duplicate for ack in write(writer, range(5))] == [False] * 5

    def test_the_newest_is_the_one_that_covers_most(self) -> None:
        """Names come from a clock that jumps: the higher watermark is the newer one, and two are kept."""
        storage, clock = MemoryStorage(), SimulatedClock()
        log = orders(Database(storage, clock))
        with log.writer() as writer:
            for number in range(5):
                write(writer, range(number, number + 1))
                writer.snapshot()
                clock.jump(-3600 if number % 2 else 1800)
            assert sorted(log.info().snapshots.values()) == [4, 5]

    @pytest.mark.parametrize("in_flight_max", [1, 4])
    def test_a_snapshot_and_its_position_are_taken_together(self, in_flight_max: int) -> None:
        """While four threads append: each snapshot holds exactly the ids below the position it claims."""
        storage = MemoryStorage(in_flight_max=in_flight_max)
        log = orders(Database(storage))
        home, log_id = storage.home("orders"), log.info().log_id
        with log.writer() as writer, ThreadPoolExecutor(4) as pool:
            working = [pool.submit(write, writer, range(n * 1000, n * 1000 + 100)) for n in range(4)]
            taken = []
            while not all(future.done() for future in working):
                writer.snapshot()
                taken.append(next(snapshots.readable(home, log_id, 1 << 60)))
            for future in working:
                future.result()
        assert {tuple(found.positions.tolist()) for found in taken} == {
            tuple(range(found.watermark)) for found in taken
        }
        assert len({found.watermark for found in taken}) > 1
        by_position = {position: fingerprint for found in taken for position, fingerprint in zip(
            found.positions.tolist(), found.fingerprints.tolist(), strict=True)}  # fmt: skip
        for found in taken:
            assert [by_position[position] for position in range(found.watermark)] == found.fingerprints.tolist()

    def test_a_pending_id_is_in_no_snapshot(self) -> None:
        """What is not durable may yet be lost: a snapshot that knew it would swallow its retry."""
        storage = WatchedStorage()
        log = orders(Database(storage))
        writer = log.writer()
        write(writer, range(1))
        storage.otherwise = "refused"
        future = writer.submit(b"X", id="X")
        storage.wait_for_offers(2)
        writer.snapshot()
        assert list(log.info().snapshots.values()) == [1]
        new = orders(Database(storage)).writer(takeover="force")
        storage.otherwise = "stored"
        assert not new.append(b"X", id="X").duplicate
        assert isinstance(future.exception(LONG_S), WriterFenced)
        new.close()


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
            for _ in range(10):
                failures = writer.counts().storage_failures
                until(lambda failures=failures: writer.counts().storage_failures > failures)  # type: ignore[misc]
                clock.advance(600)
            assert write(writer, range(3)) == retried(before)
            storage.otherwise = "stored"
            until(lambda: clock.advance(5) or on_its_way.done())  # type: ignore[func-returns-value]
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
            until(lambda: clock.advance(5) or hanging.done())  # type: ignore[func-returns-value]
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


class DyingDisk(SimulatedDisk):
    """A disk whose process dies the moment it syncs a segment."""

    def __init__(self) -> None:
        super().__init__()
        self.dies_at_sync = False

    def sync(self, descriptor: int) -> None:
        """Sync, or die before it."""
        if self.dies_at_sync and self._path(descriptor).suffix == ".blocks":
            self.dies_at_sync = False
            self.faults.kill_at(1)
        super().sync(descriptor)


class TestCrashes:
    """Processes that die, and machines."""

    def test_sigkill_between_write_and_sync_then_a_retry_then_a_power_cut(self) -> None:
        """What a dead writer left in the page cache is made durable before a retry of it is acknowledged."""
        disk = DyingDisk()
        writer = orders(on_disk(disk)).writer()
        acks = write(writer, range(3))
        disk.dies_at_sync = True
        with pytest.raises(Killed):
            writer.append(b"X", id="X")
        disk.crash()
        log = orders(on_disk(disk))
        assert len(values(log)) == 3, "visible means durable, and it is not durable yet"
        again = log.writer().append(b"X", id="X")
        assert (again.position, again.duplicate) == (3, True)
        disk.power_cut()
        log = orders(on_disk(disk))
        with log.writer() as writer:
            assert places(log) == [place(ack) for ack in (*acks, again)]
            assert writer.append(b"X", id="X") == again

    def test_a_power_cut_before_the_sync_then_a_retry(self) -> None:
        """What was neither synced nor acknowledged may be gone, and its retry is a new write then."""
        disk = DyingDisk()
        writer = orders(on_disk(disk)).writer()
        write(writer, range(3))
        disk.dies_at_sync = True
        with pytest.raises(Killed):
            writer.append(b"X", id="X")
        disk.power_cut()
        log = orders(on_disk(disk))
        with log.writer() as writer:
            ack = writer.append(b"X", id="X")
        assert (ack.position, ack.duplicate) == (3, False)
        assert values(log) == [b"0", b"1", b"2", b"X"]

    @pytest.fixture
    def torn(self, tmp_path: Path) -> tuple[Path, list[Ack]]:
        """Return a folder with a log that crashed with half a block behind its last one."""
        live = tmp_path / "live"
        with orders(oncelog.connect(live.as_uri())).writer() as writer:
            acks = write(writer, range(5))
            shutil.copytree(live, tmp_path / "before")
            write(writer, range(5, 6), 2000)
            shutil.copytree(live, tmp_path / "after")
        whole, longer = (next((tmp_path / name).rglob("*.blocks")) for name in ("before", "after"))
        content = longer.read_bytes()
        end = len(whole.read_bytes().rstrip(b"\x00"))
        (tmp_path / "before" / "end").write_text(str(end))
        half = (end + len(content.rstrip(b"\x00"))) // 2
        whole.write_bytes(content[:half] + bytes(len(content) - half))
        return tmp_path / "before", acks

    def test_a_torn_tail_is_cut_off(self, torn: tuple[Path, list[Ack]]) -> None:
        """Half a block is no block: readers do not see it, the next writer puts it aside and goes on before it."""
        folder, acks = torn
        log = orders(oncelog.connect(folder.as_uri()))
        assert places(log) == [place(ack) for ack in acks]
        with log.writer() as writer:
            assert write(writer, range(5)) == retried(acks)
            assert write(writer, range(5, 6), 2000)[0].position == 5
        assert len(values(log)) == 6
        assert [path.stat().st_size > 0 for path in folder.rglob("torn/*")] == [True]

    @pytest.mark.parametrize("which", [0, 2])
    def test_damage_before_the_tail_is_an_error(self, torn: tuple[Path, list[Ack]], which: int) -> None:
        """A bad block with good ones behind it is never skipped: reading and writing both say so, again and again."""
        folder, _ = torn
        path = next(folder.rglob("*.blocks"))
        content = bytearray(path.read_bytes())
        size = int((folder / "end").read_text()) // 5
        content[size * which + size // 2] ^= 1
        path.write_bytes(content)
        log = orders(oncelog.connect(folder.as_uri()))
        for _ in range(2):
            with pytest.raises(CorruptionError):
                values(log)
            with pytest.raises(CorruptionError):
                log.writer()

    @pytest.mark.parametrize("kind", ["memory", "file"])
    def test_a_log_in_a_forked_child_is_closed(self, kind: str, tmp_path: Path) -> None:
        """Every handle says so at once, although other threads held every lock there is when the process forked."""
        database = oncelog.connect("memory://" if kind == "memory" else tmp_path.as_uri())
        log = orders(database)
        writer, entries, reader = log.writer(), log.tail(), log.read()
        writer.append(b"v", id="1")
        uses: dict[str, Callable[[], object]] = {
            "append": lambda: writer.append(b"v", id="1"),
            "submit": lambda: writer.submit(b"w"),
            "append_many": lambda: writer.append_many([Record(b"w")]),
            "append_batch": lambda: writer.append_batch([Record(b"w")]),
            "flush": writer.flush,
            "snapshot": writer.snapshot,
            "counts": writer.counts,
            "window_state": lambda: writer.window_state,
            "poll": entries.poll,
            "iterate": lambda: next(entries),
            "read": lambda: next(iter(reader)),
            "log.read": log.read,
            "log.read_arrow": log.read_arrow,
            "log.tail": log.tail,
            "log.writer": log.writer,
            "log.info": log.info,
            "log.settings": lambda: log.settings,
            "log.configure": lambda: log.configure(LogSettings()),
            "db.log": lambda: database.log("orders"),
            "db.logs": database.logs,
        }
        with all_locks_held(writer, log, database):
            answers = in_a_forked_child(uses, [entries.close, reader.close, writer.close, log.close, database.close])
        assert answers == dict.fromkeys(uses, "Closed")
        assert writer.append(b"w", id="2").position == 1
        assert [entry.value for entry in log.read()] == [b"v", b"w"]
        database.close()


@contextlib.contextmanager
def all_locks_held(writer: Writer, log: Log, database: Database) -> Iterator[None]:
    """Let another thread hold what locks the handles have, for a while."""
    home: Any = log._home
    locks = [writer._committer.changed, home._bell._condition, database._lock, database._storage._lock]  # type: ignore[attr-defined]
    locks += [home._lock] if hasattr(home, "_lock") else [home._claim._writing]
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            assert done.wait(LONG_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(LONG_S)
    try:
        yield
    finally:
        done.set()
        thread.join()


def in_a_forked_child(uses: dict[str, Callable[[], object]], closes: list[Callable[[], None]]) -> dict[str, str]:
    """Return what each use raises in a forked child, which then closes everything."""
    receiver, sender = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of what this test is about
        child = os.fork()
    if child == 0:
        try:
            for name, use in uses.items():
                os.write(sender, f"{name}={_raised_by(use)}\n".encode())
            for close in closes:
                close()
            os.write(sender, b"end=")
        finally:
            os._exit(0)
    os.close(sender)
    text = b""
    try:
        while select.select([receiver], [], [], LONG_S / 4)[0]:
            piece = os.read(receiver, 4096)
            if not piece:
                break
            text += piece
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(receiver)
    *lines, last = text.decode().split("\n")
    assert last == "end=", f"the child hung behind {lines[-1:] or 'the fork'}"
    return dict(line.split("=") for line in lines)  # type: ignore[misc]


def _raised_by(use: Callable[[], object]) -> str:
    try:
        use()
    except BaseException as error:  # noqa: BLE001  all there is to say about it
        return type(error).__name__
    return "nothing"


class TestTakeover:
    """A log that was taken by another writer."""

    @pytest.mark.parametrize("was", ["idle", "writing", "about to roll"])
    def test_a_writer_that_slept_through_many_manifest_versions_learns_that_it_lost(self, was: str) -> None:
        """It wakes after twenty versions, its own long cleaned up, and its first word is refused; nothing is damaged."""
        storage = MemoryStorage()
        log = orders(Database(storage), **SMALL_SEGMENTS)
        sleeper = log.writer()
        if was != "idle":
            sleeper.append(BIG if was == "about to roll" else b"v", id="mine")
        before = log.info().version
        database = Database(storage)
        for number in range(10):
            with orders(database).writer(takeover="force") as writer:
                writer.append(b"%d" % number, id=str(number))
        assert log.info().version >= before + 20
        expected = places(log)
        with pytest.raises(WriterFenced):
            sleeper.append(b"late", id="late")
        with pytest.raises(WriterFenced):
            sleeper.append(b"late", id="late")
        with pytest.raises(WriterFenced):
            sleeper.submit(b"later").result(LONG_S)
        sleeper.close()
        assert places(log) == expected
        with orders(database).writer() as writer:
            assert writer.append(b"late", id="late").position == len(expected)

    def test_a_fence_holds_however_late_the_old_upload_arrives(self) -> None:
        """A block that was on its way when the log was taken does not get in behind the new writer's back."""
        storage = WatchedStorage()
        log = orders(Database(storage))
        old = log.writer()
        write(old, range(1))
        storage.hold(lambda offer: offer.segment == 0)
        late = old.submit(b"late", id="late")
        storage.wait_for_offers(2)
        with orders(Database(storage)).writer(takeover="force") as new:
            ack = new.append(b"new", id="late")
            assert (ack.position, ack.duplicate) == (1, False)
            storage.let_go()
            error = late.exception(LONG_S)
        assert isinstance(error, WriterFenced)
        assert error.outcome == "unknown"
        assert values(log) == [b"0", b"new"]

    def test_a_block_behind_a_hole_is_not_kept(self) -> None:
        """Of several blocks on their way the second arrived, the first did not: the takeover keeps neither."""
        storage = WatchedStorage(in_flight_max=4)
        log = orders(Database(storage), block_records=1)
        old = log.writer()
        write(old, range(1))
        storage.hold(lambda offer: offer.segment == 0 and offer.number == 1)
        futures = [old.submit(b"%d" % number, id=str(number)) for number in range(1, 4)]
        storage.wait_for_offers(4)
        assert values(log) == [b"0"]
        assert not any(future.done() for future in futures)
        with orders(Database(storage)).writer(takeover="force") as new:
            storage.let_go()
            assert [type(future.exception(LONG_S)) for future in futures] == [WriterFenced] * 3
            assert [(ack.position, ack.duplicate) for ack in write(new, range(4))] == [
                (0, True), (1, False), (2, False), (3, False),
            ]  # fmt: skip
        assert values(log) == [b"0", b"1", b"2", b"3"]

    def test_a_busy_writer_is_caught_by_a_takeover(self) -> None:
        """Taking a log from a writer that never pauses ends, and every ack the old one gave stands."""
        storage = MemoryStorage()
        log = orders(Database(storage))
        old = log.writer()
        acks: list[Ack] = []

        def work() -> None:
            for number in count():
                acks.append(old.append(b"%d" % number, id=str(number)))

        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            until(lambda: len(acks) > 10)
            with orders(Database(storage)).writer(takeover="force") as new:
                assert isinstance(working.exception(LONG_S), WriterFenced)
                assert places(log)[: len(acks)] == [place(ack) for ack in acks]
                assert write(new, range(len(acks))) == retried(acks)
                last = new.append(b"%d" % len(acks), id=str(len(acks)))
        assert last.position == len(acks)
        assert [entry.id for entry in log.read()] == [str(number) for number in range(len(acks) + 1)]

    def test_of_two_takeovers_at_once_one_stands(self) -> None:
        """Eight take the log at the same moment, each writes: those that lost learn it, and no position is given twice."""
        storage = MemoryStorage()
        orders(Database(storage))
        go = threading.Barrier(8)

        def take(number: int) -> Ack | None:
            log = orders(Database(storage))
            go.wait()
            try:
                writer = log.writer(takeover="force")
                ack = writer.append(b"%d" % number, id=str(number))
                writer.append(b"again %d" % number)
            except WriterFenced:
                return None
            return ack

        with ThreadPoolExecutor(8) as pool:
            acks = [ack for ack in pool.map(take, range(8)) if ack]
        log = orders(Database(storage))
        assert acks
        assert {place(ack) for ack in acks} <= set(places(log))
        assert [entry.position for entry in log.read()] == list(range(len(values(log))))
        assert len({entry.value for entry in log.read()}) == len(values(log))


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
