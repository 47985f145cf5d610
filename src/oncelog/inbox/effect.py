"""One effect: from taking its key to storing how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, NamedTuple

from oncelog import limits
from oncelog.arguments import stored_reason, told
from oncelog.errors import (
    CorruptionError,
    EffectFailed,
    IdConflict,
    InvalidArgument,
    LeaseLost,
    OncelogError,
    Unavailable,
    Unsupported,
)
from oncelog.errors import Outcome as OutcomeWord
from oncelog.inbox import decisions as states
from oncelog.inbox.contract import AttemptOutcome, Connection, HeldKey, KeyClaim
from oncelog.inbox.decisions import Expired, Identity, Stored, Verdict
from oncelog.inbox.leases import LeaseKeeper
from oncelog.inbox.steps import Steps, run, run_async
from oncelog.inbox.stores.connections import Home
from oncelog.inbox.stores.drivers import MOVED

_DRIVERS = {"sqlite3", "psycopg", "sqlalchemy", "redis"}
_AWAY = {"OperationalError", "InterfaceError", "ConnectionError", "TimeoutError", "BusyLoadingError"}

_DAMAGED = ("SQLITE_NOTADB", "SQLITE_CORRUPT")
"""The errors by which SQLite says that a file is not what SQLite wrote. A second attempt would find the same bytes."""

_TAKEN_BACK = "40"
"""The class of errors by which PostgreSQL says that it took a transaction back: a deadlock, a serialization failure."""

_at_work: ContextVar[frozenset[tuple[int, Identity]]] = ContextVar("oncelog_effects", default=frozenset())
"""The effects that this thread, or this task, is inside of."""


class InboxRules(NamedTuple):
    """The rules of an inbox."""

    expired: Expired
    final: tuple[type[BaseException], ...]
    returns: Any


class Effect:
    """An effect at work, or one that is there already (``done``): then ``result`` is what it gave.

    Whatever is done on ``connection`` is committed together with the key, or not at all; on an effect that is done
    already it is taken back.
    """

    def __init__(self, identity: Identity, connection: Connection, renew: Callable[[], bool] | None = None) -> None:
        self.key = identity.key
        self.tenant = identity.tenant
        self.topic = identity.topic
        self.group = identity.group
        self.done = False
        """Whether the effect is there already, and nothing is to be done."""
        self.result: Any = None
        """What the effect gave: set it, and every later attempt gets it."""
        self.token = 0
        """The number of this attempt: higher than any before it. Hand it to what can refuse an older one."""
        self.attempts = 0
        """How many attempts are known of, this one included."""
        self.last_error: str | None = None
        """Why the attempt before failed."""
        self._identity = identity
        self._connection = connection
        self._renew = renew

    @property
    def connection(self) -> Any:
        """The user's own connection, in the transaction of this effect (the client, in Redis)."""
        return self._connection.raw

    @property
    def id(self) -> str:
        """An id to hand to an outside system as its idempotency key: the same at every attempt, on every machine."""
        return self._identity.effect_id()

    def id_for(self, name: str) -> str:
        """Return another such id, for an effect that does more than one thing outside."""
        return self._identity.effect_id(name)

    def renew(self) -> None:
        """Have the whole lease again, from now; ``LeaseLost`` if another has taken the key. Without a lease there is
        nothing to renew: the transaction holds the key. ``Unsupported`` where the inbox has one connection alone.
        """
        if self._renew is not None and not self.done and not self._renew():
            raise LeaseLost(_lost(self._identity))

    def __repr__(self) -> str:
        """Show what it is."""
        return f"<Effect {self._identity}{' done' if self.done else ''}>"


class Once:
    """What ``Inbox.once`` returns: enter it with ``with`` or ``async with``, again only after leaving it.

    Each entering is an attempt of its own, with a nonce of its own: a store answers a claim with a nonce that it has
    stored as one whose first answer was lost.
    """

    def __init__(
        self,
        home: Home,
        claim: KeyClaim,
        rules: InboxRules,
        *,
        keeper: LeaseKeeper | None,
        given: Any,
        nonce: Callable[[], str],
        count: Callable[[str], None],
    ) -> None:
        self._home = home
        self._claim = claim
        self._rules = rules
        self._keeper = keeper
        self._given = given
        self._count = count
        self._nonce = nonce
        self._inside = threading.Lock()
        self._idempotent = bool(claim.identity.key)
        self._leased = claim.lease_us is not None
        self._stored_result: Any = None
        self._renewing: asyncio.Task[None] | None = None
        self.connection: Connection
        self.effect: Effect

    # Entering.

    def __enter__(self) -> Effect:
        effect = run(self._entered())
        if self._renews:
            assert self._keeper is not None
            self._keeper.add(self._claim)
        return effect

    async def __aenter__(self) -> Effect:
        effect = await run_async(self._entered())
        if self._renews:
            assert self._keeper is not None
            self._renewing = asyncio.create_task(self._keeper.keep(self._claim))
        return effect

    @property
    def _renews(self) -> bool:
        return self._keeper is not None and self._idempotent and not self.effect.done

    def _entered(self) -> Steps[Effect]:
        if not self._inside.acquire(blocking=False):
            message = f"{self._claim.identity}: this once() is entered already: ask the inbox for another one"
            raise InvalidArgument(message)
        try:
            return (yield from self._begun())
        except BaseException:
            self._inside.release()
            raise

    def _begun(self) -> Steps[Effect]:
        self._check_not_inside_itself()
        self._claim = self._claim._replace(nonce=self._nonce())
        with explained(None):
            self.connection = yield from self._home.take(self._given)
        self.effect = Effect(self._claim.identity, self.connection, self._renewal())
        try:
            with explained(self.connection):
                yield from self._enter()
        except BaseException:
            yield from self._home.give_back(self.connection, self._given)
            raise
        _at_work.set(_at_work.get() | {self._place})
        return self.effect

    def _renewal(self) -> Callable[[], bool] | None:
        keeper, claim = self._keeper, self._claim
        if not self._idempotent or not self._leased:
            return None
        return _cannot_renew if keeper is None else lambda: keeper.renew(claim)

    @property
    def _place(self) -> tuple[int, Identity]:
        return self._home.number, self._claim.identity

    def _check_not_inside_itself(self) -> None:
        if self._idempotent and not self._leased and self._place in _at_work.get():
            message = f"{self._claim.identity}: this effect is at work here already, and would wait for itself"
            raise InvalidArgument(message)

    def _enter(self) -> Steps[None]:
        if not self._idempotent:
            yield from self.connection.begin()
            return
        if self._leased and self.connection.busy():
            message = "a lease is stored before its effect begins, and this connection is in a transaction: commit it"
            raise InvalidArgument(message)
        held = None
        while held is None and not self.effect.done:
            held = yield from self._try()
        if held is not None:
            self.effect.token, self.effect.attempts, self.effect.last_error = held
        if self._leased:
            yield from self.connection.begin()

    def _try(self) -> Steps[HeldKey | None]:
        """Take the key once: return it, or note that the effect is there; ``None`` otherwise when it has to be tried
        again. Without a lease the transaction stays open.
        """
        found = yield from self.connection.claim(self._claim)
        try:
            held = found if isinstance(found, HeldKey) else (yield from self._try_stored(found))
        except BaseException:
            yield from self.connection.rollback()
            raise
        if self._leased or (held is None and not self.effect.done):
            yield from self.connection.commit()
        return held

    def _try_stored(self, stored: Stored) -> Steps[HeldKey | None]:
        identity = self._claim.identity
        try:
            verdict = states.judge(identity, stored, self._claim.fingerprint, self._rules.expired)
        except OncelogError as error:
            self._count(_COUNTED.get(type(error), "in_progress"))
            raise
        if verdict is Verdict.AGAIN:
            return (yield from self.connection.claim_again(self._claim, stored))
        if verdict is Verdict.FAIL:
            outcome = AttemptOutcome("FAILED", error=states.LEASE_EXPIRED, final=True, event="failed")
            yield from self.connection.settle(identity, stored, outcome, self._claim.retention_us)
            return None
        self.effect.done = True
        self._stored_result = states.decode_result(stored.result, self._rules.returns)
        self.effect.result = self._stored_result
        self.effect.token, self.effect.attempts = stored.token, stored.attempts
        self._count("done")
        return None

    # Leaving.

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeper is not None:
            self._keeper.drop(self._claim)
        run(self._left(error))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        await run_async(self._left(error))

    def _left(self, error: BaseException | None) -> Steps[None]:
        _at_work.set(_at_work.get() - {self._place})
        try:
            with explained(self.connection, "unknown"):
                if error is not None:
                    yield from self._failed(error)
                elif self.effect.done:
                    yield from self.connection.rollback()
                    self.effect.result = self._stored_result  # whatever a handler that did not ask has made of it
                else:
                    yield from self._finish()
        finally:
            try:
                yield from self._home.give_back(self.connection, self._given)
            finally:
                self._inside.release()

    def _finish(self) -> Steps[None]:
        try:
            result, plain = encoded(self.effect.result, self._rules.returns)
        except InvalidArgument as error:
            yield from self._failed(error)
            raise
        if not self._idempotent:
            yield from self.connection.commit()
            return
        try:
            kept = yield from self.connection.finish(self._claim, AttemptOutcome("COMMITTED", result))
        except Exception as error:  # what the user did cannot be committed, or nobody knows whether it was
            if _explanation(error, self.connection, "unknown") is None:
                yield from self._note(error)
            raise
        if not kept:
            self._count("lost")
            raise LeaseLost(_lost(self._claim.identity))
        self._count("committed")
        self.effect.result = plain

    def _failed(self, error: BaseException) -> Steps[None]:
        """Take back what was done, and store why. The user's error goes on its way, unless the connection is gone."""
        yield from self.connection.rollback()
        if self.connection.lost():
            message = f"{self._claim.identity}: the connection was lost ({error}): try again"
            raise Unavailable(message) from error
        if self._idempotent and not self.effect.done and not isinstance(error, LeaseLost):
            yield from self._note(error)

    def _note(self, error: BaseException) -> Steps[None]:
        reason = error.error if isinstance(error, EffectFailed) else told(error)
        final = isinstance(error, (EffectFailed, *self._rules.final))
        outcome = AttemptOutcome("FAILED", error=stored_reason(reason), final=final, event="failed")
        try:
            if self._leased:
                yield from self.connection.begin()
                yield from self.connection.finish(self._claim, outcome)
            else:
                yield from self.connection.note_failure(self._claim, outcome)
        except Exception as second:  # noqa: BLE001  the first error is the one that counts
            error.add_note(f"and that it failed could not be stored: {second}")
        self._count("failed")


_COUNTED: dict[type[OncelogError], str] = {IdConflict: "conflicts", EffectFailed: "refused", Unavailable: "in_progress"}


def _cannot_renew() -> bool:
    message = (
        "this inbox has one connection, which is in the transaction of the effect: others would not see a longer lease "
        "before that ends; give the inbox a function that connects, an engine, a pool or a URL"
    )
    raise Unsupported(message)


def _lost(identity: Identity) -> str:
    return (
        f"{identity}: the lease of this attempt ran out, and another has taken the key: what this one did is not "
        "recorded, the other's result stands"
    )


def encoded(result: object, returns: Any) -> tuple[bytes | None, Any]:
    """Return a result as it is stored, and as every later attempt will get it."""
    try:
        stored = states.encode_result(result)
        plain = states.decode_result(stored, returns)
    except Exception as error:  # whatever a user's object or type raises
        message = f"a result of type {type(result).__name__} cannot be stored ({error}): give plain values"
        raise InvalidArgument(message) from error
    if stored is not None and len(stored) > limits.INBOX_RESULT_BYTES_MAX:
        message = f"a result of {len(stored)} bytes: at most {limits.INBOX_RESULT_BYTES_MAX} are stored"
        raise InvalidArgument(message)
    return stored, plain


# What drivers raise, in the words of the tree.


class explained:  # noqa: N801  (used as a verb)
    """Within it, a driver's errors are said as what they mean to a user of the inbox."""

    __slots__ = ("_connection", "_outcome")

    def __init__(self, connection: Connection | None, outcome: OutcomeWord = "not written") -> None:
        self._connection = connection
        self._outcome = outcome

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            meant = _explanation(error, self._connection, self._outcome)
            if meant is not None:
                raise meant from error


def _explanation(error: Exception, connection: Connection | None, outcome: OutcomeWord) -> OncelogError | None:
    """Return what an error means, if it comes from a driver: the database is away, too busy, or damaged."""
    if isinstance(error, OncelogError):
        return None
    original = getattr(error, "orig", None) or error
    if str(getattr(original, "sqlite_errorname", "")).startswith(_DAMAGED):
        return CorruptionError(f"the inbox's database is damaged, or is no database of SQLite ({original}): restore it")
    kinds = type(original).__mro__
    of_driver = bool({kind.__module__.partition(".")[0] for kind in kinds} & _DRIVERS)
    away = bool({kind.__name__ for kind in kinds} & _AWAY)
    if not of_driver or not (away or (connection is not None and connection.lost())):
        return None
    first_line = str(original).partition("\n")[0]
    if getattr(original, "sqlite_errorname", "") == MOVED:
        first_line = "its file was moved, removed or replaced"
    if str(getattr(original, "sqlstate", "")).startswith(_TAKEN_BACK):
        outcome = "not written"
    return Unavailable(f"the inbox's database cannot be used now ({first_line}): try again", outcome=outcome)
