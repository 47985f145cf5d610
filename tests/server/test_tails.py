"""Following logs: one reader for many, nothing lost or repeated where the past meets the present."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest

from oncelog.connect import Database
from oncelog.errors import NotFound
from oncelog.limits import SERVER_READS_BYTES_MAX
from oncelog.log import inner
from oncelog.log.read.reader import Reader
from oncelog.server import tails
from oncelog.server.server import Server
from oncelog.server.tails import ENTRIES, Encode
from oncelog.storage.memory import MemoryStorage
from oncelog.types import Record
from tests.server.inside import serving


async def _values(server: Server, start: int | Literal["latest"], count: int, encode: Encode = ENTRIES) -> list[bytes]:  # type: ignore[type-arg]
    seen: list[bytes] = []
    async with contextlib.aclosing(server.tails.follow("a", start, encode)) as following:
        async for piece, _ in following:
            if piece is not None:
                seen += [entry.value for entry in piece.entries()]
            if len(seen) >= count:
                return seen
    return seen


def test_many_followers_from_many_places_see_every_record_once_in_order() -> None:
    """Followers that begin before, at and behind the end all see the same records, while these are being written."""

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        seat = server.seats["a"]
        for number in range(50):
            await seat.append([Record(b"%d" % number)])
        following = [asyncio.create_task(_values(server, start, 300 - start)) for start in range(0, 50, 5)]
        for number in range(50, 300):
            await seat.append([Record(b"%d" % number)])
        for start, seen in zip(range(0, 50, 5), await asyncio.gather(*following), strict=True):
            assert seen == [b"%d" % number for number in range(start, 300)]

    serving(work)


def test_a_slow_follower_reads_the_log_itself_and_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hub has let go is read from the log; the hub's memory stays bounded."""
    monkeypatch.setattr(tails, "HUB_PIECES", 4)

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        seat = server.seats["a"]
        await seat.append([Record(b"0")])
        async with contextlib.aclosing(server.tails.follow("a", 0, ENTRIES)) as following:
            first, _ = await anext(following)
            assert first is not None
            seen = [entry.value for entry in first.entries()]
            for number in range(1, 60):
                await seat.append([Record(b"%d" % number)])
                fast = await _values(server, number, 1)
                assert fast == [b"%d" % number]
            assert len(server.tails._hubs["a"]._recent) <= 9
            while len(seen) < 60:
                piece, _ = await anext(following)
                assert piece is not None
                seen += [entry.value for entry in piece.entries()]
        assert seen == [b"%d" % number for number in range(60)]

    serving(work)


def test_a_piece_is_encoded_once_for_all_who_follow() -> None:
    """A hundred followers cost one encoding of each piece, and no thread of their own."""
    counted = 0

    def encode(piece: tails.TailPiece) -> int:
        nonlocal counted
        counted += 1
        return piece.next

    shared = Encode("counted", encode)

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        seat = server.seats["a"]
        await seat.append([Record(b"0")])
        following = [asyncio.create_task(_values(server, "latest", 1, shared)) for _ in range(100)]
        while server.tails.followers("a") < 100:
            await server.read(lambda: None)
        await server.tails._hubs["a"].started
        before = threading.active_count()
        await seat.append([Record(b"1")])
        assert await asyncio.gather(*following) == [[b"1"]] * 100
        assert counted == 1
        assert threading.active_count() <= before + 2

    serving(work)


def test_a_position_that_is_not_there_is_not_found() -> None:
    """Following begins at a place that exists, or not at all; a log that is not there leaves no hub behind."""

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        with pytest.raises(NotFound):
            await _values(server, 5, 1)
        with pytest.raises(NotFound):
            await anext(server.tails.follow("none", 0, ENTRIES))
        assert server.tails.hubs == 0

    serving(work)


def test_a_quiet_log_beats() -> None:
    """A follower that waits hears from time to time that the server lives."""

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        for lease_s in (None, 60.0):
            following = server.tails.follow("a", 0, ENTRIES, beat_s=0.01, lease_s=lease_s)
            async with contextlib.aclosing(following):
                assert await anext(following) == (None, 0)

    serving(work)


async def _beats(following: AsyncIterator[tuple[Any, Any]]) -> None:
    async for piece, _ in following:
        assert piece is None


def test_a_log_that_another_process_deleted_ends_its_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a log of the same name was made since, with as many manifests: its positions mean other records."""
    monkeypatch.setattr(tails, "CHECK_S", 0.0)
    storage = MemoryStorage()

    async def work(server: Server) -> None:
        for again in (False, True):
            elsewhere = Database(storage)
            elsewhere.log("a", create=True)
            async with contextlib.aclosing(server.tails.follow("a", 0, ENTRIES, beat_s=0.05)) as following:
                assert await anext(following) == (None, 0)
                elsewhere.delete("a")
                if again:
                    elsewhere.log("a", create=True)
                with pytest.raises(NotFound, match="was deleted"):
                    await asyncio.wait_for(_beats(following), 100)

    serving(work, storage)


def test_who_follows_a_log_that_was_made_again_sees_nothing_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process deletes a log that is followed here, and makes one of the same name. Before the first follower
    learns that, a second one comes: its records are those of the new log, not those that are kept for the first.
    """
    monkeypatch.setattr(tails, "CHECK_S", 1e6)
    storage = MemoryStorage()

    async def work(server: Server) -> None:
        elsewhere = Database(storage)
        log = elsewhere.log("a", create=True)
        async with contextlib.aclosing(server.tails.follow("a", 0, ENTRIES, beat_s=0.05)) as following:
            assert await anext(following) == (None, 0)
            with log.writer() as writer:
                writer.append(b"old")
            while (await anext(following))[0] is None:
                pass
            elsewhere.delete("a")
            with elsewhere.log("a", create=True).writer() as writer:
                writer.append(b"new")
            assert await asyncio.wait_for(_values(server, 0, 1), 100) == [b"new"]

    serving(work, storage)


def test_the_slowest_follower_is_the_lag_of_its_log() -> None:
    """A follower that takes nothing falls behind, record by record; one that left does not count."""

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        seat = server.seats["a"]
        await seat.append([Record(b"0")])
        assert server.tails.lags() == {}
        async with contextlib.aclosing(server.tails.follow("a", 0, ENTRIES)) as slow:
            await anext(slow)
            for number in range(1, 8):
                await seat.append([Record(b"%d" % number)])
            while server.tails.lags() != {"a": 8}:  # noqa: ASYNC110 (the hub looks by itself)
                await asyncio.sleep(0)
            async for piece, _ in slow:
                assert piece is not None
                assert server.tails.lags() == {"a": 8 - piece.first}
                if piece.next == 8:
                    break
        assert server.tails.lags() == {}

    serving(work)


def test_many_followed_logs_share_the_looks_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand idle logs must not cost a thousand times the looks of one."""

    async def work(server: Server) -> None:
        from oncelog.server import tails

        alone_s = server.look_s("a")
        monkeypatch.setattr(tails.Tails, "hubs", property(lambda _: 1000))
        assert 1000 / server.look_s("a") <= tails.LOOKS_MAX
        assert alone_s == tails.LOOK_S
        server.database.log("a", create=True)
        await server.seats["a"].append([Record(b"x")])
        assert server.look_s("a") >= tails.HELD_S

    serving(work)


@pytest.mark.parametrize("crowded", [False, True])
def test_of_many_readers_only_some_hold_large_parts_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
    crowded: bool,  # noqa: FBT001 (pytest gives it)
) -> None:
    """A client that does not read what it asked for holds a step of the log: eight megabytes each, however many."""
    values = [b"%d" % number * 100_000 for number in range(9)]
    made: list[Reader] = []

    def noting(*arguments: Any, **more: Any) -> Reader:
        made.append(reader_of(*arguments, **more))
        return made[-1]

    reader_of = inner.reader
    monkeypatch.setattr(inner, "reader", noting)

    async def work(server: Server) -> None:
        server.database.log("a", create=True)
        for value in values:
            await server.seats["a"].append([Record(value)])
        if crowded:
            await server.tails._room.take(SERVER_READS_BYTES_MAX)
        before = server.tails._room.used_bytes
        async with contextlib.aclosing(server.tails.read("a", 0, ENTRIES)) as found:  # type: ignore[type-var]
            _, first = await anext(found)
            steps = made[0]._scan.position
            rest = [entry.value async for _, entries in found for entry in entries]
        assert [first[0].value, *rest] == values
        assert (steps < len(values)) == crowded
        assert server.tails._room.used_bytes == before

    serving(work)
