"""This server among the others of its database: its beats, and where each log is held.

A log stays where it is held, as long as its holder lives: a balancer that sprays requests moves nothing. A log that
nobody holds goes to the server that rendezvous hashing prefers (Thaler and Ravishankar, 1998): all servers compute the
same one without asking each other, and a server that comes or goes moves only its own share of the logs. Of two servers
that take a log at once the log's epoch decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from oncelog import inner as database_inner
from oncelog.clock import Clock
from oncelog.errors import CorruptionError, NotFound, OncelogError, Unavailable
from oncelog.log import inner
from oncelog.log.log import Log
from oncelog.log.open_writer import Term
from oncelog.log.takeover.fencing import Holding
from oncelog.log.takeover.handover import SERVER_TENURE_S_MAX
from oncelog.log.writer import Writer
from oncelog.server.fleet import members
from oncelog.server.fleet.bells import Bells
from oncelog.server.fleet.hop import Hop, opened, opened_text
from oncelog.server.fleet.members import Beat, Card, FleetMember, FleetMembership, Members
from oncelog.wire.failures import Misdirected

if TYPE_CHECKING:
    from oncelog.server.fleet.host import FleetHost
    from oncelog.server.fleet.peers import Peers

ASK_S = 10.0
"""How long a holder that cannot be reached, or is no server, is asked for a log."""

TENURE_S = 30.0
TENURE_AGAIN_S = 300.0
"""How long a log is kept when another server asks for it through the log itself; twice as long each time that it was
taken back within five minutes: two servers that cannot reach each other must not play tennis with it.
"""

GIVE_S = 2.0
"""How long a server that drains waits for another one to take a log."""

KEPT_MAX = 10_000
"""Logs whose places are remembered."""

NOT_REACHED_S = 15.0
"""How long a server that could not be reached is not tried again."""

QUEUE = "queue/"
"""What the names of a queue's logs begin with."""

_log = logging.getLogger("oncelog.server.fleet")


class _Tenure(NamedTuple):
    lost_us: int
    length_s: float


class Fleet:
    """Knows the other servers, and places logs. Made in the event loop; ``take`` is for threads."""

    def __init__(self, server: FleetHost, peers: Peers, key: bytes, on_replaced: Callable[[], None]) -> None:
        """Take what is there before this server has joined; ``on_replaced`` is called if its name is taken."""
        self._server = server
        self._clock: Clock = server.clock
        self._home = database_inner.home(server.database, members.HOME)
        self.peers = peers
        self.bells = Bells(server)
        self._on_replaced = on_replaced
        self.key = key
        self.members = Members(self._home, self._clock, server.settings.beat_s)
        self._membership: FleetMembership | None = None
        self._beaten_us = 0
        self._stopping = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._places: dict[str, FleetMember] = {}
        self._here: dict[tuple[str, bool], int] = {}
        """Logs that were looked for and belong here, and until when that is believed without another look; for calls
        that take the log, and for those that do not: a free log is answered for here, and given to another."""
        self._not_reached: dict[tuple[str, int], int] = {}
        self._looks: dict[tuple[str, bool], asyncio.Future[FleetMember | None]] = {}
        self._tenures: dict[str, _Tenure] = {}

    # Joining, beating, leaving. For threads.

    @property
    def card(self) -> Card:
        """This server's card."""
        assert self._membership is not None, "the server has not joined yet"
        return self._membership.card

    def join(self, card: Card) -> None:
        """Become a member, and see who else is."""
        self._membership = members.join(self._home, card)
        self._beaten_us = self._clock.elapsed_us()
        self._membership.beat(Beat())
        self.members.look()
        self._thread = threading.Thread(target=self._beat_on, name="oncelog-beat", daemon=True)
        self._thread.start()

    def _beat_on(self) -> None:
        while not self._waited():
            self.beat()

    def _waited(self) -> bool:
        """Wait for the next beat; tell whether it is over."""
        with self._stopping:
            if not self._stopped:
                self._clock.wait(self._stopping, self.members.beat_s)
            return self._stopped

    def beat(self) -> None:
        """Beat once, and see who is there; what fails is tried again with the next beat."""
        assert self._membership is not None
        began_us = self._clock.elapsed_us()
        try:
            self._membership.beat(Beat(self._server.open_count()))
            self.members.look()
        except OncelogError as error:
            _log.warning("this server's beat failed: %s", error)
            return
        self._beaten_us = began_us
        if self.members.newest_incarnation(self.card.name) > self.card.incarnation:
            _log.error("another server has the name %r now: this one stops", self.card.name)
            self._server.loop.call_soon_threadsafe(self._on_replaced)

    @property
    def is_cut_off(self) -> bool:
        """Whether this server missed its beats for so long that the other servers take it for dead, and take its logs.

        A server that was suspended is cut off until its next beat.
        """
        return self._clock.elapsed_us() - self._beaten_us > self.members.dead_s * 1e6

    def leave(self) -> None:
        """Beat no more, and tell the others that this server lets everything go."""
        with self._stopping:
            self._stopped = True
            self._stopping.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._membership is not None:
            try:
                self._membership.leave()
            except OncelogError as error:
                _log.warning("the others will notice in %d s that this server left: %s", self.members.dead_s, error)

    def hop_of(self, sealed: bytes | str) -> Hop:
        """Return what another server says of a call that it hands on to this one.

        ``Misdirected`` if the call was not meant for this server. A call of another fleet, whose proof does not hold
        here, must not be served as one of a client: it is about a log of another database.
        """
        found = opened(self.key, sealed) if isinstance(sealed, bytes) else opened_text(self.key, sealed)
        if found is None:
            message = "this call was handed on by a server that is not of this fleet: it is not served"
            raise Misdirected(message)
        if found.to != self.card.holder:
            message = f"this server is {self.card.name!r}, not {found.to[0]!r}, for which the call was meant"
            raise Misdirected(message)
        return found

    def others(self) -> list[FleetMember]:
        """Return the other servers that live."""
        return [member for member in self.members.living() if member.card.name != self.card.name]

    # Placing, on the event loop.

    async def place(self, log: str, *, takes: bool, handed_on: bool = False) -> FleetMember | None:
        """Return the other server that a call for a log goes to; ``None``: it is served here.

        ``takes``: the call needs the log's writer, so that a log without one is given to the preferred server. A call
        that was handed on is served here, or ``Unavailable``, not written.
        """
        self._server.check_bucket()
        if self._server.is_held(log):
            return None
        if self._here.get((log, takes), 0) > self._clock.elapsed_us():
            return None
        if handed_on:
            await self._server.read(lambda: self._check_not_elsewhere(log))
            self._believe(log, takes=takes)
            return None
        known = self._places.get(log)
        if known is not None and self.members.find(known.card.holder) is not None and self._is_reached(known):
            return known
        return await self._looked(log, takes=takes)

    def forget(self, log: str) -> None:
        """Forget where a log was: the server there did not take a call for it."""
        self._places.pop(log, None)
        self._here.pop((log, True), None)
        self._here.pop((log, False), None)

    def not_reached(self, member: FleetMember) -> None:
        """Note that a server that lives could not be reached: for a while its logs are asked for, not handed on to."""
        card = member.card
        if self._is_reached(member):
            message = "the server %r lives, and cannot be reached (gRPC %s, HTTP %s): are address and TLS right?"
            _log.warning(message, card.name, card.grpc, card.http)
        self._not_reached[member.card.holder] = self._clock.elapsed_us() + int(NOT_REACHED_S * 1e6)

    def _is_reached(self, member: FleetMember) -> bool:
        return self._not_reached.get(member.card.holder, 0) <= self._clock.elapsed_us()

    def _believe(self, log: str, *, takes: bool) -> None:
        """Note that calls for a log belong here, for a while; if those that take it do, then all."""
        now_us = self._clock.elapsed_us()
        if len(self._here) > KEPT_MAX:
            self._here = {key: until_us for key, until_us in self._here.items() if until_us > now_us}
        self._here[log, False] = self._here[log, takes] = now_us + int(self.members.beat_s * 1e6)

    async def _looked(self, log: str, *, takes: bool) -> FleetMember | None:
        """Look where a log is. One look serves all who wait for it."""
        looking = self._looks.get((log, takes))
        if looking is None:
            looking = self._looks[log, takes] = asyncio.ensure_future(self._look(log, takes=takes))
            looking.add_done_callback(lambda _: self._looks.pop((log, takes), None))
        return await asyncio.shield(looking)

    async def _look(self, log: str, *, takes: bool) -> FleetMember | None:
        try:
            holding, found = await self._server.read(lambda: self._seen(log))
        except (NotFound, CorruptionError):
            return None  # the call itself will say so
        if found is None and takes and self._is_free(holding):
            found = await self._given(log, holding)
        if found is None or not self._is_reached(found):
            self._believe(log, takes=takes)
            return None
        if len(self._places) > KEPT_MAX:
            self._places.clear()
        self._places[log] = found
        return found

    def _seen(self, log: str) -> tuple[Holding, FleetMember | None]:
        """Return who has a log, and the other server that does. For threads."""
        holding = inner.holding(self._server.open_log(log))
        return holding, self._elsewhere(holding)

    async def _given(self, log: str, holding: Holding) -> FleetMember | None:
        """Give a free log to the server that is preferred, if that is another one, and answers."""
        wanted = self.preferred(log, holding.log_id)
        if wanted is None or not await self.peers.take(wanted, log):
            return None
        return wanted

    def preferred(self, log: str, log_id: str) -> FleetMember | None:
        """Return the server that should have a free log; ``None``: this one."""
        subject = placing_key(log, log_id)
        others = self.others()
        best = _highest(subject, [self.card.name, *(member.card.name for member in others)])
        return next((member for member in others if member.card.name == best), None)

    def give(self, log: str) -> None:
        """Have another server take a log that this server has closed, before a client asks for it. For threads.

        If that fails, the first server that a client asks takes the log.
        """
        try:
            log_id = self._server.open_log(log).log_id
        except OncelogError:
            return
        others = self.others()
        if others:
            best = _highest(placing_key(log, log_id), [member.card.name for member in others])
            wanted = next(member for member in others if member.card.name == best)
            giving = asyncio.run_coroutine_threadsafe(self.peers.take(wanted, log), self._server.loop)
            with contextlib.suppress(TimeoutError):
                giving.result(GIVE_S)

    def _elsewhere(self, holding: Holding) -> FleetMember | None:
        """Return the other server that holds a log and lives. For threads.

        A holder that was not seen yet is looked for: it may have joined a moment ago.
        """
        if not holding.open or holding.holder is None or holding.holder == self.card.holder:
            return None
        if not self.members.knows(holding.holder):
            self.members.look()
        return self.members.find(holding.holder)

    def _is_free(self, holding: Holding) -> bool:
        """Tell whether a log that no other server holds is free: a process that is no server may hold it."""
        return not holding.open or holding.holder not in (None, self.card.holder)

    def _check_not_elsewhere(self, log: str) -> None:
        try:
            found = self._elsewhere(inner.holding(self._server.open_log(log)))
        except NotFound:
            return
        if found is not None:
            raise self._moved(log, found)

    def _moved(self, log: str, member: FleetMember) -> Unavailable:
        message = f"log {log!r} is held by the server {member.card.name!r}: try again"
        return Unavailable(message, retry_after_s=0.2 * self._server.retry_after_s())

    # Taking, in threads.

    def take(self, log: Log) -> Writer:
        """Become the writer of a log, in the name of this server. Never takes it from a server that lives.

        A server that lives and cannot be reached from here is asked for it, through the log itself. So is the holder of
        a queue's log: calls for partitions are not handed on one by one.
        """
        holding = inner.holding(log)
        found = self._elsewhere(holding)
        if found is not None and not log.name.startswith(QUEUE) and self._is_reached(found):
            self.forget(log.name)
            raise self._moved(log.name, found)
        ask = holding.open and (found is not None or holding.holder is None)
        term = Term(
            holder=self.card.holder,
            epoch=None if ask else holding.epoch,
            tenure_s=self._tenure_s(log.name, holding),
            answer_s=None if holding.holder is None else self.members.dead_s,
        )
        writer = inner.hold(log, term, ASK_S, ask=ask)
        self._places.pop(log.name, None)
        return writer

    def _tenure_s(self, log: str, holding: Holding) -> float:
        """Return how long the log will be kept when others ask for it; longer if it went back and forth lately."""
        now_us = self._clock.elapsed_us()
        before = self._tenures.get(log)
        taken_back = holding.holder not in (None, self.card.holder)
        recent = before is not None and now_us - before.lost_us < TENURE_AGAIN_S * 1e6
        length_s = TENURE_S
        if before is not None and recent and taken_back:
            length_s = min(2 * before.length_s, SERVER_TENURE_S_MAX)
        self._tenures[log] = _Tenure(now_us, length_s)
        return length_s


def placing_key(log: str, log_id: str) -> str:
    """Return what a log is placed by. All logs of a queue, and of its dead letters, are placed together.

    >>> placing_key("orders", "f00"), placing_key("queue/emails/3", "1"), placing_key("queue/dlq.emails/0", "2")
    ('f00', 'queue emails', 'queue emails')
    """
    if not log.startswith(QUEUE):
        return log_id
    return f"queue {log.removeprefix(QUEUE).rpartition('/')[0].removeprefix('dlq.')}"


def _highest(subject: str, candidates: Sequence[str]) -> str:
    """Return the name with the highest weight for a subject: rendezvous hashing."""
    return max(candidates, key=lambda name: hashlib.blake2b(f"{name}\0{subject}".encode(), digest_size=8).digest())
