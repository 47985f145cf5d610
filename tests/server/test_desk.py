"""The desk and its lanes: frames of one stream are stored in order, or not at all behind one that was not."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pyarrow as pa
import pytest

from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.errors import InvalidArgument, OncelogError, PartialOverlap, Unavailable, WriterFenced
from oncelog.server.desk import Ask, Desk, Lane, Way
from oncelog.server.seats import Seat
from oncelog.server.server import Server
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.types import Ack, Record
from tests.server.inside import HangingStorage, serving


class _Asked:
    """An ask of a lane, and its answer."""

    def __init__(self, lane: Lane, value: bytes, way: Way = Way.EACH) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.ask = Ask(way, lambda: [Record(value)], self._settled, len(value), 1, lane=lane)

    def _settled(self, result: Any, error: OncelogError | None) -> None:
        self.answer.set_result(error if error is not None else result)

    async def put(self, seat: Seat) -> _Asked:
        await seat.put(self.ask)
        return self


async def _opened(server: Server) -> tuple[Seat, Lane]:
    server.database.log("a", create=True)
    seat = server.seats["a"]
    await seat.append([Record(b"first")])
    return seat, Lane(seat.generation)


def _stored(server: Server) -> list[bytes]:
    return [entry.value for entry in server.database.log("a").read()]


def test_nothing_overtakes_a_frame_that_was_taken_back() -> None:
    """A late frame is dropped together with all behind it of its stream; other streams go on."""
    storage = HangingStorage("a")

    async def work(server: Server) -> None:
        seat, lane = await _opened(server)
        storage.goes_on.clear()
        begun = await _Asked(lane, b"begun", Way.BATCH).put(seat)
        await asyncio.to_thread(storage.hanging.wait)
        late, behind = [await _Asked(lane, value, Way.BATCH).put(seat) for value in (b"late", b"behind")]
        other = await _Asked(Lane(seat.generation), b"other", Way.BATCH).put(seat)
        reason = Unavailable("late")
        assert seat.withdraw(late.ask, reason)
        storage.goes_on.set()
        assert await behind.answer is reason
        assert isinstance((await begun.answer)[0], Ack)
        assert isinstance((await other.answer)[0], Ack)
        assert not seat.withdraw(begun.ask, reason)
        assert _stored(server) == [b"first", b"begun", b"other"]
        assert server.budget.used_bytes == 0

    serving(work, storage)


def test_frames_of_one_lane_never_go_to_two_writers() -> None:
    """A lane of an earlier writer is refused, not written: a frame before it may have been lost with that writer."""

    async def work(server: Server) -> None:
        seat, lane = await _opened(server)
        await asyncio.to_thread(seat.renew)
        refused = [await (await _Asked(lane, value).put(seat)).answer for value in (b"x", b"y")]
        assert all(isinstance(error, Unavailable) and error.outcome == "not written" for error in refused)
        assert isinstance((await (await _Asked(Lane(seat.generation), b"z").put(seat)).answer)[0], Ack)
        assert _stored(server) == [b"first", b"z"]

    serving(work)


def test_a_frame_that_cannot_be_read_is_refused_alone() -> None:
    """Bytes that are no records are an answer to their frame; the stream goes on."""

    async def work(server: Server) -> None:
        from oncelog.errors import InvalidArgument

        def broken() -> list[Record]:
            message = "not records"
            raise InvalidArgument(message)

        seat, lane = await _opened(server)
        bad, good = _Asked(lane, b""), _Asked(lane, b"good")
        bad.ask.load = broken
        await bad.put(seat)
        await good.put(seat)
        assert isinstance(await bad.answer, InvalidArgument)
        assert isinstance((await good.answer)[0], Ack)

    serving(work)


def test_a_bug_in_the_desk_is_unknown_and_the_desk_goes_on() -> None:
    """Whatever fails, every frame has an answer, and the next one is served."""

    async def work(server: Server) -> None:
        seat, lane = await _opened(server)
        bad, good = _Asked(lane, b""), _Asked(Lane(seat.generation), b"good", Way.BATCH)
        bad.ask.load = lambda: 1 / 0
        await bad.put(seat)
        await good.put(seat)
        error = await bad.answer
        assert isinstance(error, Unavailable)
        assert error.outcome == "unknown"
        assert isinstance((await good.answer)[0], Ack)

    serving(work)


def test_a_thread_that_cannot_start_refuses_one_frame_and_not_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without a thread to give: the append is surely not written, and the next one finds a desk that works."""

    def refused(_: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    async def work(server: Server) -> None:
        seat, _ = await _opened(server)
        desk = seat.desk = Desk(seat, asyncio.get_running_loop(), SYSTEM)  # one whose thread has ended
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            with pytest.raises(Unavailable, match="no thread") as raised:
                await seat.append([Record(b"refused")])
        assert raised.value.outcome == "not written"
        assert desk.idle
        assert [one.position for one in await seat.append([Record(b"next")]) if isinstance(one, Ack)] == [1]
        assert _stored(server) == [b"first", b"next"]

    serving(work)


def test_a_no_of_a_writer_that_lost_its_log_is_not_said(memory_bucket: Bucket) -> None:
    """A holder that slept knows half of a batch, and not that another has stored the rest: it must not say so.

    The same batch is whole by now: "known and new" would be wrong. A holder that still has the log does say it.
    """

    async def work(server: Server) -> None:
        seat, _ = await _opened(server)
        await seat.append([Record(b"x", id="x")])
        both = [Record(b"x", id="x"), Record(b"y", id="y")]
        with pytest.raises(PartialOverlap):
            await seat.append(both, atomic=True)
        with Database(ObjectStorage(memory_bucket)) as other, other.log("a").writer(takeover="force") as thief:
            thief.append(b"y", id="y")
            with pytest.raises(WriterFenced):
                await seat.append(both, atomic=True)

    serving(work, ObjectStorage(memory_bucket))


def test_a_sequence_is_not_called_out_of_order_by_a_writer_that_lost_its_log(memory_bucket: Bucket) -> None:
    """The next holder may have stored the sequences in between: only it can say what is out of order."""

    async def work(server: Server) -> None:
        seat, _ = await _opened(server)
        await seat.append([Record(b"9", producer="p", sequence=9)])
        early = Record(b"3", producer="p", sequence=3)
        late = Record(b"10", producer="p", sequence=10)
        await seat.append([late])
        [held] = await seat.append([early])
        assert isinstance(held, InvalidArgument), "who has the log says it"
        with Database(ObjectStorage(memory_bucket)) as other:
            other.log("a").writer(takeover="force").close()
            with pytest.raises(WriterFenced):
                await seat.append([early])

    serving(work, ObjectStorage(memory_bucket))


def test_what_is_stored_beside_a_no_is_not_called_unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is lost between a commit and the look that a "no" asks for. Acks stay acks; an answer that had both is
    unknown: "not written" would have its client store the rest of it a second time.
    """

    def fenced(_: object) -> None:
        message = "lost"
        raise WriterFenced(message)

    async def work(server: Server) -> None:
        from oncelog.log import inner
        from oncelog.settings import LogSettings
        from oncelog.wire.failures import LogMoved

        server.database.log("off", create=True, settings=LogSettings(idempotence="off"))
        seat = server.seats["off"]
        await seat.append([Record(b"first")])
        monkeypatch.setattr(inner, "check_held", fenced)
        named = Record(b"refused", id="no ids are taken here")
        lanes = [Lane(seat.generation) for _ in range(3)]
        asks = [
            Ask(Way.EACH, lambda records=records: records, print, 1, len(records), lane=lane)  # type: ignore[misc]
            for records, lane in zip(([Record(b"x")], [Record(b"y"), named], [named]), lanes, strict=True)
        ]
        settled = await asyncio.to_thread(seat.desk._appended, asks)
        kept, unknown, unwritten = [error or result for _, result, error in settled]
        assert isinstance(kept, list)
        assert isinstance(unknown, LogMoved)
        assert unknown.outcome == "unknown"
        assert isinstance(unwritten, LogMoved)
        assert unwritten.outcome == "not written"
        assert [lane.stopped is None for lane in lanes] == [True, False, False]
        assert all(getattr(lane.stopped, "outcome", "not written") == "not written" for lane in lanes)

    serving(work)


def test_a_sequence_without_a_producer_is_refused() -> None:
    """All callers share one writer: the name that it would give is one for all, and one caller's record would be
    answered as a duplicate of another's, and lost.
    """

    async def work(server: Server) -> None:
        seat, lane = await _opened(server)
        for atomic in (False, True):
            with pytest.raises(InvalidArgument, match="sequence, row 1") as raised:
                await seat.append([Record(b"plain"), Record(b"counted", sequence=1)], atomic=atomic)
            assert (raised.value.column, raised.value.row) == ("sequence", 1)
        table = pa.table({"value": [b"x", b"y"], "sequence": [None, 7]})
        with pytest.raises(InvalidArgument, match="sequence, row 1"):
            await seat.append_arrow(table)
        rows = _Asked(lane, b"")
        rows.ask.load = lambda: table
        assert isinstance(await (await rows.put(seat)).answer, InvalidArgument)
        [named] = await seat.append([Record(b"named", producer="p", sequence=1)])
        assert isinstance(named, Ack)
        await seat.append_arrow(table.append_column("producer", pa.array(["q", "q"])).slice(1))
        assert _stored(server) == [b"first", b"named", b"y"]

    serving(work)


def test_a_session_of_a_producer_names_its_sequences() -> None:
    """The records of a stream that was opened for a producer are that producer's, also if they do not say so."""

    async def work(server: Server) -> None:
        seat, lane = await _opened(server)
        with seat.lend() as writer:
            lane.producer = writer.as_producer("p")
        asked = _Asked(lane, b"")
        asked.ask.load = lambda: [Record(b"counted", sequence=3)]
        [ack] = await (await asked.put(seat)).answer
        assert isinstance(ack, Ack)
        assert not ack.duplicate

    serving(work)
