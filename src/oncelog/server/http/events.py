"""Server-sent events: a tail of a log for browsers and curl, that resumes behind ``Last-Event-ID``.

What is followed is read and encoded once for all clients (``oncelog.server.tails``). A slow client costs no memory:
what it has not read stays in the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from oncelog.errors import NotFound, OncelogError
from oncelog.server.http import problem, spelling
from oncelog.server.http.answers import PART_BYTES
from oncelog.server.tails import Encode, TailPiece

if TYPE_CHECKING:
    from oncelog.server.server import Server

HEARTBEAT_S = 15.0
"""Proxies close a connection on which nothing comes: a comment comes so often."""

HEADERS = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
HEARTBEAT = b": heartbeat\n\n"
BEGIN = b": oncelog\n\n"
TRUNCATED = "truncated"


def spell(event: str | None, data: bytes, id: int | None = None) -> bytes:
    r"""Return one event as bytes. The data is JSON, which has no line break.

    >>> spell("truncated", b"{}", 7)
    b'id: 7\nevent: truncated\ndata: {}\n\n'
    """
    head = b"" if id is None else b"id: %d\n" % id
    named = b"" if event is None else b"event: %s\n" % event.encode()
    return b"%s%sdata: %s\n\n" % (head, named, data)


def _spell_piece(piece: TailPiece) -> bytes:
    """Return records as events: the id of each is its position."""
    return b"".join(
        spell(None, msgspec.json.encode(spelling.entry(entry)), entry.position) for entry in piece.entries()
    )


PIECES = Encode("sse", _spell_piece)


def spell_truncated(first: int | None, position: int) -> bytes:
    """Return the event that says that records from ``position`` on are gone; the log begins at ``first``.

    Its id is no position: a browser that sends it back was told.
    """
    data = msgspec.json.encode({"first": first, "position": position})
    return b"id: %s\n%s" % (TRUNCATED.encode(), spell(TRUNCATED, data))


def spell_ended() -> bytes:
    """Return the event that says that the caller may not listen any more."""
    return spell("ended", b'{"reason":"the token was revoked, or has expired"}')


def spell_draining(position: int) -> bytes:
    """Return the event that says that the server stops, and where its listener is."""
    return spell("draining", msgspec.json.encode({"position": position}))


def spell_error(error: OncelogError) -> bytes:
    """Return an error as an event."""
    return spell("error", msgspec.json.encode(problem.of(error)))


def _parts(data: bytes) -> Iterator[bytes]:
    """Cut what is large."""
    if len(data) <= PART_BYTES:
        yield data
        return
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]


async def follow(server: Server, name: str, position: int, is_valid: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the events of a log from a position on, for ever; at its end an event that says why.

    ``is_valid`` is asked before each piece, and at each heartbeat, whether the caller may still listen.
    """
    yield BEGIN
    try:
        async with contextlib.aclosing(server.tails.follow(name, position, PIECES, beat_s=HEARTBEAT_S)) as followed:
            async for piece, made in followed:
                if not is_valid():
                    yield spell_ended()
                    return
                if piece is None:
                    yield HEARTBEAT
                    continue
                position = piece.next
                for part in _parts(made):  # type: ignore[arg-type]  # bytes where there is a piece
                    yield part
        yield spell_draining(position)
    except OncelogError as error:
        truncated = isinstance(error, NotFound) and error.first is not None
        yield spell_truncated(error.first, position) if truncated else spell_error(error)  # type: ignore[attr-defined]
