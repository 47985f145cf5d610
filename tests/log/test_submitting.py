"""``submit`` and its kin: nothing waits, nothing is lost, nothing overtakes, and a loop is never blocked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import oncelog
from oncelog import (
    AppendErrors,
    Closed,
    IdConflict,
    InvalidArgument,
    LogSettings,
    Record,
    Unavailable,
    WriterFenced,
    later,
)
from oncelog.concurrency.pending import Pending
from oncelog.connect import Database
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.storage import FaultyStorage

LONG_S = 60.0


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Return a log on a disk."""
    with oncelog.connect(tmp_path) as db:
        yield db.log("orders", create=True)


def values(log: Log) -> list[bytes]:
    """Return what is stored."""
    return [entry.value for entry in log.read()]


def on_a_loop(call: Callable[[], Pending[Any]]) -> Any:
    """Return the answer to a call that is made on an event loop."""

    async def main() -> Any:
        return await call()

    return asyncio.run(main())


def in_a_thread(call: Callable[[], Pending[Any]]) -> Any:
    """Return the answer to a call that is made in this thread."""
    return call().result(LONG_S)


@pytest.mark.parametrize("run", [on_a_loop, in_a_thread])
def test_answers_are_those_of_the_calls_that_wait(log: Log, run: Callable[[Callable[[], Pending[Any]]], Any]) -> None:
    """``submit_x`` has what ``append_x`` returns, for new records and for known ones, on a loop and off it."""
    records = [Record(b"a", id="1"), Record(b"b", id="2")]
    table = pa.table({"value": [b"c", b"d"], "id": ["3", "4"]})
    with log.writer() as writer:
        assert [ack.position for ack in run(lambda: writer.submit_many(records))] == [0, 1]
        assert run(lambda: writer.submit_many(records)) == writer.append_many(records)
        assert run(lambda: writer.submit_arrow(table)).positions.tolist() == [2, 3]
        assert run(lambda: writer.submit_arrow(table)).duplicates.tolist() == [True, True]
        batch = [Record(b"e", id="5"), Record(b"f", id="6")]
        assert [ack.position for ack in run(lambda: writer.submit_batch(batch))] == [4, 5]
        assert run(lambda: writer.submit_batch(batch)) == writer.append_batch(batch)
        assert run(lambda: writer.submit_many([])) == []
        assert run(lambda: writer.submit_batch([])) == []
    assert values(log) == [b"a", b"b", b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize("run", [on_a_loop, in_a_thread])
def test_errors_are_those_of_the_calls_that_wait(log: Log, run: Callable[[Callable[[], Pending[Any]]], Any]) -> None:
    """A refused record is in ``AppendErrors`` beside the acks of the others; a bad call is the answer, not a raise."""
    with log.writer() as writer:
        writer.append(b"first", id="1")
        with pytest.raises(AppendErrors) as refused:
            run(lambda: writer.submit_many([Record(b"other", id="1"), Record(b"x", id="2"), Record(b"y", id="")]))
        conflict, stored, bad = refused.value.results
        assert isinstance(conflict, IdConflict)
        assert conflict.position == 0
        assert stored.position == 1
        assert isinstance(bad, InvalidArgument)
        with pytest.raises(AppendErrors):
            run(lambda: writer.submit_arrow(pa.table({"value": [b"other"], "id": ["1"]})))
        with pytest.raises(InvalidArgument):
            run(lambda: writer.submit_arrow(pa.table({"nothing": [1]})))
        with pytest.raises(oncelog.PartialOverlap):
            run(lambda: writer.submit_batch([Record(b"first", id="1"), Record(b"z", id="9")]))
    with pytest.raises(Closed):
        run(lambda: writer.submit_many([Record(b"late")]))
    assert values(log) == [b"first", b"x"]


def test_tasks_append_at_once(log: Log) -> None:
    """256 tasks with the same ids from 64 to the next: each id is stored once, and all get its position."""

    async def main(writer: Writer) -> list[oncelog.Ack]:
        return await asyncio.gather(*(writer.submit(b"x", id=str(number % 64)) for number in range(256)))

    with log.writer() as writer:
        acks = asyncio.run(main(writer))
    assert len(values(log)) == 64
    assert sorted({ack.position for ack in acks if ack.position is not None}) == list(range(64))
    assert sum(not ack.duplicate for ack in acks) == 64


class Stuck:
    """A log whose storage stands still until it is let go."""

    def __init__(self, settings: LogSettings) -> None:
        self.faulty = FaultyStorage(MemoryStorage())
        self.db = Database(self.faulty)
        self.log = self.db.log("orders", settings, create=True)
        self.go = threading.Event()
        self.stuck = threading.Event()

    def stand_still(self, writer: Writer) -> None:
        """Have the writer's next block wait in storage."""
        run = writer._run
        real = run.append

        def append(*given: Any) -> int:
            self.stuck.set()
            assert self.go.wait(LONG_S)
            return real(*given)

        run.append = append  # type: ignore[assignment, method-assign]


def test_a_loop_never_waits_for_room() -> None:
    """With storage that stands still and a full writer ``submit`` returns at once; the records come in order."""
    stuck = Stuck(LogSettings(pending_records=100))

    async def main(writer: Writer) -> None:
        stuck.stand_still(writer)
        pendings = [writer.submit(b"%d" % number, id=str(number)) for number in range(150)]
        pendings.append(writer.submit(b"150"))
        await later(stuck.stuck.wait, LONG_S)
        assert not any(pending.done() for pending in pendings)
        stuck.go.set()
        assert [(await pending).position for pending in pendings] == list(range(151))

    with stuck.db, stuck.log.writer() as writer:
        asyncio.run(main(writer))
        assert values(stuck.log) == [b"%d" % number for number in range(151)]


def test_a_full_door_fails_the_answer() -> None:
    """As much again may queue; what is beyond that was not written, and says so in its answer."""
    stuck = Stuck(LogSettings(pending_records=100))

    async def main(writer: Writer) -> None:
        stuck.stand_still(writer)
        pendings = [writer.submit(b"%d" % number) for number in range(500)]
        refused = [pending for pending in pendings if pending.done()]
        assert 250 <= len(refused) <= 300
        for pending in refused:
            with pytest.raises(Unavailable) as error:
                await pending
            assert error.value.outcome == "not written"
        stuck.go.set()
        taken = [await pending for pending in pendings if pending not in refused]
        assert [ack.position for ack in taken] == list(range(len(taken)))

    with stuck.db, stuck.log.writer() as writer:
        asyncio.run(main(writer))
        assert len(values(stuck.log)) <= 250


def test_nothing_overtakes_what_stands_at_the_door(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain record is put aside at once if there is room, but not if records of its loop still queue before it."""
    go = threading.Event()

    async def main(writer: Writer) -> list[int | None]:
        admit = writer._admit_many

        def admit_later(*given: Any) -> Any:
            assert go.wait(LONG_S)
            return admit(*given)

        monkeypatch.setattr(writer, "_admit_many", admit_later)
        many = writer.submit_many([Record(b"0"), Record(b"1")])
        one = writer.submit(b"2")
        go.set()
        return [ack.position for ack in (*await many, await one)]

    with log.writer() as writer:
        assert asyncio.run(main(writer)) == [0, 1, 2]
    assert values(log) == [b"0", b"1", b"2"]


def test_closing_stores_what_stands_at_the_door() -> None:
    """Leaving ``async with`` flushes: what was submitted and not awaited is stored, in its order."""
    stuck = Stuck(LogSettings(pending_records=100))

    async def main() -> list[Pending[oncelog.Ack]]:
        async with await later(stuck.log.writer) as writer:
            stuck.stand_still(writer)
            pendings = [writer.submit(b"%d" % number) for number in range(150)]
            many = writer.submit_many([Record(b"150"), Record(b"151")])
            stuck.go.set()
        assert many.done()
        return pendings

    with stuck.db:
        pendings = asyncio.run(main())
        assert [pending.result(0).position for pending in pendings] == list(range(150))
        assert values(stuck.log) == [b"%d" % number for number in range(152)]


def test_a_cancelled_task_leaves_its_write_alone() -> None:
    """A request that its client gave up is stored or not as one whole; a retry gets its position."""
    stuck = Stuck(LogSettings())

    async def main(writer: Writer) -> None:
        stuck.stand_still(writer)

        async def append() -> oncelog.Ack:
            return await writer.submit(b"paid", id="order-42")

        task = asyncio.create_task(append())
        await later(stuck.stuck.wait, LONG_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stuck.go.set()
        again = await append()
        assert (again.position, again.duplicate) == (0, True)

    with stuck.db, stuck.log.writer() as writer:
        asyncio.run(main(writer))


def test_leaving_ends_when_closed_although_cancelled() -> None:
    """A task that is cancelled while its writer closes must not leave a log that is half let go."""
    stuck = Stuck(LogSettings())

    async def main() -> Writer:
        held: list[Writer] = []

        async def use() -> None:
            async with await later(stuck.log.writer) as writer:
                held.append(writer)
                stuck.stand_still(writer)
                writer.submit(b"paid")
                await later(stuck.stuck.wait, LONG_S)

        task = asyncio.create_task(use())
        await later(stuck.stuck.wait, LONG_S)
        while not held[0]._committer.is_leaving:  # noqa: ASYNC110 (another thread does it)
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        stuck.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return held[0]

    with stuck.db:
        assert asyncio.run(main()).closed
        assert values(stuck.log) == [b"paid"]


def test_a_fenced_writer_says_unknown_of_a_table_in_pieces() -> None:
    """Of a table of which the first blocks may be stored nobody may say that it was not written."""
    stuck = Stuck(LogSettings(block_records=10))
    with stuck.db:
        writer = stuck.log.writer()
        stuck.stand_still(writer)
        pending = writer.submit_arrow(pa.table({"value": [b"x"] * 30}))
        assert stuck.stuck.wait(LONG_S)
        with writer._committer.lock:
            writer._committer.stop(WriterFenced("taken"))
        stuck.go.set()
        with pytest.raises(WriterFenced) as fenced:
            pending.result(LONG_S)
        assert fenced.value.outcome == "unknown"


def test_producers_submit_in_order(log: Log) -> None:
    """A producer's records that queue at the door are the producer's, and in the order of its calls."""

    async def main(writer: Writer) -> list[oncelog.Ack]:
        importer = writer.as_producer("importer")
        many = importer.submit_many([Record(b"0"), Record(b"1")])
        batch = importer.submit_batch([Record(b"2"), Record(b"3")])
        table = importer.submit_arrow(pa.table({"value": [b"4"]}))
        last = importer.submit(b"5")
        await table
        return [*await many, *await batch, await last]

    with log.writer() as writer:
        asyncio.run(main(writer))
        assert writer.producers()["importer"].last_sequence == 5
    assert values(log) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("count", [3, 100])
def test_plain_records_and_others_keep_their_order(log: Log, count: int) -> None:
    """Records with nothing but a value and an id are put aside as such: those with more among them lose nothing."""
    submitted: list[dict[str, Any]] = []
    for number in range(count):
        value = b"%d" % number
        submitted += [
            {"value": value, "id": f"plain {number}"},
            {"value": value, "id": f"über {number}"},
            {"value": value},
            {"value": value, "id": f"größer {number}", "stream": "s", "type": "t", "tenant": "x"},
            {"value": value, "headers": {"h": value}},
            {"value": value, "producer": "p", "sequence": number},
        ]
    with log.writer() as writer:
        pendings = [writer.submit(**given) for given in submitted]
        assert [pending.result(LONG_S).position for pending in pendings] == list(range(len(submitted)))
    names = ("value", "id", "stream", "type", "headers", "tenant", "producer", "sequence")
    stored = [{name: getattr(entry, name) for name in names} for entry in log.read()]
    assert stored == [{name: given.get(name) for name in names} for given in submitted]


def test_what_is_known_is_answered_during_an_outage(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry of a stored record needs no storage: it does not wait for records that do."""
    tried, back = threading.Semaphore(0), threading.Event()

    with log.writer() as writer:
        first = writer.append(b"v", id="1")
        store = writer._run.append

        def append(group: Any) -> int:
            tried.release()
            if not back.is_set():
                message = "storage is down"
                raise Unavailable(message, outcome="unknown")
            return store(group)

        monkeypatch.setattr(writer._run, "append", append)
        new = writer.submit(b"w", id="2")
        for _ in range(2):  # at the second attempt the failure of the first is known
            assert tried.acquire(timeout=LONG_S)
        known = writer.submit(b"v", id="1").result(LONG_S)
        assert (known.position, known.duplicate) == (first.position, True)
        assert not new.done()
        back.set()
        assert new.result(LONG_S).position == 1


@pytest.mark.parametrize("with_runs", [False, True])
def test_more_than_a_column_holds_is_decided_in_parts(
    log: Log, monkeypatch: pytest.MonkeyPatch, *, with_runs: bool
) -> None:
    """Arrow counts the bytes of a column in 31 bits. What was submitted beyond that was never answered."""
    monkeypatch.setattr("oncelog.log.append.absorber.COLUMN_BYTES_MAX", 1000)
    monkeypatch.setattr("oncelog.limits.MEMORY_RUN_IDS", 8)
    monkeypatch.setattr("oncelog.limits.MEMORY_MERGED_RUNS", 4)
    monkeypatch.setattr("oncelog.limits.MEMORY_RUN_IDS_MIN", 4)
    with log.writer() as writer:
        for number in range(20 if with_runs else 0):
            writer.append(b"old", id=f"old-{number}")
        writer._keeper._housekeeper.stop()
        writer._keeper._memory.work()
        assert writer._absorber._recall.view.any == with_runs
        given = [bytes([number]) * 90 for number in range(100)]
        futures = [writer.submit(value, id=f"new-{number}") for number, value in enumerate(given)]
        positions = [future.result(LONG_S).position for future in futures]
        again = [writer.submit(value, id=f"new-{number}") for number, value in enumerate(given)]
        assert [future.result(LONG_S).position for future in again] == positions
        writer._core.submitted_bytes = 1001
        parts = writer._absorber._parts(given)
        writer._core.submitted_bytes = 0
    assert len(parts) == 10
    assert [value for part in parts for value in given[part]] == given
    assert max(sum(map(len, given[part])) for part in parts) <= 1000 + 90
    assert values(log)[-100:] == given
