"""One transaction of the user's own: what the effect did, its key and its result are there together, or not at all."""

# ruff: noqa: PT012  (what is raised comes out of a `with`, and its body is what leads to it)

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis.asyncio
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from oncelog import Inbox, InvalidArgument, LeaseLost, Unavailable, Unsupported
from oncelog.inbox.decisions import Identity
from oncelog.inbox.steps import Steps
from oncelog.inbox.stores.sql import SqlConnection
from tests.inbox.places import INSERT, AnyPlace, Place
from tests.inbox.proxy import Proxy


def test_work_on_an_effect_that_is_done_is_taken_back(database: AnyPlace) -> None:
    """A handler that forgets to ask whether it is done has its effect once all the same."""
    with database.inbox() as inbox:
        for _ in range(3):
            with inbox.once("k") as effect:
                database.act(effect.connection)
    assert database.effects() == ["effect"]


def test_the_users_own_transaction_is_joined(database: AnyPlace) -> None:
    """Anybody who has begun a transaction ends it: the effect is there if they commit, else it may come again."""
    connection = database.connect()
    inbox = Inbox(connection)
    for end in ("rollback", "commit", "commit"):
        database.act(connection, "before")
        with inbox.once("k") as effect:
            if not effect.done:
                database.act(connection)
                effect.result = 5
        assert effect.result == 5
        getattr(connection, end)()
    assert sorted(database.effects()) == ["before", "before", "effect"] or _commits_each(database)


def _commits_each(database: AnyPlace) -> bool:
    """Tell whether the connection commits every statement, so that there is no transaction to join."""
    autocommit = database.driver in ("sqlite3", "psycopg, autocommit")
    return autocommit and sorted(database.effects()) == ["before"] * 3 + ["effect"]


def test_an_error_in_a_joined_effect_takes_back_its_own_part(database: AnyPlace) -> None:
    """What the user did before in the same transaction stays, and the key can be tried again."""
    connection = database.connect()
    inbox = Inbox(connection)
    database.act(connection, "before")
    with pytest.raises(RuntimeError), inbox.once("k"):
        database.act(connection)
        raise RuntimeError
    with inbox.once("k") as effect:
        database.act(connection, "second")
    connection.commit()
    assert effect.attempts == 2
    assert sorted(database.effects()) == ["before", "second"]


def test_committing_inside_is_refused(database: AnyPlace) -> None:
    """The transaction is the inbox's to end; anybody who ends it learns so the first time."""
    refused = pytest.raises(Exception, match=r"(?i)commit|closed transaction")
    with database.inbox() as inbox, refused, inbox.once("k") as effect:
        database.act(effect.connection)
        if isinstance(effect.connection, psycopg.Connection):
            effect.connection.execute("COMMIT")
        else:
            effect.connection.commit()


def test_a_lease_is_not_taken_inside_of_a_transaction(database: AnyPlace) -> None:
    """It would be stored with the transaction, which is too late."""
    connection = database.connect()
    database.act(connection)
    if database.driver in ("sqlite3", "psycopg, autocommit"):
        connection.execute("BEGIN")
    with pytest.raises(InvalidArgument, match="in a transaction"), Inbox(connection, lease_s=60).once("k"):
        pass
    connection.rollback()


def test_what_cannot_be_committed_is_not_there(postgres_url: str) -> None:
    """A constraint that fails at the commit takes the key with it."""
    place = Place("psycopg", postgres_url)
    with place.direct() as direct:
        direct.execute("CREATE TABLE parent (id INT PRIMARY KEY)")
        direct.execute("CREATE TABLE child (id INT REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    with place.inbox() as inbox:
        for result in (None, 7):
            with pytest.raises(psycopg.errors.ForeignKeyViolation), inbox.once("k") as effect:
                effect.connection.execute("INSERT INTO child VALUES (1)")
                effect.result = result
        known = inbox.look("k")
        assert known is not None
        assert (known.status, known.attempts) == ("FAILED", 2)
        with place.direct() as direct:
            assert direct.execute("SELECT count(*) FROM child").fetchone() == (0,)
    place.close()


def test_an_error_that_was_caught_inside_is_not_committed_silently(database: AnyPlace) -> None:
    """PostgreSQL answers COMMIT after a failed statement by taking all back, and calls that no error: who believed
    it would acknowledge a message whose effect is nowhere.
    """
    assert isinstance(database, Place)
    with database.inbox() as inbox:
        for key in ("k", ""):
            raised = False
            try:
                with inbox.once(key) as effect:
                    database.act(effect.connection)
                    with contextlib.suppress(Exception):
                        database.run(effect.connection, "INSERT INTO nowhere VALUES (1)")
            except InvalidArgument as error:
                raised = "failed" in str(error)
            assert raised == (database.effects() == [])
            assert not raised or not inbox.show("k") or inbox.show("k")[0].status == "FAILED"
            with database.direct() as direct:
                direct.execute("DELETE FROM effects")


@pytest.mark.parametrize("driver", ["sqlite3", "SQLAlchemy, SQLite"])
@pytest.mark.parametrize("result", [None, 7])
def test_what_sqlite_cannot_commit_is_taken_back(tmp_path: Path, driver: str, result: object) -> None:
    """A commit that fails leaves a transaction in SQLite, which must not live on with the effect and its key in it."""
    place = Place(driver, str(tmp_path / "shop.sqlite"))
    with place.direct() as direct:
        direct.execute("CREATE TABLE parent (id INT PRIMARY KEY)")
        direct.execute("CREATE TABLE child (id INT REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
    connection = place.connect()
    place.run(connection, "PRAGMA foreign_keys = ON")
    connection.commit()
    inbox = Inbox(connection)
    with pytest.raises(Exception, match="FOREIGN KEY"), inbox.once("k") as effect:
        place.run(connection, "INSERT INTO child VALUES (1)")
        effect.result = result
    with inbox.once("k") as effect:
        assert (effect.done, effect.attempts) == (False, 2)
        place.act(connection)
    assert place.effects() == ["effect"]
    with place.direct() as direct:
        assert direct.execute("SELECT count(*) FROM child").fetchone() == (0,)
    place.close()


def test_an_attempt_that_is_cancelled_while_it_looks_leaves_nothing_begun(postgres_url: str) -> None:
    """The next effect on the connection would be a part of a transaction that nobody ends."""
    place = Place("psycopg", postgres_url)

    async def cancelled() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            inbox = Inbox(connection)
            async with inbox.once("k"):
                pass
            with pytest.raises(asyncio.CancelledError), pytest.MonkeyPatch.context() as patched:
                patched.setattr(SqlConnection, "read", _cancelled)
                async with inbox.once("k"):
                    pass
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    asyncio.run(cancelled())
    place.close()


def _cancelled(self: SqlConnection, identity: Identity) -> Steps[None]:
    yield from ()
    raise asyncio.CancelledError


def test_two_at_once_one_waits_for_the_other(postgres_url: str) -> None:
    """Without a lease the transaction holds the key: the second of two gets the first one's result."""
    place = Place("psycopg", postgres_url)
    with place.inbox() as inbox:
        inbox.ping()
        waiting = threading.Event()
        found: list[Any] = []

        def second() -> None:
            waiting.set()
            with inbox.once("k") as effect:
                found.append((effect.done, effect.result))

        with inbox.once("k") as effect:
            thread = threading.Thread(target=second)
            thread.start()
            waiting.wait()
            place.act(effect.connection)
            effect.result = "first"
        thread.join()
    assert found == [(True, "first")]
    assert place.effects() == ["effect"]
    place.close()


def test_tables_are_made_once_by_many_who_come_first(postgres_url: str) -> None:
    """Workers that start together all find, or make, the tables."""
    place = Place("psycopg, autocommit", postgres_url)
    gate = threading.Barrier(6)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with place.inbox() as inbox:
                gate.wait()
                with inbox.once(f"k{number % 2}") as effect:
                    place.act(effect.connection)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(place.effects()) == 2
    place.close()


def test_a_lost_connection_is_unavailable_and_nothing_is_there(postgres_url: str) -> None:
    """The server ends the session inside an effect: nothing is stored, the next attempt gets a new connection."""
    place = Place("psycopg, autocommit", postgres_url)
    with place.inbox() as inbox:
        with pytest.raises(Unavailable), inbox.once("k") as effect:
            place.act(effect.connection)
            with place.direct() as direct:
                direct.execute("SELECT pg_terminate_backend(%s)", (effect.connection.info.backend_pid,))
            place.act(effect.connection)
        with pytest.raises(Unavailable) as unknown, inbox.once("k") as effect:
            place.act(effect.connection)
            with place.direct() as direct:
                direct.execute("SELECT pg_terminate_backend(%s)", (effect.connection.info.backend_pid,))
        assert unknown.value.outcome == "unknown"
        assert place.effects() == []
        with inbox.once("k") as effect:
            place.act(effect.connection)
    assert place.effects() == ["effect"]
    place.close()


def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    """Anybody who catches ``Unavailable`` tries again; nothing of the driver's own comes through."""
    for home in (f"postgresql:///postgres?host={tmp_path}", f"unix://{tmp_path}/redis"):
        with Inbox(home) as inbox:
            with pytest.raises(Unavailable), inbox.once("k"):
                pass
            with pytest.raises(Unavailable):
                inbox.ping()


def test_a_folder_that_is_not_there_is_no_outage(tmp_path: Path) -> None:
    """Trying again makes no folder: the error says which one is missing."""
    with Inbox(f"sqlite:////{tmp_path}/no/x") as inbox:
        with pytest.raises(InvalidArgument, match="no is not a folder"), inbox.once("k"):
            pass
        with pytest.raises(InvalidArgument, match="no is not a folder"):
            inbox.ping()


def test_homes_that_are_none() -> None:
    """What an inbox cannot live in is refused where it is given."""
    for bad in (None, 7, "mysql://x", b""):
        with pytest.raises(InvalidArgument):
            Inbox(bad)
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection:
        connection.dialect.name = "mysql"
        with pytest.raises(Unsupported), Inbox(connection).once("k"):
            pass
    for bad_options in ({"expired": "later"}, {"lease_s": 0}, {"retention_s": -1}, {"tenant": "x" * 2000}):
        with pytest.raises(InvalidArgument):
            Inbox(sqlite3.connect(":memory:"), **bad_options)


class Counted:
    """A transaction of one INSERT, alone or as an effect with a result, behind a proxy that counts."""

    def __init__(self, proxy: Proxy, url: str) -> None:
        self._proxy = proxy
        self._url = url

    def added(self, open: Any, act: Any, alone: Any) -> int:
        """Return how many round trips the inbox adds."""
        counted = []
        with open() as connection:
            inbox = Inbox(connection)
            for number in range(3):  # the first makes the tables
                self._proxy.arm(0, 0)
                alone(connection)
                trips = self._proxy.trips
                with inbox.once(f"{open}{number}") as effect:
                    act(connection)
                    effect.result = number
                counted.append(self._proxy.trips - 2 * trips)
        return max(counted[1:])

    async def added_async(self, open: Any, act: Any, alone: Any) -> int:
        """Return how many round trips the inbox adds, with ``await``."""
        counted = []
        async with open() as connection:
            inbox = Inbox(connection)
            for number in range(3):
                self._proxy.arm(0, 0)
                await alone(connection)
                trips = self._proxy.trips
                async with inbox.once(f"{open}{number}") as effect:
                    await act(connection)
                    effect.result = number
                counted.append(self._proxy.trips - 2 * trips)
        return max(counted[1:])


@pytest.fixture
def counted(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    """Count at a socket before the server's."""
    Place("psycopg", postgres_url).close()
    folder = tmp_path_factory.mktemp("p")
    host = str(psycopg.conninfo.conninfo_to_dict(postgres_url)["host"])
    with Proxy(folder / ".s.PGSQL.5432", Path(host) / ".s.PGSQL.5432") as proxy:
        yield Counted(proxy, postgres_url.replace(host, str(folder)))


def _alone(connection: psycopg.Connection) -> None:
    with connection.transaction():
        connection.execute(INSERT.format("alone"))


@pytest.mark.parametrize("autocommit", [True, False])
def test_at_most_one_round_trip_is_added(counted: Counted, autocommit: bool) -> None:  # noqa: FBT001
    """The key goes with BEGIN and the result with COMMIT: counted at the socket, there and back."""
    added = counted.added(
        lambda: psycopg.connect(counted._url, autocommit=autocommit),
        lambda connection: connection.execute(INSERT.format("effect")),
        _alone,
    )
    assert added <= (0 if autocommit else 1)


@pytest.mark.parametrize("of", ["connection", "session"])
def test_at_most_one_round_trip_is_added_through_sqlalchemy(counted: Counted, of: str) -> None:
    """The result goes with COMMIT there too, below SQLAlchemy, which learns that it is committed."""
    url = counted._url.replace("postgresql://", "postgresql+psycopg://")
    statement = sqlalchemy.text(INSERT.format("effect"))
    engine = sqlalchemy.create_engine(url)

    def alone(connection: Any) -> None:
        connection.execute(statement)
        connection.commit()

    opened: Any = engine.connect if of == "connection" else lambda: Session(engine)
    assert counted.added(opened, lambda connection: connection.execute(statement), alone) == 1
    engine.dispose()


@pytest.mark.parametrize("of", ["connection", "session"])
def test_at_most_one_round_trip_is_added_through_asynchronous_sqlalchemy(counted: Counted, of: str) -> None:
    """The same with ``await``."""
    url = counted._url.replace("postgresql://", "postgresql+psycopg://")
    statement = sqlalchemy.text(INSERT.format("effect"))

    async def alone(connection: Any) -> None:
        await connection.execute(statement)
        await connection.commit()

    async def run() -> int:
        engine = create_async_engine(url)
        opened: Any = engine.connect if of == "connection" else lambda: AsyncSession(engine)
        added = await counted.added_async(opened, lambda connection: connection.execute(statement), alone)
        await engine.dispose()
        return added

    assert asyncio.run(run()) == 1


class _Base(DeclarativeBase):
    pass


class _Effect(_Base):
    __tablename__ = "mapped"
    name: Mapped[str] = mapped_column(primary_key=True)


@pytest.mark.parametrize("listening", [False, True])
def test_what_a_session_has_not_written_yet_is_part_of_the_effect(postgres_url: str, listening: bool) -> None:  # noqa: FBT001
    """Objects that wait for the commit, and those that somebody adds just before it, are there with the key or not at
    all: they are not written behind a commit that the inbox sent ahead.
    """
    place = Place("a session of SQLAlchemy, PostgreSQL", postgres_url)
    with place.direct() as direct:
        direct.execute("CREATE TABLE mapped (name TEXT PRIMARY KEY CHECK (name <> 'bad'))")
    session = place.connect()
    inbox = Inbox(session)
    inbox.ping()
    if listening:
        sqlalchemy.event.listen(session, "before_commit", lambda heard: heard.merge(_Effect(name="late")))
    for name in ("bad", "good"):
        with contextlib.suppress(sqlalchemy.exc.IntegrityError), inbox.once(name) as effect:
            session.add(_Effect(name=name))
            effect.result = name
    with place.direct() as direct:
        found = [row[0] for row in direct.execute("SELECT name FROM mapped ORDER BY name").fetchall()]
        keys = direct.execute("SELECT key, status FROM oncelog_inbox ORDER BY key").fetchall()
    assert found == (["good", "late"] if listening else ["good"])
    assert keys == [("bad", "FAILED"), ("good", "COMMITTED")]
    place.close()


@pytest.mark.parametrize("driver", ["SQLAlchemy, PostgreSQL", "a session of SQLAlchemy, PostgreSQL"])
def test_what_sqlalchemy_cannot_commit_is_an_error_of_its_own(postgres_url: str, driver: str) -> None:
    """Who catches SQLAlchemy's errors catches those of a commit; a server that goes away is ``Unavailable``, and
    the connection is good again afterwards.
    """
    place = Place(driver, postgres_url)
    with place.direct() as direct:
        direct.execute("CREATE TABLE parent (id INT PRIMARY KEY)")
        direct.execute("CREATE TABLE child (id INT REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    connection = place.connect()
    inbox = Inbox(connection)
    for _ in range(2):
        with pytest.raises(sqlalchemy.exc.IntegrityError, match="ForeignKeyViolation"), inbox.once("k") as effect:
            place.run(connection, "INSERT INTO child VALUES (1)")
            effect.result = 7
    with pytest.raises(Unavailable) as unknown, inbox.once("k") as effect:
        place.act(connection)
        pid = connection.execute(sqlalchemy.text("SELECT pg_backend_pid()")).scalar()
        with place.direct() as direct:
            direct.execute("SELECT pg_terminate_backend(%s)", (pid,))
        effect.result = 7
    assert unknown.value.outcome == "unknown"
    assert place.effects() == []
    connection.rollback()
    with inbox.once("k") as effect:
        assert (effect.done, effect.attempts) == (False, 3)
        place.act(connection)
        effect.result = 8
    assert place.effects() == ["effect"]
    place.close()


def test_a_redis_that_forgets_keys_is_refused(redis_socket: Path) -> None:
    """An effect whose key was evicted would happen again: better to say so before the first."""
    with redis.Redis(unix_socket_path=str(redis_socket)) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(Unsupported, match="noeviction"), Inbox(client).once("k"):
                pass
        finally:
            client.config_set("maxmemory-policy", "noeviction")


def test_a_client_that_sends_again_what_was_done_is_answered_again(redis_socket: Path) -> None:
    """Redis clients repeat a command whose answer was lost: the key is still one's own, and the end is the same."""

    class Repeating(redis.Redis):
        def evalsha(self, *arguments: Any) -> Any:
            super().evalsha(*arguments)
            return super().evalsha(*arguments)

    client = Repeating(unix_socket_path=str(redis_socket))
    client.flushall()
    inbox = Inbox(client)
    with pytest.raises(RuntimeError), inbox.once("k"):
        raise RuntimeError
    with inbox.once("k") as effect:
        assert (effect.done, effect.attempts, effect.last_error) == (False, 2, "RuntimeError: ")
        effect.result = 7
    with inbox.once("k") as effect:
        assert (effect.done, effect.result) == (True, 7)
    known = inbox.look("k")
    assert known is not None
    assert [event.what for event in known.story] == ["claimed", "failed", "claimed", "committed"]
    client.close()


def test_redis_behind_a_function_needs_a_lease(redis_socket: Path) -> None:
    """There is no transaction that could hold the key: without a lease two would be at work at once."""
    client = redis.Redis(unix_socket_path=str(redis_socket))
    with Inbox(lambda: client) as inbox, pytest.raises(InvalidArgument, match="lease_s"), inbox.once("k"):
        pass
    with Inbox(sqlite3.connect(":memory:")) as inbox, pytest.raises(InvalidArgument, match="lease_s"):
        inbox.once("k", connection=client).__enter__()
    client.close()


# Asynchronous connections.


async def _twice(inbox: Inbox, act: Any) -> list[Any]:
    found: list[Any] = []
    for _ in range(2):
        async with inbox.once("k") as effect:
            await act(effect.connection)
            effect.result = 0 if not effect.done else 1
        found.append((effect.done, effect.result))
    with pytest.raises(RuntimeError):
        async with inbox.once("failing") as effect:
            await act(effect.connection)
            raise RuntimeError
    async with inbox.once("failing") as effect:
        found.append(effect.last_error)
        await act(effect.connection)
    return found


EXPECTED = [(False, 0), (True, 0), "RuntimeError: "]


def test_psycopg_asynchronous(postgres_url: str) -> None:
    """The same promises, with ``await``; and a lease that is lost is lost there too."""
    place = Place("psycopg", postgres_url)

    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            found = await _twice(Inbox(connection), lambda raw: raw.execute(INSERT.format("effect")))
            assert found == EXPECTED

        async def connect() -> Any:
            return await psycopg.AsyncConnection.connect(postgres_url)

        inbox = Inbox(connect, lease_s=60)
        with pytest.raises(LeaseLost):
            async with inbox.once("leased") as effect:
                await effect.connection.execute(INSERT.format("late"))
                place.expire()
                async with inbox.once("leased") as second:
                    await second.connection.execute(INSERT.format("prompt"))
        with pytest.raises(InvalidArgument, match="asynchronous"), inbox.once("plain"):
            pass
        await inbox.aclose()

    asyncio.run(run())
    assert sorted(place.effects()) == ["effect", "effect", "prompt"]
    place.close()


def test_sqlalchemy_asynchronous(postgres_url: str) -> None:
    """An ``AsyncEngine`` is a home."""
    place = Place("psycopg", postgres_url)

    async def run() -> None:
        engine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
        statement = sqlalchemy.text(INSERT.format("effect"))
        assert await _twice(Inbox(engine), lambda raw: raw.execute(statement)) == EXPECTED
        await engine.dispose()

    asyncio.run(run())
    assert place.effects() == ["effect", "effect"]
    place.close()


def test_redis_asynchronous(redis_socket: Path) -> None:
    """An asynchronous client is a home; what it did outside is not taken back, so it is asked first."""

    async def run() -> None:
        async with redis.asyncio.Redis(unix_socket_path=str(redis_socket)) as client:
            await client.flushall()

            async def act(raw: Any) -> None:
                await raw.incr("effects")

            assert await _twice(Inbox(client), act) == EXPECTED
            assert await client.get("effects") == b"4"  # with one that did not ask, and one that failed

    asyncio.run(run())


def test_a_plain_connection_in_an_async_handler(tmp_path: Path) -> None:
    """SQLite is as quick as a look-up: its connection serves a coroutine as it is."""
    place = Place("sqlite3", str(tmp_path / "shop.sqlite"))

    async def act(raw: Any) -> None:
        place.act(raw)

    with place.inbox() as inbox:
        assert asyncio.run(_twice(inbox, act)) == EXPECTED
    assert place.effects() == ["effect", "effect"]
    place.close()
