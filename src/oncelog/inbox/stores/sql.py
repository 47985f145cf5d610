"""Keys in a table of the user's own database: SQLite and PostgreSQL, through one set of statements.

``:name`` stands for a value, ``{now}`` for the store's clock in microseconds. In PostgreSQL that is the server's, so
that the clocks of workers need not agree; in SQLite it is that of the machine, which everybody who has the file shares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from oncelog.clock import Clock
from oncelog.inbox.contract import AttemptOutcome, HeldKey, KeyClaim, KeyRow
from oncelog.inbox.decisions import STATUSES, Identity, Status, Stored, event_tail, shortened, without_reasons
from oncelog.inbox.steps import Steps

Dialect = Literal["sqlite", "postgresql"]
Rows = list[tuple[Any, ...]]

TABLES = (
    """CREATE TABLE IF NOT EXISTS oncelog_inbox (
    id {bytes} PRIMARY KEY,
    tenant TEXT NOT NULL, topic TEXT NOT NULL, grp TEXT NOT NULL, key TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('PENDING', 'COMMITTED', 'FAILED')),
    nonce TEXT NOT NULL, token BIGINT NOT NULL, attempts BIGINT NOT NULL, owner TEXT NOT NULL,
    fingerprint {bytes}, until_us BIGINT, result {bytes}, error TEXT,
    final SMALLINT NOT NULL DEFAULT 0, erased SMALLINT NOT NULL DEFAULT 0,
    first_us BIGINT NOT NULL, changed_us BIGINT NOT NULL, keep_us BIGINT, story TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS oncelog_inbox_keep ON oncelog_inbox (keep_us) WHERE keep_us IS NOT NULL",
    """CREATE TABLE IF NOT EXISTS oncelog_position (
    name TEXT PRIMARY KEY, position BIGINT NOT NULL, state {bytes}, changed_us BIGINT NOT NULL)""",
)
_BYTES = {"sqlite": "BLOB", "postgresql": "BYTEA"}
_NOW = {"sqlite": ":now_us", "postgresql": "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"}
_GREATEST = {"sqlite": "max", "postgresql": "greatest"}
_LOCK = {"sqlite": "", "postgresql": " FOR UPDATE"}

_IDENTITY = "tenant, topic, grp, key"
_STORED = (
    "status, nonce, token, attempts, owner, fingerprint, until_us, result, error, final, erased, first_us, changed_us, "
    "keep_us, story"
)
_TOLD = "story || CAST({now} AS TEXT) || ' ' || CAST(token AS TEXT) || :tail"
_NEW = "VALUES (:id, :tenant, :topic, :grp, :key, :status, :nonce, {now}, 1, :owner, :fingerprint"
_CLAIM = f"""INSERT INTO oncelog_inbox (id, {_IDENTITY}, {_STORED})
{_NEW}, {{now}} + :lease_us, NULL, NULL, 0, 0, {{now}}, {{now}}, {{now}} + :retention_us,
CAST({{now}} AS TEXT) || ' ' || CAST({{now}} AS TEXT) || :tail)
ON CONFLICT (id) DO NOTHING RETURNING token"""
_READ = f"SELECT {_STORED}, {{now}} FROM oncelog_inbox WHERE id = :id"  # noqa: S608
_AGAIN = """UPDATE oncelog_inbox SET status = :status, nonce = :nonce, token = {greatest}(token + 1, {now}),
attempts = attempts + 1, owner = :owner, fingerprint = :fingerprint, until_us = {now} + :lease_us,
changed_us = {now}, keep_us = {now} + :retention_us, final = 0,
story = :story || CAST({now} AS TEXT) || ' ' || CAST({greatest}(token + 1, {now}) AS TEXT) || :tail
WHERE id = :id AND status = :was_status AND nonce = :was_nonce AND token = :was_token RETURNING token"""
_SETTLE = f"""UPDATE oncelog_inbox SET status = :status, result = :result, error = coalesce(:error, error),
final = :final, until_us = NULL, changed_us = {{now}}, keep_us = {{now}} + :retention_us, story = {_TOLD}
WHERE id = :id AND status = :was_status AND nonce = :was_nonce RETURNING 1"""  # noqa: S608
_NOTE = f"""INSERT INTO oncelog_inbox (id, {_IDENTITY}, {_STORED})
{_NEW}, NULL, NULL, :error, :final, 0, {{now}}, {{now}}, {{now}} + :retention_us,
CAST({{now}} AS TEXT) || ' ' || CAST({{now}} AS TEXT) || :tail)
ON CONFLICT (id) DO UPDATE SET attempts = oncelog_inbox.attempts + 1, error = excluded.error, final = excluded.final,
token = {{greatest}}(oncelog_inbox.token + 1, {{now}}), nonce = excluded.nonce, owner = excluded.owner,
changed_us = {{now}}, keep_us = excluded.keep_us, story = oncelog_inbox.story || CAST({{now}} AS TEXT) || ' ' ||
CAST({{greatest}}(oncelog_inbox.token + 1, {{now}}) AS TEXT) || :tail WHERE oncelog_inbox.status = 'FAILED'"""
_RENEW = """UPDATE oncelog_inbox SET until_us = {now} + :lease_us
WHERE id = :id AND status = 'PENDING' AND nonce = :nonce RETURNING 1"""
_ERASE = """UPDATE oncelog_inbox SET key = '', fingerprint = NULL, result = NULL, error = NULL, erased = 1,
story = :story WHERE id = :id AND status = :was_status AND nonce = :was_nonce RETURNING 1"""
_EXPIRED = f"""SELECT id, {_IDENTITY}, {_STORED}, {{now}} FROM oncelog_inbox
WHERE keep_us <= {{now}} AND status <> 'PENDING' AND id > :after ORDER BY id LIMIT :limit"""  # noqa: S608
_FORGET = "DELETE FROM oncelog_inbox WHERE id = :id AND keep_us <= {now} AND status <> 'PENDING' RETURNING 1"
_FIND = f"""SELECT id, {_IDENTITY}, {_STORED}, {{now}} FROM oncelog_inbox WHERE key = :key
ORDER BY changed_us DESC LIMIT :limit"""  # noqa: S608
_LATEST = f"""SELECT id, {_IDENTITY}, {_STORED}, {{now}} FROM oncelog_inbox WHERE status IN (:first, :second, :third)
ORDER BY changed_us DESC, id LIMIT :limit"""  # noqa: S608
_START = """INSERT INTO oncelog_position (name, position, state, changed_us) VALUES (:name, :position, NULL, {now})
ON CONFLICT (name) DO NOTHING"""
_POSITION = "SELECT position, state FROM oncelog_position WHERE name = :name{lock}"
_ADVANCE = """UPDATE oncelog_position SET position = :position, state = :state, changed_us = {now}
WHERE name = :name AND position = :was RETURNING 1"""
SCHEMA_LOCK = 0x6F6E63656C6F68
"""A connection that makes tables in PostgreSQL holds this: CREATE … IF NOT EXISTS alone is not safe against itself."""


class BoundStatement(NamedTuple):
    """A statement, with its values by name."""

    sql: str
    values: Mapping[str, object]


def tables(dialect: Dialect) -> list[str]:
    """Return the statements that make the tables, for those who make them themselves."""
    return [statement.replace("{bytes}", _BYTES[dialect]) for statement in TABLES]


class SqlConnection(ABC):
    """A connection to SQLite or PostgreSQL. What differs from driver to driver is how a call is made."""

    dialect: Dialect
    raw: Any

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    # What a driver does.

    @abstractmethod
    def busy(self) -> bool:
        """Tell whether the user has begun a transaction."""

    @abstractmethod
    def begin_with(self, call: BoundStatement | None) -> Steps[Rows]:
        """Begin a transaction, or a part of one, and make a call in it. Whatever is raised, nothing is left begun."""

    @abstractmethod
    def commit_with(self, call: BoundStatement | None) -> Steps[bool]:
        """Make a call that must give back a row, and commit; take all of it back, and return ``False``, if it gives
        none.
        """

    @abstractmethod
    def rollback(self) -> Steps[None]:
        """Take back what was begun."""

    @abstractmethod
    def make(self, call: BoundStatement) -> Steps[Rows]:
        """Make a call, in the transaction that was begun, or in one of its own."""

    @abstractmethod
    def lost(self) -> bool:
        """Tell whether the connection is of no use any more."""

    @abstractmethod
    def close(self) -> Steps[None]:
        """Close it."""

    @abstractmethod
    def lacks_tables(self, error: BaseException) -> bool:
        """Tell whether a call failed because the tables are not there."""

    # What all do alike.

    def call(self, statement: str, **values: object) -> BoundStatement:
        """Return a statement in this database's words."""
        sql = statement.replace("{now}", _NOW[self.dialect]).replace("{greatest}", _GREATEST[self.dialect])
        sql = sql.replace("{lock}", _LOCK[self.dialect])
        return BoundStatement(sql, values | {"now_us": self._clock.now_us()} if ":now_us" in sql else values)

    def begin(self) -> Steps[None]:
        """Begin a transaction, or a part of the one that the user has begun."""
        yield from self.begin_with(None)

    def commit(self) -> Steps[None]:
        """Commit what was begun."""
        yield from self.commit_with(None)

    def create_tables(self) -> Steps[None]:
        """Make what is missing, in a transaction of its own, or in that of the user."""
        yield from self.begin_with(None)
        try:
            if self.dialect == "postgresql":
                yield from self.make(self.call("SELECT pg_advisory_xact_lock(:lock)", lock=SCHEMA_LOCK))
            for statement in tables(self.dialect):
                yield from self.make(BoundStatement(statement, {}))
        except BaseException:
            yield from self.rollback()
            raise
        yield from self.commit_with(None)

    def begin_with_tables(self, call: BoundStatement) -> Steps[Rows]:
        """Begin with a call; where the tables are not there, make them first."""
        try:
            rows = yield from self.begin_with(call)
        except Exception as error:
            if not self.lacks_tables(error):
                raise
            yield from self.create_tables()
            rows = yield from self.begin_with(call)
        return rows

    def ask(self, call: BoundStatement) -> Steps[Rows]:
        """Make a call in a transaction of its own (or a part of the user's)."""
        rows = yield from self.begin_with_tables(call)
        yield from self.commit_with(None)
        return rows

    # The store.

    def claim(self, claim: KeyClaim) -> Steps[HeldKey | Stored]:
        """Begin, and take a key that is absent; return what is stored if it is not."""
        call = self.call(_CLAIM, **_claimed(claim), **_named(claim.identity))
        rows = yield from self.begin_with_tables(call)
        try:
            while not rows:
                stored = yield from self.read(claim.identity)
                if stored is not None:
                    return stored
                rows = yield from self.make(call)  # it was forgotten in between
        except BaseException:
            yield from self.rollback()
            raise
        return HeldKey(rows[0][0], 1, None)

    def read(self, identity: Identity) -> Steps[Stored | None]:
        """Return what is stored of a key."""
        rows = yield from self.make(self.call(_READ, id=identity.digest))
        return _stored(rows[0]) if rows else None

    def look(self, identity: Identity) -> Steps[Stored | None]:
        """Return what is stored of a key, outside of any effect."""
        rows = yield from self.ask(self.call(_READ, id=identity.digest))
        return _stored(rows[0]) if rows else None

    def claim_again(self, claim: KeyClaim, stored: Stored) -> Steps[HeldKey | None]:
        """Take a key over from the attempt that was seen there."""
        values = {**_claimed(claim), "fingerprint": claim.fingerprint or stored.fingerprint}
        call = self.call(_AGAIN, **values, **_seen(stored), was_token=stored.token, story=shortened(stored.story))
        rows = yield from self.make(call)
        return HeldKey(rows[0][0], stored.attempts + 1, stored.error) if rows else None

    def finish(self, claim: KeyClaim, outcome: AttemptOutcome) -> Steps[bool]:
        """Store how an attempt ended, and commit. In the user's own transaction the key has come with it, so that only
        a result is left to be stored.
        """
        if claim.lease_us is None and outcome.result is None:
            yield from self.commit_with(None)
            return True
        was = "PENDING" if claim.lease_us is not None else "COMMITTED"
        event = outcome.event if claim.lease_us is not None else "result"
        values = _settled(outcome, claim.owner if outcome.error is None else outcome.error, event)
        seen = {"id": claim.identity.digest, "was_status": was, "was_nonce": claim.nonce}
        call = self.call(_SETTLE, **values, **seen, retention_us=claim.retention_us)
        return (yield from self.commit_with(call))

    def note_failure(self, claim: KeyClaim, outcome: AttemptOutcome) -> Steps[None]:
        """Store that an attempt failed whose transaction was taken back."""
        values = {
            **_claimed(claim),
            **_named(claim.identity),
            "status": "FAILED",
            "error": outcome.error,
            "final": int(outcome.final),
            "tail": event_tail("failed", outcome.error or ""),
        }
        del values["lease_us"]
        yield from self.ask(self.call(_NOTE, **values))

    def settle(
        self, identity: Identity, stored: Stored, outcome: AttemptOutcome, retention_us: int | None
    ) -> Steps[bool]:
        """Store what somebody has decided about a key as it was seen."""
        values = {**_settled(outcome, outcome.error or "", outcome.event), **_seen(stored)}
        rows = yield from self.ask(self.call(_SETTLE, id=identity.digest, retention_us=retention_us, **values))
        return bool(rows)

    def renew(self, claim: KeyClaim) -> Steps[bool]:
        """Have the lease again, from now."""
        call = self.call(_RENEW, id=claim.identity.digest, nonce=claim.nonce, lease_us=claim.lease_us)
        return bool((yield from self.ask(call)))

    def erase(self, identity: Identity, stored: Stored) -> Steps[bool]:
        """Forget all but that the key was there."""
        call = self.call(_ERASE, id=identity.digest, story=without_reasons(stored.story), **_seen(stored))
        return bool((yield from self.ask(call)))

    def expired(self, limit: int, after: bytes) -> Steps[list[KeyRow]]:
        """Return keys that need not be kept any longer, in the order of their digests, from behind one."""
        rows = yield from self.ask(self.call(_EXPIRED, limit=limit, after=after))
        return [_row(row) for row in rows]

    def forget(self, digests: Sequence[bytes]) -> Steps[int]:
        """Remove keys that need not be kept any longer; return how many."""
        yield from self.begin_with(None)
        count = 0
        try:
            for digest in digests:
                count += len((yield from self.make(self.call(_FORGET, id=digest))))
        except BaseException:
            yield from self.rollback()
            raise
        yield from self.commit_with(None)
        return count

    def find(self, key: str, limit: int) -> Steps[list[KeyRow]]:
        """Return what is stored under a key."""
        rows = yield from self.ask(self.call(_FIND, key=key, limit=limit))
        return [_row(row) for row in rows]

    def latest(self, status: Status | None, limit: int) -> Steps[list[KeyRow]]:
        """Return the keys that changed last. The database looks at every key."""
        first, second, third = STATUSES if status is None else (status,) * 3
        rows = yield from self.ask(self.call(_LATEST, first=first, second=second, third=third, limit=limit))
        return [_row(row) for row in rows]

    # Positions of readers.

    def position(self, name: str, start: int) -> Steps[tuple[int, bytes | None]]:
        """Begin, and return a reader's position and state, which are this transaction's until it ends."""
        yield from self.begin_with_tables(self.call(_START, name=name, position=start))
        try:
            rows = yield from self.make(self.call(_POSITION, name=name))
        except BaseException:
            yield from self.rollback()
            raise
        return rows[0][0], _bytes(rows[0][1])

    def advance(self, name: str, was: int, position: int, state: bytes | None) -> Steps[bool]:
        """Store a reader's position and state, and commit, if it is where it was."""
        return (yield from self.commit_with(self.call(_ADVANCE, name=name, was=was, position=position, state=state)))


def _named(identity: Identity) -> dict[str, object]:
    return {"tenant": identity.tenant, "topic": identity.topic, "grp": identity.group, "key": identity.key}


def _claimed(claim: KeyClaim) -> dict[str, object]:
    leased = claim.lease_us is not None
    return {
        "id": claim.identity.digest,
        "status": "PENDING" if leased else "COMMITTED",
        "nonce": claim.nonce,
        "owner": claim.owner,
        "fingerprint": claim.fingerprint,
        "lease_us": claim.lease_us,
        "retention_us": None if leased else claim.retention_us,
        "tail": event_tail("claimed" if leased else "committed", claim.owner),
    }


def _settled(outcome: AttemptOutcome, detail: str, event: str) -> dict[str, object]:
    return {
        "status": outcome.status,
        "result": outcome.result,
        "error": outcome.error,
        "final": int(outcome.final),
        "tail": event_tail(event, detail),
    }


def _seen(stored: Stored) -> dict[str, object]:
    return {"was_status": stored.status, "was_nonce": stored.nonce}


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _stored(row: Sequence[Any]) -> Stored:
    status, nonce, token, attempts, owner, fingerprint, until_us, result, error, final, erased, *times, story, now = row
    return Stored(
        status=status,
        nonce=nonce,
        token=token,
        attempts=attempts,
        owner=owner,
        fingerprint=_bytes(fingerprint),
        until_us=until_us,
        result=_bytes(result),
        error=error,
        final=bool(final),
        erased=bool(erased),
        first_us=times[0],
        changed_us=times[1],
        keep_us=times[2],
        story=story,
        now_us=now,
    )


def _row(row: Sequence[Any]) -> KeyRow:
    digest, tenant, topic, group, key, *stored = row
    return KeyRow(bytes(digest), Identity(tenant, topic, group, key), _stored(stored))
