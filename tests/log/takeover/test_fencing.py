"""One writer per log: one that lost it learns that before it can damage anything."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Literal

import pytest

import oncelog
from oncelog.connect import Database
from oncelog.errors import LogBusy, WriterFenced
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.logs.fixtures import place, places, values
from oncelog.types import Ack
from tests.log.retries import BIG, SMALL_SEGMENTS, retried, write
from tests.log.watched import LONG_S, WatchedStorage, orders, until


class TestTakeover:
    """A log that was taken by another writer."""

    @pytest.mark.parametrize("was", ["idle", "writing", "about to roll"])
    def test_a_writer_that_slept_through_many_manifest_versions_learns_that_it_lost(self, was: str) -> None:
        """It wakes after twenty versions, its own long gone, and its first word is refused; nothing is damaged."""
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
            acks.extend(old.append(b"%d" % number, id=str(number)) for number in count())

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

    @pytest.mark.parametrize("takeover", ["polite", "force"])
    def test_on_a_local_disk_the_lock_decides(self, tmp_path: Path, takeover: Literal["polite", "force"]) -> None:
        """A living writer cannot be fenced there: anybody who wants the log learns who has it, and it goes on."""
        log = orders(oncelog.connect(tmp_path.as_uri()))
        with log.writer() as writer:
            with pytest.raises(LogBusy) as busy:
                orders(oncelog.connect(tmp_path.as_uri())).writer(wait_s=0, takeover=takeover)
            assert busy.value.pid == os.getpid()
            assert writer.append(b"v").position == 0

    def test_of_two_takeovers_at_once_one_stands(self) -> None:
        """Eight take the log at once, and each writes: those that lost learn it, and no position is given twice."""
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
