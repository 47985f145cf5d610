"""What is known of a key, and what somebody who asks for it may do: pure decisions.

A key is *absent*, PENDING (an attempt holds its lease), COMMITTED (its effect is there, for good) or FAILED. An
attempt is known by its token, which only grows, and by a nonce of its own: a change of a key names the nonce that
was seen there, so that of two who want the same change one gets it, and one who comes back late gets none.

Time is an argument. Nothing here reads a clock or a database.
"""

from __future__ import annotations

import hashlib
import uuid
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from oncelog.errors import EffectFailed, IdConflict, InvalidArgument, Unavailable
from oncelog.limits import INBOX_STORY_EVENTS_MAX

Status = Literal["PENDING", "COMMITTED", "FAILED"]
STATUSES: tuple[Status, Status, Status] = ("PENDING", "COMMITTED", "FAILED")
Expired = Literal["rerun", "fail", "manual"]
LEASE_EXPIRED = "lease_expired"


class Identity(NamedTuple):
    """What an effect is known by. An empty tenant is a tenant; an empty key means that it is not known by anything."""

    tenant: str
    topic: str
    group: str
    key: str

    @property
    def digest(self) -> bytes:
        """32 bytes that stand for all four; where one ends and the next begins counts."""
        return _digest(self)

    def effect_id(self, name: str = "") -> str:
        """Return an id for an outside system, in the form of a UUID: the same at every attempt, on every machine."""
        return effect_id(self.digest, name)

    def __str__(self) -> str:
        scope = "/".join(part for part in (self.tenant, self.topic, self.group) if part)
        shown = self.key if len(self.key) <= _SHOWN_MAX else self.key[:_SHOWN_MAX] + "…"
        return f"key {shown!r} of {scope}" if scope else f"key {shown!r}"


_SHOWN_MAX = 80


def effect_id(digest: bytes, name: str = "") -> str:
    """Return the id of an effect whose key has this digest."""
    hashed = hashlib.blake2b(name.encode(), digest_size=16, key=digest, person=b"oncelog-effect").digest()
    return str(uuid.UUID(int=int.from_bytes(hashed) & ~(0xF000 << 64) & ~(0xC000 << 48) | 0x8000 << 64 | 0x8000 << 48))


@lru_cache(maxsize=64)  # an effect asks for it when it begins and when it ends
def _digest(parts: tuple[str, ...]) -> bytes:
    hashed = hashlib.blake2b(digest_size=32, person=b"oncelog-inbox")
    for part in parts:
        encoded = part.encode()
        hashed.update(len(encoded).to_bytes(8))
        hashed.update(encoded)
    return hashed.digest()


_payload = msgspec.msgpack.Encoder(order="deterministic").encode
_ENCODED = b"\x00msgpack"
"""Stands before the encoding of a value in what is hashed."""


def fingerprint(payload: object) -> bytes | None:
    """Return the hash that tells two payloads apart; ``None`` for ``UNSET``, which is no payload: ``None`` is one.
    ``InvalidArgument`` if the payload cannot be compared.
    """
    if payload is msgspec.UNSET:
        return None
    if isinstance(payload, bytes | bytearray | memoryview):
        data = bytes(payload)
        # Bytes that begin as the encoding of a value does are hashed apart from values. All other bytes keep the hash
        # under which earlier versions stored them.
        return _hashed(data, b"oncelog-bytes" if data.startswith(_ENCODED) else b"")
    try:
        return _hashed(_ENCODED + _payload(payload))
    except Exception as error:
        message = f"a payload of type {type(payload).__name__} cannot be compared ({error}): give plain values"
        raise InvalidArgument(message) from error


def _hashed(data: bytes, person: bytes = b"") -> bytes:
    return hashlib.blake2b(data, digest_size=32, person=person).digest()


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a key. ``now_us`` is when it was read, ``until_us`` when its lease ends, ``keep_us`` until when
    it is kept; all by the store's clock.
    """

    status: Status
    nonce: str
    token: int
    attempts: int
    owner: str
    fingerprint: bytes | None
    until_us: int | None
    result: bytes | None
    error: str | None
    final: bool
    erased: bool
    first_us: int
    changed_us: int
    keep_us: int | None
    story: str
    now_us: int


class Undecided(Unavailable):
    """A lease ran out, and somebody has to say what became of its effect."""


class Verdict(Enum):
    """What may be done with a key that is there."""

    DONE = auto()  # its effect is there: nothing
    AGAIN = auto()  # the last attempt failed, or its lease is over: begin again
    FAIL = auto()  # its lease is over, and that is a failure for good


def judge(identity: Identity, stored: Stored, payload: bytes | None, expired: Expired) -> Verdict:
    """Decide what one who asks for a stored key may do.

    Raises ``IdConflict`` when the payload is another, whatever became of the first; ``Unavailable`` while an attempt
    holds the lease, or nobody has decided what became of one that held it; ``EffectFailed`` when it failed for good.
    """
    if payload is not None and stored.fingerprint is not None and payload != stored.fingerprint:
        message = f"{identity}: the payload is not the one that this key came with first: use another key for it"
        raise IdConflict(message, position=None)
    if stored.status == "COMMITTED":
        return Verdict.DONE
    if stored.status == "FAILED":
        if stored.final:
            raise EffectFailed(_failed(identity, stored), error=stored.error or "")
        return Verdict.AGAIN
    left_us = (stored.until_us or 0) - stored.now_us
    if left_us > 0:
        message = f"{identity}: {stored.owner} is at it, for up to {left_us / 1e6:.1f} s more: try again later"
        raise Unavailable(message, retry_after_s=left_us / 1e6)
    if expired == "manual":
        message = (
            f"{identity}: the lease of {stored.owner} ran out, and whether its effect happened is not known: look, and "
            "say so with Inbox.resolve"
        )
        raise Undecided(message, outcome="unknown")
    return Verdict.FAIL if expired == "fail" else Verdict.AGAIN


def _failed(identity: Identity, stored: Stored) -> str:
    return f"{identity} failed for good ({stored.error}): it is not run again unless Inbox.resolve says so"


# The story of a key: a line an event.


class KeyEvent(NamedTuple):
    """Something that happened to a key. ``detail`` is the owner, or the reason of a failure."""

    at_us: int
    token: int
    what: str
    detail: str


def event_tail(what: str, detail: str) -> str:
    """Return the part of an event's line that follows its time and token."""
    return f" {what} {msgspec.json.encode(detail).decode()}\n"


def event_line(at_us: int, token: int, what: str, detail: str) -> str:
    """Return an event's line."""
    return f"{at_us} {token}{event_tail(what, detail)}"


def events(story: str) -> list[KeyEvent]:
    """Return what a story tells.

    >>> events(event_line(5, 1, "claimed", "host:7"))
    [KeyEvent(at_us=5, token=1, what='claimed', detail='host:7')]
    """
    found = []
    for line in story.split("\n")[:-1]:  # a reason may have other ends of lines in it
        at_us, token, what, detail = line.split(" ", 3)
        found.append(KeyEvent(int(at_us), int(token), what, msgspec.json.decode(detail, type=str)))
    return found


def shortened(story: str) -> str:
    """Return the end of a story that would grow for ever."""
    return "\n".join(story.split("\n")[-INBOX_STORY_EVENTS_MAX - 1 :])


_OWNED = ("claimed", "committed", "result")
"""Events of a worker: they are shown with its name. Other events are shown with a reason."""


def without_reasons(story: str) -> str:
    """Return a story that says what happened and when, and nothing of what was in it."""
    return "".join(event_line(*event[:3], event.detail if event.what in _OWNED else "") for event in events(story))


# Results.

_encode_result = msgspec.msgpack.encode


def encode_result(result: object) -> bytes | None:
    """Return a result as it is stored; ``None`` is stored as nothing."""
    return None if result is None else _encode_result(result)


def decode_result(stored: bytes | None, returns: Any = Any) -> Any:
    """Return a stored result, as plain values or as a type that was asked for."""
    return None if stored is None else msgspec.msgpack.decode(stored, type=returns)
