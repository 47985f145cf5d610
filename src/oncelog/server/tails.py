"""Reading for clients: to the end of a log, or for ever.

A log that is followed has one *hub*: it reads the log once, encodes each piece once, and keeps the latest pieces within
a number of bytes. Followers take pieces from the hub; a follower that is too slow for that reads the log itself until
it has caught up. No thread waits for a log: the hub is woken by the appends of this server, and looks from time to time
for what others have written.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from oncelog.limits import MIB, SERVER_READS_BYTES_MAX
from oncelog.log import inner
from oncelog.log.log import Log
from oncelog.log.read.reader import Reader, Tail
from oncelog.log.read.scan import READ_BYTES, Scan, Start, deleted
from oncelog.log.stored.rows import Rows
from oncelog.server.budget import Budget
from oncelog.types import Entry

if TYPE_CHECKING:
    from oncelog.server.server import Server

PIECE_BYTES = MIB
"""A piece has about so many bytes at most, unless a single record is larger."""

STEP_BYTES = MIB // 4
"""So much a follower that catches up reads at once, or one block."""

HUB_BYTES = 8 * MIB
HUB_PIECES = 4096
"""What a hub keeps of the latest pieces; up to twice as much for a moment."""

LOOK_S = 0.25
"""How often who follows a log looks for what other processes have written to it on a disk."""

LOOK_BUCKET_S = 1.0
"""The same in a bucket, where looking costs requests."""

HELD_S = 5.0
"""The same for a log whose writer is here: its appends wake who follows it."""

RUNG_S = 15.0
"""The same for a log whose holder, another server, rings when it has grown."""

LOOKS_MAX = 100
"""So many times a second all hubs of a server look by themselves: with more followed logs, each looks less often. Who
is woken looks at once.
"""

CHECK_S = 2.0
"""How often a hub without anything new looks whether its log was deleted, by another server of the fleet, say."""

LINGER_S = 5.0
"""A hub without followers ends after so long."""

_T = TypeVar("_T")


class TailPiece:
    """Some neighbouring records of a log, and where the log ended when they were read."""

    __slots__ = ("_encoded", "end", "rows", "size_bytes")

    def __init__(self, rows: Rows, end: int) -> None:
        self.rows = rows
        self.end = end
        self.size_bytes = int(rows.payload.nbytes)
        self._encoded: dict[Hashable, Any] = {}

    @property
    def first(self) -> int:
        """The position of the first record."""
        return self.rows.first_position

    @property
    def next(self) -> int:
        """The position behind the last record."""
        return self.rows.next_position

    def entries(self) -> list[Entry]:
        """Return the records one by one."""
        return self.rows.entries()

    def encoded(self, encode: Encode[_T]) -> _T:
        """Return what an encoder makes of this piece, made once."""
        if encode.key not in self._encoded:
            self._encoded[encode.key] = encode.function(self)
        found: _T = self._encoded[encode.key]
        return found

    def is_encoded(self, encode: Encode[Any]) -> bool:
        """Tell whether an encoder's work was done."""
        return encode.key in self._encoded

    def behind(self, position: int) -> TailPiece:
        """Return the records from a position on."""
        return self if position <= self.first else TailPiece(self.rows.cut(position - self.first), self.end)


class Encode(Generic[_T]):
    """A way to encode pieces, and the name by which followers share the result."""

    def __init__(self, key: Hashable, function: Callable[[TailPiece], _T]) -> None:
        self.key = key
        self.function = function


ENTRIES: Encode[list[Entry]] = Encode("entries", TailPiece.entries)


def pieces(found: list[Rows], end: int) -> Iterator[TailPiece]:
    """Cut rows into pieces that are not too large."""
    for rows in found:
        if rows.count > 1 and rows.payload.nbytes > PIECE_BYTES:
            half = rows.count // 2
            yield from pieces([rows.cut(0, half), rows.cut(half)], end)
        elif rows.count:
            yield TailPiece(rows, end)


class _Hub:
    """One log that is followed. Used by the event loop alone, but for ``_look``."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self._name = name
        self._tail: Tail | None = None
        self._log: Log | None = None
        self.log_id = ""
        """Which log it is, once it was opened: another of the same name may be made when this one was deleted."""
        self._checked_us = 0
        self._recent: list[TailPiece] = []
        self._bytes = 0
        self.since = self.until = 0
        self.end = 0
        self.followers = 0
        self.encoders: dict[Hashable, tuple[Encode[Any], int]] = {}
        self.error: BaseException | None = None
        self.started: asyncio.Future[None] = server.loop.create_future()
        self._changed: asyncio.Future[None] = server.loop.create_future()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._server.read(self._open, self._name)
            self.started.set_result(None)
            with self._server.woken(self._name) as woken:
                while self.followers or not await self._lingered():
                    woken.clear()
                    if not self._take(await self._server.read(self._look, self._name)):
                        await _wait(woken, self._server.look_s(self._name))
        except BaseException as error:  # noqa: BLE001 (every follower gets it)
            self.error = self.error or error
            if not self.started.done():
                self.started.set_result(None)
            self.tell()
        finally:
            if self._tail is not None:
                self._server.readers.post(self._tail.close)

    async def _lingered(self) -> bool:
        """Wait a while for another follower; tell whether none came."""
        await asyncio.sleep(LINGER_S)
        return not self.followers

    def _open(self) -> None:
        self._log = self._server.open_log(self._name)
        self.log_id = self._log.log_id
        self._tail = self._log.tail("latest")
        inner.check_there_elsewhere(self._tail)  # the hub looks, and knows when it need not
        self._checked_us = self._server.clock.elapsed_us()
        self.since = self.until = self.end = self._tail.position

    def _look(self) -> list[TailPiece]:
        """Read on, and encode what was found for those who follow. For a thread."""
        assert self._tail is not None
        found = self._tail.poll_rows(0)
        if not found:
            self._check_there()
            return []
        made = list(pieces(found, self._tail.end()))
        for encode, _ in list(self.encoders.values()):
            for piece in made:
                piece.encoded(encode)
        return made

    def _check_there(self) -> None:
        """Raise ``NotFound`` if the log was deleted. One that has its writer here is deleted by this server alone."""
        now_us = self._server.clock.elapsed_us()
        if self._server.is_held(self._name) or now_us - self._checked_us < CHECK_S * 1e6:
            return
        self._checked_us = now_us
        assert self._log is not None
        if not inner.is_there(self._log):
            raise deleted(self._name)

    def _take(self, found: list[TailPiece]) -> bool:
        for piece in found:
            self._recent.append(piece)
            self._bytes += piece.size_bytes
            self.until, self.end = piece.next, piece.end
        if self._bytes > 2 * HUB_BYTES or len(self._recent) > 2 * HUB_PIECES:
            self._let_go()
        if found:
            self.tell()
        return bool(found)

    def _let_go(self) -> None:
        """Keep the newest pieces only."""
        kept = kept_bytes = 0
        for piece in reversed(self._recent[-HUB_PIECES:]):
            if kept and kept_bytes + piece.size_bytes > HUB_BYTES:
                break
            kept, kept_bytes = kept + 1, kept_bytes + piece.size_bytes
        del self._recent[: len(self._recent) - kept]
        self._bytes, self.since = kept_bytes, self._recent[0].first

    def tell(self) -> None:
        """Wake those who wait."""
        changed, self._changed = self._changed, self._server.loop.create_future()
        changed.set_result(None)

    def at(self, position: int) -> TailPiece:
        """Return the piece with the record at a position, which is from ``since`` to before ``until``."""
        return self._recent[bisect.bisect_right(self._recent, position, key=lambda piece: piece.next)]

    async def wait(self, timeout_s: float) -> None:
        """Wait for more."""
        await asyncio.wait({self._changed}, timeout=timeout_s)
        if self.error is not None:
            raise self.error


class _Follower:
    """Where a follower of a log is. ``end`` tells how far the log was seen to go."""

    __slots__ = ("end", "log", "position")

    def __init__(self, log: str, position: int, end: Callable[[], int]) -> None:
        self.log = log
        self.position = position
        self.end = end


class Tails:
    """What clients of a server read."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._hubs: dict[str, _Hub] = {}
        self._followers: set[_Follower] = set()
        self._room = Budget(SERVER_READS_BYTES_MAX, "this server")

    def lags(self) -> dict[str, int]:
        """Return for each log that is followed how many records the slowest follower is behind. For any thread."""
        found: dict[str, int] = {}
        for one in self._followers.copy():
            found[one.log] = max(found.get(one.log, 0), one.end() - one.position, 0)
        return found

    @contextlib.contextmanager
    def _noted(self, log: str, position: int, end: Callable[[], int]) -> Iterator[_Follower]:
        follower = _Follower(log, position, end)
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)

    @property
    def hubs(self) -> int:
        """How many logs are followed."""
        return len(self._hubs)

    def followers(self, name: str) -> int:
        """Return how many follow a log."""
        hub = self._hubs.get(name)
        return 0 if hub is None else hub.followers

    def forget(self, name: str) -> None:
        """End those who follow a log that was deleted: another of its name has other records at the same positions."""
        hub = self._hubs.pop(name, None)
        if hub is not None:
            hub.error = deleted(name)
            hub.task.cancel()
            hub.tell()

    def wake(self) -> None:
        """Wake all followers, when the server drains: they end."""
        for hub in self._hubs.values():
            hub.tell()

    async def read(
        self,
        name: str,
        start: Start,
        encode: Encode[_T],
        *,
        limit: int | None = None,
        lease_s: float | None = None,
        columns: list[str] | None = None,
        log_id: str = "",
    ) -> AsyncIterator[tuple[TailPiece, _T]]:
        """Yield the records from ``start`` to the end of a log as it is now, in pieces, encoded. With ``log_id`` it
        must be this very log.

        A client that does not read them has the server hold a step of the log: so only as many as there is room for
        read ahead, and by large steps.
        """

        def opened() -> tuple[Reader, int]:
            log = self._this(name, log_id)
            return inner.reader(log, start, limit=limit, lease_s=lease_s, columns=columns), log.end_position()

        ahead = self._room.try_take(READ_BYTES)
        try:
            reader, end = await self._server.read(opened, name)
            if not ahead:
                inner.keep_small(reader, STEP_BYTES)
            async with contextlib.aclosing(self._steps(name, reader, end, encode, ahead=ahead)) as found:
                async for one in found:
                    yield one
        finally:
            if ahead:
                self._room.give(READ_BYTES)

    async def _steps(
        self, name: str, reader: Reader, end: int, encode: Encode[_T], *, ahead: bool
    ) -> AsyncGenerator[tuple[TailPiece, _T], None]:
        found = (piece for rows in reader.rows() for piece in pieces([rows], end))

        def step() -> tuple[TailPiece, _T] | None:
            piece = next(found, None)
            return None if piece is None else (piece, encode.function(piece))

        reading = asyncio.ensure_future(self._server.read(step, name))
        try:
            while (one := await reading) is not None:
                if ahead:
                    reading = asyncio.ensure_future(self._server.read(step, name))  # while this one is sent
                yield one
                if not ahead:
                    reading = asyncio.ensure_future(self._server.read(step, name))
        finally:
            reading.add_done_callback(lambda done: self._close(reader, done))

    def _close(self, reader: Reader, last: asyncio.Future[Any]) -> None:
        """Close a reader when its last step has ended. An error of that step is dropped: no caller waits for it."""
        if not last.cancelled():
            last.exception()
        self._server.readers.post(reader.close)

    async def follow(
        self,
        name: str,
        start: Start,
        encode: Encode[_T],
        *,
        lease_s: float | None = None,
        beat_s: float = 15.0,
        log_id: str = "",
    ) -> AsyncGenerator[tuple[TailPiece, _T] | tuple[None, int], None]:
        """Yield the records from ``start`` on, as they become durable, in pieces, encoded; it ends when the server
        drains.

        ``(None, position)`` comes when nothing was yielded for ``beat_s``. With ``lease_s`` the log is not truncated
        behind the reader. With ``log_id`` it must be this very log, not another one of its name.
        """
        if lease_s is not None:
            tail = await self._server.read(lambda: self._this(name, log_id).tail(start, lease_s=lease_s), name)
            async for one in self._alone(name, tail, encode, min(beat_s, lease_s / 3, LOOK_BUCKET_S), beat_s):
                yield one
            return
        log = await self._server.read(lambda: self._this(name, log_id), name)
        position = await self._server.read(lambda: log.position_at(start), name)
        with (
            self._following(name, log.log_id, encode) as hub,
            self._noted(name, position, lambda: max(hub.end, hub.until)) as follower,
        ):
            await hub.started
            if hub.error is None:
                check_this(log, hub.log_id)
            async for one in self._with_hub(hub, name, position, encode, beat_s):
                yield one
                follower.position = one[1] if one[0] is None else one[0].next

    def _this(self, name: str, log_id: str) -> Log:
        log = self._server.open_log(name)
        check_this(log, log_id)
        return log

    async def _with_hub(
        self, hub: _Hub, name: str, position: int, encode: Encode[_T], beat_s: float
    ) -> AsyncIterator[tuple[TailPiece, _T] | tuple[None, int]]:
        while not self._server.draining.is_set():
            if hub.error is not None:
                raise hub.error
            if position < hub.since:
                async for piece, made in self._catch_up(hub, name, position, encode):
                    yield piece, made
                    position = piece.next
            elif position < hub.until:
                part = hub.at(position).behind(position)
                if not part.is_encoded(encode):
                    await self._server.read(functools.partial(part.encoded, encode))
                position = part.next
                yield part, part.encoded(encode)
            else:
                before = hub.until
                await hub.wait(beat_s)
                if hub.until == before:
                    yield None, position

    async def _catch_up(
        self, hub: _Hub, name: str, position: int, encode: Encode[_T]
    ) -> AsyncIterator[tuple[TailPiece, _T]]:
        """Yield what lies before the pieces that a hub has."""
        scan = await self._server.read(lambda: _scan(self._server.open_log(name), position), name)
        while position < hub.since and not self._server.draining.is_set():
            found = await self._server.read(lambda: _step(scan, encode), name)
            if not found:
                return
            while found:
                piece, made = found.pop(0)
                yield piece, made
                position = piece.next

    async def _alone(
        self, name: str, tail: Tail, encode: Encode[_T], look_s: float, beat_s: float
    ) -> AsyncIterator[tuple[TailPiece, _T] | tuple[None, int]]:
        """Follow without the hub: the lease is that of the reader."""
        seen = tail.position
        try:
            with self._server.woken(name) as woken, self._noted(name, seen, lambda: seen) as follower:
                quiet_s = 0.0
                while not self._server.draining.is_set():
                    woken.clear()
                    found = await self._server.read(lambda: _polled(tail, encode), name)
                    for one in found:
                        seen = max(seen, one[0].end)
                        yield one
                        follower.position = one[0].next
                    if not found:
                        await _wait(woken, look_s)
                    quiet_s = 0.0 if found else quiet_s + look_s
                    if quiet_s >= beat_s:
                        quiet_s = 0.0
                        yield None, tail.position
        finally:
            self._server.readers.post(tail.close)

    @contextlib.contextmanager
    def _following(self, name: str, log_id: str, encode: Encode[Any]) -> Iterator[_Hub]:
        hub = self._hubs.get(name)
        if hub is None or hub.task.done() or hub.error is not None or hub.log_id not in ("", log_id):
            hub = self._hubs[name] = _Hub(self._server, name)
            hub.task.add_done_callback(lambda _: self._ended(name, hub))
        hub.followers += 1
        _, count = hub.encoders.get(encode.key, (encode, 0))
        hub.encoders[encode.key] = (encode, count + 1)
        try:
            yield hub
        finally:
            hub.followers -= 1
            _, count = hub.encoders[encode.key]
            if count > 1:
                hub.encoders[encode.key] = (encode, count - 1)
            else:
                del hub.encoders[encode.key]

    def _ended(self, name: str, hub: _Hub) -> None:
        if self._hubs.get(name) is hub:
            del self._hubs[name]


def check_this(log: Log, log_id: str) -> None:
    """Raise ``NotFound`` if a log is not the one that its reader opened, but another one of the same name."""
    if log_id and log.log_id != log_id:
        raise deleted(log.name)


def _scan(log: Log, position: int) -> Scan:
    """Return a place in a log that moves forward by small steps: a follower that stands still holds one of them."""
    scan = inner.scan(log)
    scan.keep_small(STEP_BYTES)
    scan.begin(position)
    return scan


def _step(scan: Scan, encode: Encode[_T]) -> list[tuple[TailPiece, _T]]:
    return [(piece, encode.function(piece)) for piece in pieces(scan.next_rows(), scan.end())]


def _polled(tail: Tail, encode: Encode[_T]) -> list[tuple[TailPiece, _T]]:
    return [(piece, encode.function(piece)) for piece in pieces(tail.poll_rows(0), tail.end())]


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
