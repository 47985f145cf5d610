"""The inbox: effects that happen once, however often their message comes."""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

import msgspec

from oncelog import arguments
from oncelog.clock import SYSTEM, Clock
from oncelog.errors import InvalidArgument, NotFound, Unavailable
from oncelog.handle import Handle, closes_anywhere
from oncelog.inbox import decisions as states
from oncelog.inbox import keys
from oncelog.inbox.contract import AttemptOutcome, Connection, KeyClaim, KeyRow
from oncelog.inbox.decisions import Expired, Identity, KeyEvent, Status, Stored
from oncelog.inbox.decorator import Decoration
from oncelog.inbox.effect import InboxRules, Once, encoded, explained
from oncelog.inbox.leases import LeaseKeeper
from oncelog.inbox.reader import PositionReader
from oncelog.inbox.steps import Steps, run, run_async
from oncelog.inbox.stores.connections import Home
from oncelog.log.log import Log

R = TypeVar("R")
Decision = Literal["committed", "failed", "again"]

LEASE_S = 60.0
"""The lease of an effect outside a database, where none is given."""
LISTED_MAX = 10_000
"""A list of keys has at most so many."""
_NONCE_BYTES = 12
_FOUND_MAX = 100
_AT_ONCE = 1000
_DECIDED: Mapping[str, tuple[Status, bool]] = {
    "committed": ("COMMITTED", False),
    "failed": ("FAILED", True),
    "again": ("FAILED", False),
}


class KeyStory(msgspec.Struct, frozen=True, kw_only=True):
    """The whole story of a key. Times are microseconds since 1970, by the database's clock."""

    tenant: str
    topic: str
    group: str
    key: str
    effect_id: str
    status: Status
    attempts: int
    token: int
    owner: str
    lease_left_s: float | None
    result: Any
    last_error: str | None
    final: bool
    erased: bool
    first_us: int
    changed_us: int
    keep_us: int | None
    story: list[KeyEvent]


class Inbox(Handle):
    """Makes effects happen once. Kept in the user's own database (SQLite, PostgreSQL), or in Redis.

    ``home``: a connection (sqlite3, psycopg 3, SQLAlchemy; plain or asynchronous), a function that makes one, an engine
    or a pool, a client of Redis, or a URL. Without ``lease_s``, the key, the result and whatever is done on the
    connection are one transaction. With it (always in Redis), the key is taken and stored first, for so long, and
    renewed while the effect is at work; ``expired`` says what becomes of an effect whose lease ran out.
    ``final``: errors of a handler after which it is not tried again. ``retention_s``: how long keys are kept, for ever
    by default.

    >>> import sqlite3
    >>> connection = sqlite3.connect(":memory:")
    >>> _ = connection.execute("CREATE TABLE sent (address TEXT)")
    >>> inbox = Inbox(connection)
    >>> for _ in range(3):  # the message comes three times
    ...     with inbox.once("welcome-7") as effect:
    ...         if not effect.done:
    ...             _ = connection.execute("INSERT INTO sent VALUES ('user7@example.com')")
    >>> connection.execute("SELECT count(*) FROM sent").fetchone()
    (1,)
    >>> connection.close()
    """

    _what = "inbox"

    def __init__(
        self,
        home: Any,
        *,
        tenant: str = "",
        topic: str = "",
        group: str = "",
        lease_s: float | None = None,
        expired: Expired = "rerun",
        final: tuple[type[BaseException], ...] = (),
        retention_s: float | None = None,
        owner: str | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._home = Home(home, clock)
        self._default = Identity(tenant, topic, group, "")
        keys.check(self._default)
        arguments.one_of("expired", expired, "rerun", "fail", "manual")
        _check_final(final)
        self._lease_us = _span_us("lease_s", LEASE_S if lease_s is None and self._home.in_redis else lease_s)
        self._retention_us = _span_us("retention_s", retention_s)
        self._rules = InboxRules(expired, final, Any)
        self._owner = keys.label("owner", owner) if owner is not None else f"{socket.gethostname()}:{os.getpid()}"
        self._keeper: LeaseKeeper | None = None
        if self._lease_us is not None and self._home.several:
            self._keeper = LeaseKeeper(self._home, clock, self._lease_us / 1e6)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    # Effects.

    def once(
        self,
        message: object = None,
        *,
        key: str | None = None,
        tenant: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        payload: object = msgspec.UNSET,
        connection: Any = None,
        returns: Any = Any,
    ) -> Once:
        """Return an effect to be entered by ``with`` or ``async with``: at work, or ``done`` already.

        ``message``: a delivery, an entry of a log, a Kafka record, an HTTP request, or a key. What is given by name
        counts before what the message tells. A key is a str; an empty one means no idempotence: the effect is at work
        each time. ``payload``: what must be the same each time; ``None`` is a payload like any other. ``connection``:
        another one than the inbox's own. ``returns``: the type of the result.

        Entering raises ``IdConflict`` when the key came with another payload before, ``Unavailable`` while another is
        at it or the database is away, ``EffectFailed`` when it failed for good. An error inside takes back what was
        done on the connection, is stored as the reason, and goes on. Leaving raises ``LeaseLost``, and takes back what
        was done, if another has taken the key over meanwhile; ``Unavailable(outcome="unknown")`` if the answer to the
        commit was lost: come again with the same key.
        """
        self._check_usable()
        told = self._told(message, key)
        identity = keys.identify(told, tenant=tenant, topic=topic, group=group, default=self._default)
        fingerprint = states.fingerprint(told.payload if payload is msgspec.UNSET else payload)
        claim = KeyClaim(identity, "", self._owner, fingerprint, self._lease_us, self._retention_us)
        rules = self._rules if returns is Any else self._rules._replace(returns=returns)
        return Once(
            self._home, claim, rules, keeper=self._keeper, given=connection, nonce=self._nonce, count=self._count
        )

    def _told(self, message: object, key: str | None) -> keys.MessageIdentity:
        if message is None and key is None:
            error = "an effect needs a message or a key"
            raise InvalidArgument(error)
        if message is None:
            return keys.MessageIdentity(keys.text("key", key))
        return keys.known(message) if key is None else keys.keyed(message, key)

    def _nonce(self) -> str:
        return self._clock.token(_NONCE_BYTES).hex()

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    @overload
    def effect(self, function: Callable[..., R]) -> Callable[..., R]: ...

    @overload
    def effect(
        self,
        *,
        key: str | Callable[..., str] | None = None,
        payload: str | Callable[..., object] | None = None,
        topic: str | None = None,
        returns: Any = Any,
    ) -> Callable[[Callable[..., R]], Callable[..., R]]: ...

    def effect(
        self,
        function: Callable[..., R] | None = None,
        *,
        key: str | Callable[..., str] | None = None,
        payload: str | Callable[..., object] | None = None,
        topic: str | None = None,
        returns: Any = Any,
    ) -> Any:
        """Decorate a function, plain or async, so that it happens once, and gives back the same each time.

        ``key``: the name of the argument that is the key (``"order.id"`` goes on into it), or a function of the
        arguments; without it the first argument is a message. ``payload``, in the same form: what must be the same each
        time. A parameter named ``effect`` gets the effect. The topic is the function's name, if neither the message nor
        the inbox has one.
        """
        how = Decoration(self.once, key, payload, topic, self._default.topic, returns)
        return how.decorate if function is None else how.decorate(function)

    @arguments.checked
    def reader(self, log: Log, name: str, *, start: int = 0) -> PositionReader:
        """Return a reader of a log that stores its position, under a name, with what is made of the entries: in one
        transaction. ``start`` is where it begins if it has none yet.
        """
        self._check_usable()
        keys.check(Identity("", "", name, ""))
        arguments.count("start", start)
        return PositionReader(self._home, log, name, start)

    # Operating. These use a connection of their own, or the given one while no effect is at work on it.

    @arguments.checked
    def show(self, key: str) -> list[KeyStory]:
        """Return the whole story of a key, in every tenant, topic and group that has it, the latest first."""
        name = keys.text("key", key)
        rows = self._asked(lambda connection: connection.find(name, _FOUND_MAX))
        return [_known(row) for row in rows]

    @arguments.checked
    def latest(self, status: Status | None = None, *, limit: int = 100) -> list[KeyStory]:
        """Return the keys that changed last, the latest first; those that are PENDING, COMMITTED or FAILED, if so
        given. The store looks at every key: this is for people, not for a loop.
        """
        if status is not None and status not in states.STATUSES:
            error = f"status is {status!r}, must be one of {', '.join(states.STATUSES)}"
            raise InvalidArgument(error)
        if not 0 < limit <= LISTED_MAX:
            error = f"limit is {limit}, must be from 1 to {LISTED_MAX}"
            raise InvalidArgument(error)
        return [_known(row) for row in self._asked(lambda connection: connection.latest(status, limit))]

    def look(self, message: object = None, **named: Any) -> KeyStory | None:
        """Return the story of one key, told as in ``once``; ``None`` if nothing is known of it."""
        identity = self._identity(message, **named)
        stored = self._stored(identity)
        return None if stored is None else _known(KeyRow(identity.digest, identity, stored))

    def resolve(self, message: object = None, *, to: Decision, result: object = None, **named: Any) -> None:
        """Decide by hand what became of a key whose lease expired or whose attempt failed: ``"committed"`` with a
        result, ``"failed"`` for good, or ``"again"`` for another attempt.

        An attempt that still runs loses the key. Raises ``NotFound``; ``InvalidArgument`` if the key is committed;
        ``Unavailable`` while its lease runs.
        """
        identity = self._identity(message, **named)
        stored = self._there(identity)
        if stored.status == "COMMITTED":
            error = f"{identity} is committed: that cannot be taken back"
            raise InvalidArgument(error)
        if to not in _DECIDED:
            error = f"to is {to!r}, must be 'committed', 'failed' or 'again'"
            raise InvalidArgument(error)
        status, final = _DECIDED[to]
        reason = stored.error or states.LEASE_EXPIRED if status == "FAILED" else None
        given = encoded(result, Any)[0] if status == "COMMITTED" else None  # a failed effect has no result
        outcome = AttemptOutcome(status, given, reason, final, event=f"resolved:{to}")
        self._change(identity, lambda connection: connection.settle(identity, stored, outcome, self._retention_us))

    def erase(self, message: object = None, **named: Any) -> None:
        """Forget the payload's fingerprint, the result, the reasons of failures and the name of a key. It is still
        refused, or done, as before. Raises ``NotFound``, and ``Unavailable`` while an attempt holds it, or may still
        come back with a result because nobody has taken it over or resolved it.
        """
        identity = self._identity(message, **named)
        stored = self._there(identity)
        if stored.status == "PENDING":
            error = (
                f"{identity}: the lease of {stored.owner} ran out, and it may come back: say what became of it first"
            )
            raise Unavailable(error, outcome="unknown")
        self._change(identity, lambda connection: connection.erase(identity, stored))

    def prune(self, *, refused: Callable[[Sequence[KeyRow]], Collection[bytes]] | None = None) -> int:
        """Remove the keys whose retention is over; return how many. A key keeps the retention it was stored with.

        ``refused`` is asked which of the keys that could go may still come, and returns their digests: those stay. A
        worker asks its queue so.
        """
        self._check_usable()
        return run(self._pruned(refused))

    async def aprune(self, *, refused: Callable[[Sequence[KeyRow]], Collection[bytes]] | None = None) -> int:
        """Do as ``prune`` does, where connections are asynchronous."""
        self._check_usable()
        return await run_async(self._pruned(refused))

    def _pruned(self, refused: Callable[[Sequence[KeyRow]], Collection[bytes]] | None) -> Steps[int]:
        count, after = 0, b""
        while rows := (yield from self._ask(functools.partial(_expired, after=after))):
            after = rows[-1].digest
            digests = {row.digest for row in rows}
            if refused is not None:
                digests -= set(refused(rows))
            count += yield from self._ask(functools.partial(_forget, digests=sorted(digests)))
        return count

    def ping(self) -> None:
        """Raise ``Unavailable`` if the database does not answer."""
        self._asked(lambda connection: connection.look(Identity("", "", "", "")))

    def counts(self) -> dict[str, int]:
        """Return what this inbox has seen: committed, done (there already), failed, refused, conflicts, in_progress,
        lost.
        """
        with self._lock:
            return dict(self._counts)

    @closes_anywhere
    def close(self) -> None:
        """Renew nothing any more, and close the connections that this inbox has made; not the user's."""
        if self._ended():
            run(self._home.close())

    async def aclose(self) -> None:
        """Close an inbox whose connections are asynchronous."""
        if self._ended():
            await run_async(self._home.close())

    def _ended(self) -> bool:
        """Note that the inbox is closed; tell whether there are connections to close."""
        if not self._closes_now():
            return False
        if self._keeper is not None:
            self._keeper.close()
        return True

    @property
    def retention_s(self) -> float | None:
        """How long keys are kept; ``None`` for ever."""
        return None if self._retention_us is None else self._retention_us / 1e6

    def _identity(self, message: object = None, *, key: str | None = None, **named: str | None) -> Identity:
        scope = {name: named.pop(name, None) for name in ("tenant", "topic", "group")}
        if named:
            error = f"unknown arguments: {', '.join(named)}"
            raise InvalidArgument(error)
        return keys.identify(self._told(message, key), default=self._default, **scope)

    def _stored(self, identity: Identity) -> Stored | None:
        return self._asked(lambda connection: connection.look(identity))

    def _there(self, identity: Identity) -> Stored:
        stored = self._stored(identity)
        if stored is None:
            error = f"{identity}: nothing is known of it"
            raise NotFound(error)
        if stored.status == "PENDING" and (stored.until_us or 0) > stored.now_us:
            error = f"{identity}: {stored.owner} is at it: try again when its lease is over"
            raise Unavailable(error, retry_after_s=((stored.until_us or 0) - stored.now_us) / 1e6)
        return stored

    def _change(self, identity: Identity, change: Callable[[Connection], Steps[bool]]) -> None:
        if not self._asked(change):
            error = f"{identity} has changed meanwhile: look at it again"
            raise Unavailable(error)

    def _asked(self, ask: Callable[[Connection], Steps[R]]) -> R:
        self._check_usable()
        return run(self._ask(ask))

    def _ask(self, ask: Callable[[Connection], Steps[R]]) -> Steps[R]:
        with explained(None):
            connection = yield from self._home.take()
            try:
                with explained(connection):
                    answer = yield from ask(connection)
            finally:
                yield from self._home.give_back(connection)
        return answer


def _expired(connection: Connection, after: bytes) -> Steps[list[KeyRow]]:
    return connection.expired(_AT_ONCE, after)


def _forget(connection: Connection, digests: list[bytes]) -> Steps[int]:
    return connection.forget(digests)


def _check_final(final: object) -> None:
    kinds = final if isinstance(final, tuple) else (None,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        message = f"final is {arguments.shown(final)}, must be a tuple of classes of errors, as in (ValueError,)"
        raise InvalidArgument(message)


def _span_us(name: str, seconds: float | None) -> int | None:
    if seconds is None:
        return None
    span_us = round(arguments.seconds(name, seconds) * 1_000_000)
    if span_us <= 0:
        message = f"{name} is {seconds}, must be more than 0"
        raise InvalidArgument(message)
    return span_us


def _known(row: KeyRow) -> KeyStory:
    identity, stored = row.identity, row.stored
    pending = stored.status == "PENDING" and stored.until_us is not None
    return KeyStory(
        tenant=identity.tenant,
        topic=identity.topic,
        group=identity.group,
        key=identity.key,
        effect_id=states.effect_id(row.digest),
        status=stored.status,
        attempts=stored.attempts,
        token=stored.token,
        owner=stored.owner,
        lease_left_s=((stored.until_us or 0) - stored.now_us) / 1e6 if pending else None,
        result=states.decode_result(stored.result),
        last_error=stored.error,
        final=stored.final,
        erased=stored.erased,
        first_us=stored.first_us,
        changed_us=stored.changed_us,
        keep_us=stored.keep_us,
        story=states.events(stored.story),
    )
