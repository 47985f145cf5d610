"""What strangers do: effects inside of effects, connections in odd states, results of all kinds. None of it may commit
an effect without its key, or leave a transaction behind.
"""

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
import sqlalchemy
from sqlalchemy.orm import Session

from oncelog import Inbox, InvalidArgument, Unavailable
from tests.inbox.places import INSERT, AnyPlace, Place


@pytest.fixture
def server_place(postgres_url: str) -> Iterator[Place]:
    """Return a place on PostgreSQL, through psycopg."""
    made = Place("psycopg", postgres_url)
    yield made
    made.close()


def test_effects_inside_of_effects(database: AnyPlace) -> None:
    """An inner one on the same connection is a part of the outer: its failure takes back its own, that of the outer
    takes back both.
    """
    connection = database.connect()
    inbox = Inbox(connection)
    with inbox.once("outer") as outer:
        database.act(connection, "outer")
        with inbox.once("inner") as inner:
            database.act(connection, "inner")
            inner.result = 0
        with pytest.raises(RuntimeError), inbox.once("failing"):
            database.act(connection, "failing")
            raise RuntimeError
        outer.result = 1
    assert sorted(database.effects()) == ["inner", "outer"]
    with pytest.raises(RuntimeError), inbox.once("second outer"):
        with inbox.once("second inner"):
            database.act(connection, "second")
        raise RuntimeError
    assert sorted(database.effects()) == ["inner", "outer"]
    statuses = [inbox.show(key)[0].status for key in ("outer", "inner", "failing", "second outer")]
    assert statuses == ["COMMITTED", "COMMITTED", "FAILED", "FAILED"]
    assert inbox.show("second inner") == []


def test_an_abandoned_effect_stops_no_effect_of_another_inbox() -> None:
    """A new inbox can lie where the abandoned one lay in memory: its effects are not at work already."""
    Inbox(sqlite3.connect(":memory:")).once("k").__enter__()
    for _ in range(50):
        with Inbox(sqlite3.connect(":memory:")).once("k") as effect:
            assert not effect.done


def test_an_effect_inside_of_itself_is_refused(kind: AnyPlace) -> None:
    """It would wait for a lock that it holds itself; a task that it started would, too."""
    with kind.inbox(**({} if kind.transactional else {"lease_s": 60})) as inbox:
        refused = InvalidArgument if kind.transactional else Unavailable
        with inbox.once("k"):
            with pytest.raises(refused), inbox.once("k"):
                pass
            with pytest.raises(refused):
                asyncio.run(_enter(inbox, "k"))
        assert inbox.once("k").__enter__().done


async def _enter(inbox: Inbox, key: str) -> None:
    async with inbox.once(key):
        pass


def test_one_connection_is_one_threads_at_a_time(tmp_path: Path) -> None:
    """What two threads do on it would be one transaction, and the first who ends it would end the other's."""
    place = Place("sqlite3", str(tmp_path / "shop.sqlite"))
    inbox = Inbox(place.connect())
    failed: list[BaseException] = []

    def other(key: str) -> None:
        try:
            with inbox.once(key) as effect:
                place.act(effect.connection, key)
        except InvalidArgument as error:
            failed.append(error)

    with inbox.once("mine") as effect:
        thread = threading.Thread(target=other, args=("refused",))
        thread.start()
        thread.join()
        place.act(effect.connection, "mine")
    thread = threading.Thread(target=other, args=("later",))
    thread.start()
    thread.join()
    assert "another thread" in str(failed[0])
    assert (len(failed), place.effects()) == (1, ["mine", "later"])
    place.close()


def test_tasks_that_share_one_connection_are_told_so(server_place: Place, postgres_url: str) -> None:
    """The same among tasks of one thread."""

    async def run() -> tuple[Any, Any]:
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            inbox = Inbox(connection)
            begun = asyncio.Event()
            go_on = asyncio.Event()

            async def first() -> None:
                async with inbox.once("first") as effect:
                    begun.set()
                    await go_on.wait()
                    await effect.connection.execute(INSERT.format("first"))

            async def second() -> None:
                await begun.wait()
                try:
                    await _enter(inbox, "second")
                finally:
                    go_on.set()

            return await asyncio.gather(first(), second(), return_exceptions=True)

    done, refused = asyncio.run(run())
    assert done is None
    assert isinstance(refused, InvalidArgument)
    assert server_place.effects() == ["first"]


@pytest.mark.parametrize("make", [sqlalchemy.Engine.connect, Session])
def test_a_connection_that_commits_every_statement_is_refused(server_place: Place, make: Any) -> None:
    """With AUTOCOMMIT, SQLAlchemy has transactions that are none: an effect that failed would be there."""
    url = server_place._url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with make(engine) as connection, pytest.raises(InvalidArgument, match="AUTOCOMMIT"), Inbox(connection).once("k"):
        connection.execute(sqlalchemy.text(INSERT.format("effect")))
    engine.dispose()
    assert server_place.effects() == []


def test_autocommit_of_sqlalchemy_on_sqlite_is_a_transaction_all_the_same(tmp_path: Path) -> None:
    """There the inbox begins it itself."""
    place = Place("sqlite3", str(tmp_path / "shop.sqlite"))
    engine = sqlalchemy.create_engine(f"sqlite:///{place._url}", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        inbox = Inbox(connection)
        with pytest.raises(RuntimeError), inbox.once("k"):
            connection.execute(sqlalchemy.text(INSERT.format("failed")))
            raise RuntimeError
        with inbox.once("k") as effect:
            connection.execute(sqlalchemy.text(INSERT.format("effect")))
            effect.result = 1
        assert inbox.once("k").__enter__().done
    engine.dispose()
    assert place.effects() == ["effect"]
    place.close()


def test_a_transaction_that_has_failed_is_not_joined(database: AnyPlace) -> None:
    """The caller learns that their own transaction has to be rolled back first; on SQLite it has not failed."""
    assert isinstance(database, Place)
    connection = database.connect()
    if database.driver in ("sqlite3", "psycopg, autocommit"):
        connection.execute("BEGIN")
    with contextlib.suppress(Exception):
        database.run(connection, "INSERT INTO nowhere VALUES (1)")
    if database.on_server:
        with pytest.raises(InvalidArgument, match="roll it back"), Inbox(connection).once("k"):
            pass
        connection.rollback()
    with Inbox(connection).once("k") as effect:
        database.act(connection)
    connection.commit()
    assert (effect.done, database.effects()) == (False, ["effect"])


class _Odd:
    """A result that cannot be stored, and says so in its own way."""

    def __init__(self) -> None:
        self.self = self


def _nested() -> list[Any]:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


@pytest.mark.parametrize("make", [lambda: 1 << 70, _nested, _Odd], ids=["large", "nested", "odd"])
def test_odd_results_take_their_effect_back(kind: AnyPlace, make: Any) -> None:
    """Whatever goes wrong with a result, no transaction is left open with the effect in it."""
    connection = kind.connect()
    inbox = Inbox(connection)
    with pytest.raises(InvalidArgument, match="cannot be stored"), inbox.once("k") as effect:
        if kind.transactional:
            kind.act(connection)
        effect.result = make()
    assert kind.effects() == []
    assert inbox.show("k")[0].status == "FAILED"


def test_a_result_of_another_type_than_was_promised_is_refused_with_its_effect(kind: AnyPlace) -> None:
    """Otherwise anybody who comes again could never have it."""
    with kind.inbox() as inbox:
        with pytest.raises(InvalidArgument, match="cannot be stored"), inbox.once("k", returns=int) as effect:
            if kind.transactional:
                kind.act(effect.connection)
            effect.result = "seven"
        assert kind.effects() == []
        with inbox.once("k", returns=int) as effect:
            assert not effect.done
            effect.result = 7
        with inbox.once("k", returns=int) as effect:
            assert effect.result == 7


def test_payloads_that_cannot_be_compared_are_refused() -> None:
    """Before anything is done."""
    with Inbox(sqlite3.connect(":memory:")) as inbox, pytest.raises(InvalidArgument, match="cannot be compared"):
        inbox.once("k", payload=object())


def test_generators_are_refused() -> None:
    """They would do their work after the effect was committed."""
    inbox = Inbox(sqlite3.connect(":memory:"))

    def plain(key: str) -> Iterator[str]:
        yield key

    async def awaited(key: str) -> Any:
        yield key

    for function in (plain, awaited):
        with pytest.raises(InvalidArgument, match="generator"):
            inbox.effect(function)


@pytest.mark.parametrize("factory", ["ClientCursor", "RawCursor", "ServerCursor"])
def test_any_kind_of_cursor_and_row_is_the_users_own_affair(server_place: Place, factory: str) -> None:
    """The inbox does not depend on what a connection makes of statements and rows, nor on prepared statements."""
    made: Any = getattr(psycopg, factory)
    options = {"prepare_threshold": None, "row_factory": psycopg.rows.dict_row}
    if factory != "ServerCursor":
        options["cursor_factory"] = made
    with psycopg.connect(server_place._url, **options) as connection:  # type: ignore[arg-type]
        if factory == "ServerCursor":
            connection.server_cursor_factory = made
        inbox = Inbox(connection)
        for _ in range(2):
            with inbox.once("k") as effect:
                connection.execute(INSERT.format("effect"))
                effect.result = 0
        assert (effect.done, effect.result) == (True, 0)
    assert server_place.effects() == ["effect"]


def test_a_transaction_that_the_server_took_back_is_known_to_be_so(server_place: Place, postgres_url: str) -> None:
    """A serialization failure at COMMIT is not an unknown outcome: the effect is not there, and may come again."""

    def connect() -> Any:
        connection = psycopg.connect(postgres_url)
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        return connection

    with Inbox(connect) as inbox:
        inbox.ping()
        with pytest.raises(Unavailable) as failed, inbox.once("k") as effect:
            effect.connection.execute("SELECT count(*) FROM effects").fetchone()
            with inbox.once("other") as other:
                other.connection.execute("SELECT count(*) FROM effects").fetchone()
                server_place.act(effect.connection, "first")
                server_place.act(other.connection, "other")
        assert failed.value.outcome == "not written"
        assert server_place.effects() == ["other"]
        with inbox.once("k") as effect:
            server_place.act(effect.connection, "first")
    assert sorted(server_place.effects()) == ["first", "other"]


class _NeverOutside(sqlite3.Connection):
    """A connection as Python 3.12 makes it with ``autocommit=False``."""

    autocommit = False


def test_a_connection_that_is_always_in_a_transaction_is_refused() -> None:
    """Each effect would join it, and none would be committed."""
    with pytest.raises(InvalidArgument, match="autocommit"):
        Inbox(sqlite3.connect(":memory:", factory=_NeverOutside))


@pytest.mark.parametrize("raises", [False, True])
def test_what_a_session_begins_behind_a_commit_inside_is_taken_back(tmp_path: Path, *, raises: bool) -> None:
    """A session begins its next transaction by itself: later effects would join that, and be lost with it."""
    place = Place("a session of SQLAlchemy, SQLite", str(tmp_path / "shop.sqlite"))
    session = place.connect()
    inbox = Inbox(session)
    with pytest.raises(RuntimeError if raises else InvalidArgument), inbox.once("first"):
        session.commit()
        place.act(session, "behind")
        if raises:
            raise RuntimeError
    assert not session.in_transaction()
    with inbox.once("second"):
        place.act(session, "second")
    assert place.effects() == ["second"]
    place.close()


@pytest.mark.parametrize("result", [None, 7])
@pytest.mark.parametrize("begins", ["by itself", "when told"])
def test_a_rollback_inside_is_refused(tmp_path: Path, result: object, begins: str) -> None:
    """The key goes with it: what is done behind it would be committed as often as the message comes."""
    place = Place("sqlite3 that begins by itself", str(tmp_path / "shop.sqlite"))
    connection = place.connect()
    inbox = Inbox(connection)
    with pytest.raises(InvalidArgument, match="ended inside"), inbox.once("k") as effect:
        place.act(connection, "before")
        connection.rollback()
        if begins == "when told":
            connection.execute("BEGIN")
        place.act(connection, "behind")
        effect.result = result
    assert not connection.in_transaction
    with inbox.once("k") as effect:
        assert not effect.done
        place.act(connection)
    assert place.effects() == ["effect"]
    place.close()


def test_an_effect_in_a_pipeline_is_refused(server_place: Place) -> None:
    """It would be left as done before the server has said so; a pipeline inside of it is fine."""
    connection = server_place.connect()
    inbox = Inbox(connection)
    inbox.ping()
    with pytest.raises(InvalidArgument, match="pipeline"), connection.pipeline(), inbox.once("k"):
        pass
    connection.rollback()
    with inbox.once("k"), connection.pipeline():
        server_place.act(connection)
    assert server_place.effects() == ["effect"]


def test_an_attempt_that_is_cancelled_while_it_waits_leaves_nothing_begun(
    server_place: Place, postgres_url: str
) -> None:
    """The connection is as it was: the next effect on it is committed by itself, and not a part of one that nobody
    ends.
    """

    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            inbox = Inbox(connection)
            with server_place.inbox() as first, first.once("k"):
                waiting = asyncio.create_task(_enter(inbox, "k"))
                await _until_locked(server_place)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            async with inbox.once("other"):
                await connection.execute(INSERT.format("other"))

    with server_place.inbox() as inbox:
        inbox.ping()
    asyncio.run(run())
    assert server_place.effects() == ["other"]


async def _until_locked(place: Place) -> None:
    """Ask until somebody waits for a lock: the server tells it to nobody."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%oncelog_inbox%'"
    with place.direct() as direct:
        for _ in range(3_000):
            if direct.execute(waits).fetchone() != (0,):
                return
            await asyncio.sleep(0.01)
    message = "nobody waits"
    raise AssertionError(message)
