"""The servers of a database, as objects in it. There is no coordinator: conditional creates decide.

::

    <name>/<incarnation>/card        where the server listens; creating it wins the incarnation
    <name>/<incarnation>/beats/<n>   a new one every two seconds, as long as the server lives
    <name>/<incarnation>/left        the server has left, and lets everything go
    secret/key                       the secret that the servers share: readers of a bucket can be kept from it

A server compares the numbers of beats by its own steady clock, and never compares wall clocks. A server without a new
beat for eight seconds is taken for dead. That may be wrong (the server was paused): the epoch of each log decides then.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from oncelog import names
from oncelog.clock import Clock
from oncelog.errors import CorruptionError, NotFound, OncelogError, Unavailable, Unsupported
from oncelog.format import frame
from oncelog.shapes import prepare
from oncelog.storage.base import LogHome

HOME = "~servers"
"""The key of the home: no log's name becomes it."""

BEAT_S = 2.0
DEAD_BEATS = 4
"""A server that shows no new beat for so many times as long is taken for dead."""

_CARD, _CARD_FORMAT = b"OLsc", 1
_BEAT, _BEAT_FORMAT = b"OLsb", 1
_KEY, _OLD_KEY = "secret/key", "key"
_KEY_BYTES = 32
_DIGITS = 20


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A server: where it listens for the others, and what it is."""

    name: str
    incarnation: int
    grpc: str
    http: str
    tls: bool = False
    tls_name: str | None = None
    version: str = ""
    started_us: int = 0
    nonce: str = ""
    """Random: tells whose card it is when an answer was lost."""

    @property
    def holder(self) -> tuple[str, int]:
        """How manifests name this server."""
        return self.name, self.incarnation


class Beat(msgspec.Struct, frozen=True):
    """What a server says of itself with each beat."""

    logs: int = 0


class FleetMember(NamedTuple):
    """A server as it was seen last."""

    card: Card
    beat: int
    seen_us: int
    """When its newest beat was seen first, by the steady clock of who looks."""
    left: bool = False
    beats_seen: int = 1
    """How many beats were seen: one alone may be as old as the bucket."""


class _Found(NamedTuple):
    """What a listing shows of one incarnation."""

    prefix: str
    incarnation: int
    beat: int
    left: bool


class Members:
    """The servers of a database, as this process sees them. Safe to share between threads."""

    def __init__(self, home: LogHome, clock: Clock, beat_s: float = BEAT_S) -> None:
        """Keep a home; nothing is asked of it yet."""
        self._home = home
        self._clock = clock
        self.beat_s = beat_s
        self.dead_s = DEAD_BEATS * beat_s
        self._looking = threading.Lock()
        self._members: dict[str, FleetMember] = {}

    def look(self) -> None:
        """See who is there: one request, and one more for a server that was not seen before."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        now_us = self._clock.elapsed_us()
        seen: dict[str, FleetMember] = {}
        for found in _newest(self._home.list("")):
            before = self._members.get(found.prefix)
            if before is None:
                card = self._card(found.prefix)
                if card is not None:
                    seen[found.prefix] = FleetMember(card, found.beat, now_us, found.left)
            elif found.beat != before.beat:
                seen[found.prefix] = FleetMember(before.card, found.beat, now_us, found.left, before.beats_seen + 1)
            else:
                seen[found.prefix] = before._replace(left=found.left)
        self._members = seen

    def _card(self, prefix: str) -> Card | None:
        """Return a card; ``None`` if it is gone meanwhile, or cannot be read: its server counts as dead."""
        key = f"{prefix}/card"
        try:
            return frame.unpack(frame.unwrap(_CARD, _CARD_FORMAT, self._home.read(key), key), Card, key)
        except (NotFound, CorruptionError, Unsupported):
            return None

    def beat_of(self, member: FleetMember) -> Beat:
        """Return what a server said with its newest beat; nothing if that is gone already."""
        card = member.card
        key = _beat_key(_prefix(card.name, card.incarnation), member.beat)
        try:
            return frame.unpack(frame.unwrap(_BEAT, _BEAT_FORMAT, self._home.read(key), key), Beat, key)
        except (NotFound, CorruptionError, Unsupported):
            return Beat()

    def all(self) -> list[FleetMember]:
        """Return the newest incarnation of each server, by name, the dead too."""
        return sorted(self._members.values(), key=lambda member: member.card.name)

    def living(self) -> list[FleetMember]:
        """Return the servers that are not taken for dead."""
        return [member for member in self.all() if self.is_living(member)]

    def is_living(self, member: FleetMember) -> bool:
        """Tell whether a server is not taken for dead, now."""
        return not member.left and self._clock.elapsed_us() - member.seen_us < self.dead_s * 1e6

    def find(self, holder: tuple[str, int]) -> FleetMember | None:
        """Return the living server that a manifest names; ``None`` if it is dead, or was started again since."""
        for member in self._members.values():
            if member.card.holder == holder and self.is_living(member):
                return member
        return None

    def knows(self, holder: tuple[str, int]) -> bool:
        """Tell whether a server that a manifest names was seen, or a later incarnation of it. One that was not may have
        joined since the last look.
        """
        return self.newest_incarnation(holder[0]) >= holder[1]

    def newest_incarnation(self, name: str) -> int:
        """Return the newest incarnation of a name that was seen."""
        return max((one.card.incarnation for one in self._members.values() if one.card.name == name), default=0)


class FleetMembership:
    """This server among the others: its card, its beats, and its leaving. For one thread at a time."""

    def __init__(self, home: LogHome, card: Card) -> None:
        """Take a card that ``join`` has won."""
        self._home = home
        self.card = card
        self._prefix = _prefix(card.name, card.incarnation)
        self._number = 0

    def beat(self, beat: Beat) -> None:
        """Create the next beat, and remove those before it."""
        number = self._number + 1
        data = frame.wrap(_BEAT, _BEAT_FORMAT, msgspec.msgpack.encode(beat))
        self._home.create(_beat_key(self._prefix, number), [data])
        self._number = number
        if number > 2:  # noqa: PLR2004  (the one before stays for who has listed it and reads it now)
            with contextlib.suppress(OncelogError):
                self._home.delete(_beat_key(self._prefix, number - 2))

    def leave(self) -> None:
        """Tell the others that this server lets everything go."""
        self._home.create(f"{self._prefix}/left", [b"left"])


def join(home: LogHome, card: Card) -> FleetMembership:
    """Win the next incarnation of a name, and remove what earlier ones left. The name of ``card`` counts, not its
    incarnation.
    """
    folder = names.home_key(card.name)
    while True:
        before = [found for found in _incarnations(home.list(f"{folder}/")) if found.prefix.startswith(f"{folder}/")]
        number = 1 + max((found.incarnation for found in before), default=0)
        made = msgspec.structs.replace(card, incarnation=number)
        data = frame.wrap(_CARD, _CARD_FORMAT, msgspec.msgpack.encode(made))
        if _created(home, f"{_prefix(card.name, number)}/card", data):
            _remove(home, [found.prefix for found in before])
            return FleetMembership(home, made)


def _created(home: LogHome, key: str, data: bytes) -> bool:
    """Create an object; when the answer is lost, look whose it is."""
    try:
        if home.create(key, [data]):
            return True
    except Unavailable as error:
        if error.outcome != "unknown" or not home.exists(key):
            raise
    return bool(home.read(key).to_pybytes() == data)


def _remove(home: LogHome, prefixes: Sequence[str]) -> None:
    for prefix in prefixes:
        for key in home.list(f"{prefix}/"):
            with contextlib.suppress(OncelogError):
                home.delete(key)


def shared_key(home: LogHome, clock: Clock) -> bytes:
    """Return the secret that the servers of a database share; the first who asks makes it.

    Servers of earlier versions have it where every reader of the bucket could read it: they and we share that one.
    """
    for key in (_KEY, _OLD_KEY):
        with contextlib.suppress(NotFound):
            return _checked_key(home, key)
    home.create(_KEY, [clock.token(_KEY_BYTES)])
    return _checked_key(home, _KEY)


def _checked_key(home: LogHome, key: str) -> bytes:
    found: bytes = home.read(key).to_pybytes()
    if len(found) != _KEY_BYTES:
        message = (
            f"{home.location(key)} has {len(found)} bytes, not {_KEY_BYTES}: delete it, and start the servers again"
        )
        raise CorruptionError(message)
    return found


def _prefix(name: str, incarnation: int) -> str:
    return f"{names.home_key(name)}/{incarnation:0{_DIGITS}d}"


def _beat_key(prefix: str, number: int) -> str:
    return f"{prefix}/beats/{number:0{_DIGITS}d}"


def _incarnations(keys: Sequence[str]) -> Iterator[_Found]:
    """Yield what keys show of each incarnation that has a card."""
    shown: dict[str, list[str]] = {}
    for key in keys:
        parts = key.split("/")
        if len(parts) >= 3 and _is_number(parts[1]):  # noqa: PLR2004
            shown.setdefault(f"{parts[0]}/{parts[1]}", []).append("/".join(parts[2:]))
    for prefix, below in shown.items():
        if "card" in below:
            beats = [int(one[6:]) for one in below if one.startswith("beats/") and _is_number(one[6:])]
            yield _Found(prefix, int(prefix.rpartition("/")[2]), max(beats, default=0), "left" in below)


def _is_number(text: str) -> bool:
    return len(text) == _DIGITS and text.isascii() and text.isdecimal()


def _newest(keys: Sequence[str]) -> list[_Found]:
    """Return the newest incarnation of each server."""
    newest: dict[str, _Found] = {}
    for found in _incarnations(keys):
        folder = found.prefix.partition("/")[0]
        if folder not in newest or newest[folder].incarnation < found.incarnation:
            newest[folder] = found
    return list(newest.values())


prepare(Card, Beat)
