"""Workers: messages come again and again, databases go and come back, processes are told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

import oncelog
from oncelog import (
    Closed,
    CorruptionError,
    Database,
    Delivery,
    Effect,
    EffectFailed,
    Inbox,
    InvalidArgument,
    Message,
    Queue,
    Unavailable,
)
from oncelog.inbox import inner
from oncelog.inbox.effect import Once
from oncelog.workers import retention
from oncelog.workers import worker as worker_module
from tests.inbox.places import AnyPlace, Place, Restarted
from tests.servers import postgresql
from tests.workers.until import Until, work

ROOT = Path(__file__).parents[2]


def test_messages_are_handled_and_their_results_kept(kind: AnyPlace, queue: Queue) -> None:
    """Each message has its effect once, by several handlers at once."""

    def handler(delivery: Delivery, effect: Effect) -> int:
        kind.act(effect.connection, delivery.value.decode())
        return len(delivery.value)

    names = [f"message-{number}" for number in range(20)]
    for name in names:
        queue.send(name.encode(), id=name)
    until = Until()
    with kind.inbox() as inbox:
        inbox.ping()
        with work(queue, handler, until, inbox=inbox, concurrency=4) as worker:
            until.wait("done", 20)
        [known] = inbox.show("0:0:message-7")
    assert sorted(kind.effects()) == sorted(names)
    assert worker.counts() == {"done": 20}
    assert queue.lag("mailer") == 0
    assert (known.topic, known.group, known.result) == ("emails", "mailer", len("message-7"))


def test_a_result_that_a_handler_sets_is_kept(queue: Queue, tmp_path: Path) -> None:
    """A handler that returns nothing does not take back the result that it gave the effect; nor does a function that is
    an effect by its decorator.
    """

    def handler(delivery: Delivery, effect: Effect) -> None:
        effect.result = {"sent": delivery.attempts}

    until = Until()
    with Inbox(f"sqlite:///{tmp_path}/inbox.sqlite") as inbox:
        queue.send(b"hello", id="user-7")
        with work(queue, handler, until, inbox=inbox):
            until.wait("done", 1)
        [known] = inbox.show("0:0:user-7")
        assert known.result == {"sent": 1}

        @inbox.effect(key="name")
        def greet(name: str, effect: Effect) -> None:
            effect.result = f"hello {name}"

        assert [greet("anna"), greet("anna")] == ["hello anna", "hello anna"]


def test_a_message_whose_effect_is_stored_is_a_duplicate_and_acknowledged(kind: AnyPlace, queue: Queue) -> None:
    """A worker that died between its effect and its ack leaves a message that comes again, and does nothing."""
    queue.send(b"welcome", id="user-7")
    until = Until()
    with kind.inbox() as inbox:
        with queue.consume("mailer") as deliveries:
            [delivery] = deliveries.receive()
            with inbox.once(delivery) as effect:
                kind.act(effect.connection)
        delivery.nack("the worker died")
        with work(queue, lambda _: pytest.fail("it ran again"), until, inbox=inbox) as worker:
            until.wait("duplicate")
    assert kind.effects() == ["effect"]
    assert worker.counts() == {"duplicate": 1}
    assert queue.lag("mailer") == 0


def test_a_dead_letter_whose_effect_had_committed_is_not_run_again(kind: AnyPlace, queue: Queue) -> None:
    """Redriven, it comes under another place in the log and its original key."""
    queue.send(b"welcome", id="user-7")
    until = Until()
    with kind.inbox() as inbox:
        with queue.consume("mailer") as deliveries:
            [delivery] = deliveries.receive()
            with inbox.once(delivery) as effect:
                kind.act(effect.connection)
            delivery.nack("the answer was lost", retry=False)
        assert queue.dead_letters.redrive() == 1
        with work(queue, lambda _: pytest.fail("it ran again"), until, inbox=inbox):
            until.wait("duplicate")
    assert kind.effects() == ["effect"]


@pytest.mark.parametrize("final", [True, False])
def test_failures_come_again_or_end_among_the_dead_letters(queue: Queue, tmp_path: Path, final: bool) -> None:  # noqa: FBT001
    """A final failure is not tried again; others are, as often as the policy says. Either way nothing is left of it."""
    place = Place("sqlite3", str(tmp_path / "shop.sqlite"))
    queue.send(b"welcome", id="user-7")
    until, calls = Until(), []

    def handler(delivery: Delivery, effect: Effect) -> None:
        calls.append((delivery.attempts, effect.last_error))
        place.act(effect.connection)
        if final:
            message = "no such user"
            raise EffectFailed(message)
        raise RuntimeError(delivery.attempts)

    with place.inbox() as inbox, work(queue, handler, until, inbox=inbox):
        until.wait("dead" if final else "failed", 1 if final else 3)
    [letter] = queue.dead_letters.list()
    if final:
        assert (calls, letter.last_error) == ([(1, None)], "no such user")
    else:
        assert calls == [(1, None), (2, "RuntimeError: 1"), (3, "RuntimeError: 2")]
        assert letter.last_error == "RuntimeError: 3"
    assert place.effects() == []
    place.close()


def test_async_handlers(queue: Queue, postgres_url: str) -> None:
    """A coroutine has its effect in the transaction of an asynchronous connection; several run at once."""
    place = Place("psycopg", postgres_url)
    together = 0
    gate = asyncio.Event()

    async def connect() -> Any:
        return await psycopg.AsyncConnection.connect(postgres_url)

    async def handler(delivery: Delivery, effect: Effect) -> str:
        nonlocal together
        together += 1
        if together == 2:
            gate.set()
        await gate.wait()
        await effect.connection.execute("INSERT INTO effects VALUES (%s)", (delivery.id,))
        return delivery.id

    with place.inbox() as inbox:
        inbox.ping()
    for id in ("a", "b"):
        queue.send(b"", id=id)
    until = Until()
    inbox = Inbox(connect)
    with work(queue, handler, until, inbox=inbox, concurrency=2):
        until.wait("done", 2)
    assert sorted(place.effects()) == ["a", "b"]
    for _, connection in inbox._home._idle:
        connection.raw.pgconn.finish()
    place.close()


def test_without_an_inbox_it_is_at_least_once(queue: Queue) -> None:
    """A worker needs no inbox; then a message that comes twice is handled twice."""
    queue.send(b"a", id="a")
    seen: list[int] = []

    def handler(delivery: Delivery) -> None:
        seen.append(delivery.attempts)
        if delivery.attempts == 1:
            raise RuntimeError

    until = Until()
    with work(queue, handler, until):
        until.wait("done")
    assert seen == [1, 2]


def test_while_the_database_is_away_nothing_is_taken_or_spent(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL is stopped, also under a handler at work, and started again: the worker waits, takes nothing, and goes
    on without a lost attempt or a double effect.
    """
    monkeypatch.setattr(worker_module, "_REST_S_MAX", 0.1)
    attempts: list[tuple[str, int]] = []
    until = Until()

    def handler(delivery: Delivery, effect: Effect) -> None:
        attempts.append((delivery.id, delivery.attempts))
        effect.connection.execute("INSERT INTO effects VALUES (%s)", (delivery.id,))
        if delivery.id == "under" and len(attempts) == 2:
            server.stop()

    with postgresql() as url:
        server = Restarted(url)
        place = Place("psycopg, autocommit", url)
        with Inbox(url) as inbox, work(queue, handler, until, inbox=inbox) as worker:
            queue.send(b"", id="before")
            until.wait("done")
            queue.send(b"", id="under")
            until.wait("away")
            for number in range(3):
                queue.send(b"", id=f"while-{number}")
            assert worker.state == "waiting"
            assert [delivery.id for delivery in worker.in_hand()] == ["under"]
            server.start()
            until.wait("done", 5)
        assert sorted(place.effects()) == ["before", "under", "while-0", "while-1", "while-2"]
        place.close()
        server.close()
    assert {count for _, count in attempts} == {1}
    assert worker.counts() == {"done": 5, "away": 1, "back": 1}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_while_the_inbox_cannot_be_used_nothing_is_spent(
    queue: Queue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asynchronous: bool,  # noqa: FBT001
) -> None:
    """Whatever the reason (rights, a folder, a function of the user's that connects): no message is to blame, and all
    of them would end among the dead letters.
    """
    monkeypatch.setattr(worker_module, "_REST_S_MAX", 0.1)
    place = Place("sqlite3", str(tmp_path / "shop.sqlite"))
    usable = threading.Event()
    attempts: list[int] = []
    until = Until()

    def connect() -> Any:
        if not usable.is_set():
            message = "permission denied"
            raise RuntimeError(message)
        return place.connect()

    def note(delivery: Delivery) -> None:
        attempts.append(delivery.attempts)

    async def anote(delivery: Delivery) -> None:
        attempts.append(delivery.attempts)

    queue.send_many([Message(b"", id=str(number)) for number in range(3)])
    handler = anote if asynchronous else note
    with Inbox(connect) as inbox, work(queue, handler, until, inbox=inbox) as worker:
        until.wait("away")
        usable.set()
        until.wait("done", 3)
    assert attempts == [1, 1, 1]
    assert worker.counts() == {"done": 3, "away": 1, "back": 1}
    place.close()


def test_while_the_inbox_may_only_be_read_nothing_is_spent(
    queue: Queue, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role of a worker may read the tables of the inbox and not write them. The worker waits until it may; no
    message becomes a dead letter.
    """
    monkeypatch.setattr(worker_module, "_REST_S_MAX", 0.1)
    attempts: list[int] = []
    until = Until()
    role = f"reader_{os.getpid()}"
    with Inbox(postgres_url) as owned, psycopg.connect(postgres_url, autocommit=True) as direct:
        owned.ping()  # which makes the tables
        direct.execute(f"CREATE ROLE {role} LOGIN".encode())
        [schema] = direct.execute("SELECT current_schema()").fetchone() or [""]
        direct.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}".encode())
        direct.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}".encode())
        queue.send_many([Message(b"", id=str(number)) for number in range(3)])
        url = postgres_url.replace("//queue@", f"//{role}@")
        handler = lambda delivery: attempts.append(delivery.attempts)  # noqa: E731
        with Inbox(url) as inbox, work(queue, handler, until, inbox=inbox) as worker:
            until.wait("away")
            direct.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}".encode())
            direct.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}".encode())
            until.wait("done", 3)
        direct.execute(f"DROP OWNED BY {role}".encode())
        direct.execute(f"DROP ROLE {role}".encode())
    assert attempts == [1, 1, 1]
    assert worker.counts() == {"done": 3, "away": 1, "back": 1}
    assert "permission denied" in next(about for word, about in until.told if word == "away")


def test_a_worker_says_that_it_waits_for_a_database(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database takes the connection and does not answer: the log says what a program that begins waits for."""
    monkeypatch.setattr(inner, "SLOW_S", 0.001)
    said = threading.Event()
    monkeypatch.setattr(worker_module.logger, "warning", lambda text, *_: said.set() if "waiting" in text else None)

    def connect() -> sqlite3.Connection:
        assert said.wait(60)
        return sqlite3.connect(tmp_path / "shop.sqlite", check_same_thread=False)

    with Inbox(connect) as inbox:
        oncelog.worker(queue, "mailer", print, inbox=inbox)


def test_a_message_that_the_inbox_never_takes_spends_attempts(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inbox answers, and fails with this message each time (its key cannot be stored there, say): a worker does not
    go on with it for ever.
    """

    def refuse(_: Once) -> Effect:
        message = "this key cannot be encoded"
        raise RuntimeError(message)

    monkeypatch.setattr(Once, "__enter__", refuse)
    queue.send(b"", id="m")
    until = Until()
    with Inbox(f"sqlite:///{tmp_path}/shop.sqlite") as inbox, work(queue, print, until, inbox=inbox):
        until.wait("failed", 3)
    [letter] = queue.dead_letters.list()
    assert (letter.attempts, letter.last_error) == (3, "RuntimeError: this key cannot be encoded")


def test_a_message_that_breaks_its_transaction_each_time_spends_attempts(queue: Queue, postgres_url: str) -> None:
    """The database is there, and the connection is lost under this handler again and again (it idles too long in its
    transaction, say): a worker does not go on with it for ever.
    """
    place = Place("psycopg, autocommit", postgres_url)
    queue.send(b"", id="m")
    until = Until()

    def handler(delivery: Delivery, effect: Effect) -> None:
        with place.direct() as direct:
            direct.execute("SELECT pg_terminate_backend(%s)", (effect.connection.info.backend_pid,))

    with place.inbox() as inbox, work(queue, handler, until, inbox=inbox):
        until.wait("failed", 3)
    [letter] = queue.dead_letters.list()
    assert letter.attempts == 3
    assert "Unavailable" in letter.last_error
    place.close()


def test_deliveries_are_renewed_while_a_handler_runs(queue: Queue, tmp_path: Path) -> None:
    """A handler may take longer than the ack timeout: its message stays its own."""
    place = Place("sqlite3", str(tmp_path / "shop.sqlite"))
    queue.send(b"", id="long")
    extended, until = threading.Event(), Until()
    original = Delivery.extend

    def extend(self: Delivery, seconds: float) -> None:
        original(self, seconds)
        extended.set()

    Delivery.extend = extend  # type: ignore[method-assign]
    try:
        with place.inbox() as inbox, work(queue, lambda _: extended.wait(30), until, inbox=inbox, ack_timeout_s=0.9):
            until.wait("done")
    finally:
        Delivery.extend = original  # type: ignore[method-assign]
    assert queue.lag("mailer") == 0
    place.close()


def test_nothing_is_claimed_that_no_hand_is_free_for(queue: Queue) -> None:
    """While handlers take long, messages behind them are others' to take, and spend no attempts unseen."""
    queue.send_many([Message(str(number).encode()) for number in range(4)])
    begun, release, until = threading.Semaphore(0), threading.Event(), Until()

    def handle(delivery: Delivery) -> None:
        if delivery.value != b"0":
            begun.release()
            release.wait(30)

    with work(queue, handle, until, concurrency=2):
        assert begun.acquire(timeout=30)
        assert begun.acquire(timeout=30)
        with queue.consume("mailer") as other:
            [left] = other.receive(timeout_s=5)
            assert (left.value, left.attempts) == (b"3", 1)
            left.ack()
        release.set()
        until.wait("done", 3)


def test_a_letter_that_is_sent_back_meanwhile_keeps_its_key(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking at the queue and at its dead letters, a message may go from one to the other."""
    place = Place("sqlite3", str(tmp_path / "shop.sqlite"))
    queue.send(b"", id="m")
    looked = queue._topic.ends

    def redriven_after() -> list[int]:
        ends = looked()
        queue.dead_letters.redrive()
        return ends

    with place.inbox(retention_s=3600) as inbox, queue.consume("mailer") as deliveries:
        [delivery] = deliveries.receive()
        with inbox.once(delivery):
            pass
        delivery.nack("dead", retry=False)
        place.age()
        monkeypatch.setattr(queue._topic, "ends", redriven_after)
        assert retention.prune(inbox, queue, "mailer") == 0
    place.close()


def test_keys_are_forgotten_through_asynchronous_connections(
    queue: Queue, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose inbox is asynchronous forgets old keys too, and goes on."""
    monkeypatch.setattr(worker_module, "_PRUNE_S", 0.0)
    place = Place("psycopg", postgres_url)
    with place.inbox(retention_s=3600, topic="emails", group="mailer") as plain:
        with plain.once("old"):
            pass
        place.age()

    async def connect() -> Any:
        return await psycopg.AsyncConnection.connect(postgres_url)

    async def handler(_: Delivery) -> None:
        """Do nothing."""

    until = Until()
    inbox = Inbox(connect, retention_s=3600)
    with work(queue, handler, until, inbox=inbox):
        for number in range(2):
            queue.send(b"", id=str(number))
            until.wait("done", number + 1)
    assert place.keys() == 2
    for _, connection in inbox._home._idle:
        connection.raw.pgconn.finish()
    place.close()


@pytest.mark.parametrize("with_inbox", [False, True])
def test_what_is_unavailable_to_a_handler_is_its_own_failure(queue: Queue, tmp_path: Path, with_inbox: bool) -> None:  # noqa: FBT001
    """It spends attempts and rests like any other; a worker does not hold on to one message for ever."""
    place = Place("sqlite3", str(tmp_path / "shop.sqlite"))
    queue.send(b"", id="m")
    until = Until()

    def handle(_: Delivery) -> None:
        text = "the mail server is away"
        raise Unavailable(text)

    with place.inbox() as inbox, work(queue, handle, until, inbox=inbox if with_inbox else None):
        until.wait("failed", 3)
    [letter] = queue.dead_letters.list()
    assert (letter.attempts, letter.last_error) == (3, "Unavailable: the mail server is away")
    place.close()


def test_keys_are_kept_while_their_messages_can_come(
    kind: AnyPlace, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key whose message is among the dead letters, or in the log, is not forgotten however old it is: the log refuses
    its id, and a group that is made again gets it. Once the log has no such record, the key goes.
    """
    with kind.inbox(retention_s=3600) as inbox:
        with queue.consume("mailer") as deliveries:
            for number, end in enumerate(["ack", "dead", "leased"]):
                queue.send(b"", id=f"m{number}")
                [delivery] = deliveries.receive()
                with inbox.once(delivery):
                    pass
                if end == "ack":
                    delivery.ack()
                elif end == "dead":
                    delivery.nack("dead", retry=False)
            with inbox.once("of another", topic="other"):
                pass
            kind.age()
            assert retention.prune(inbox, queue, "mailer") == 0
            monkeypatch.setattr(queue._topic, "starts", lambda _: [2])  # as if the log had been trimmed
            assert retention.prune(inbox, queue, "mailer") == 1
        assert inbox.show("0:0:m0") == []
        assert [len(inbox.show(f"0:0:m{number}")) for number in (1, 2)] == [1, 1]
    with kind.inbox(retention_s=60) as short, pytest.raises(InvalidArgument, match="keep them as long"):
        oncelog.worker(queue, "mailer", print, inbox=short)


def test_what_a_worker_cannot_do_is_refused(queue: Queue, tmp_path: Path) -> None:
    """One connection cannot be in two transactions; a handler is something to call."""
    place = Place("sqlite3", str(tmp_path / "shop.sqlite"))
    with Inbox(place.connect()) as inbox:
        for options in ({"concurrency": 2, "inbox": inbox}, {"concurrency": 0}):
            with pytest.raises(InvalidArgument):
                oncelog.worker(queue, "mailer", print, **options)
    with pytest.raises(InvalidArgument):
        oncelog.worker(queue, "mailer", "print")  # type: ignore[arg-type]
    place.close()


def test_an_inbox_that_can_never_be_used_is_refused(queue: Queue, tmp_path: Path) -> None:
    """Before a message is taken: each would spend its attempts on a misspelt folder."""
    (tmp_path / "damaged.sqlite").write_bytes(b"this is no database" * 1000)
    closed = Inbox(f"sqlite:///{tmp_path}/shop.sqlite")
    closed.close()
    own = sqlite3.connect(tmp_path / "own.sqlite")
    for inbox, error in (
        (Inbox(f"sqlite:///{tmp_path}/nowhere/shop.sqlite"), InvalidArgument),
        (Inbox(f"sqlite:///{tmp_path}/damaged.sqlite"), CorruptionError),
        (Inbox(own), InvalidArgument),  # handlers run in other threads
        (closed, Closed),
    ):
        with pytest.raises(error):
            oncelog.worker(queue, "mailer", print, inbox=inbox)
        inbox.close()
    own.close()


def test_a_worker_does_not_join_a_transaction(queue: Queue, database: AnyPlace) -> None:
    """It would acknowledge messages whose effects nobody has committed yet."""
    connection = database.connect()
    database.act(connection)
    if database.driver in ("sqlite3", "psycopg, autocommit"):
        connection.execute("BEGIN")
    with pytest.raises(InvalidArgument, match="in a transaction"):
        oncelog.worker(queue, "mailer", print, inbox=Inbox(connection))
    connection.rollback()
    oncelog.worker(queue, "mailer", print, inbox=Inbox(connection))


def test_a_handler_that_cannot_be_called_is_refused_before_it_spends_attempts(queue: Queue) -> None:
    """Every message would end among the dead letters because of a missing parameter."""

    def generator(delivery: Delivery) -> Iterator[int]:
        yield delivery.attempts

    def takes_two(delivery: Delivery, other: object) -> tuple[object, ...]:
        return delivery, other

    def takes_effect(delivery: Delivery, effect: Effect) -> tuple[object, ...]:
        return delivery, effect

    wrong: list[Callable[..., Any]] = [lambda: None, takes_two, takes_effect, generator]
    for handler in wrong:
        with pytest.raises(InvalidArgument):
            oncelog.worker(queue, "mailer", handler)


class _Called:
    async def __call__(self, delivery: Delivery, effect: Effect) -> str:
        await asyncio.sleep(0)
        return f"{effect.id} {delivery.attempts}"


def test_an_object_may_be_a_handler(queue: Queue, tmp_path: Path) -> None:
    """Also one that is called as a coroutine function is."""
    place = Place("sqlite3", str(tmp_path / "shop.sqlite"))
    queue.send(b"", id="m")
    until = Until()
    with place.inbox() as inbox:
        with work(queue, _Called(), until, inbox=inbox):
            until.wait("done")
        [known] = inbox.show("0:0:m")
    assert known.result == f"{known.effect_id} 1"
    assert until.told == [("done", "emails 0:0:m (attempt 1)")]
    place.close()


# In the shell.

HANDLER = """
import os, sys

def handle(delivery, effect):
    os.write(1, b'{"event": "begun", "about": ""}\\n')
    os.read(int(os.environ["GATE"]), 1)
    effect.connection.execute("INSERT INTO effects VALUES (?)", (delivery.id,))
    return delivery.attempts
"""


def test_a_worker_in_the_shell_drains_on_sigterm(queue: Queue, db: Database, tmp_path: Path) -> None:
    """What is in hand is finished, nothing more is taken, and the exit code says that all is well; then the story of
    the key can be read.
    """
    place = Place("sqlite3", str(tmp_path / "shop.sqlite"))
    (tmp_path / "handlers.py").write_text(HANDLER)
    for id in ("first", "second"):
        queue.send(b"", id=id)
    queue.close()
    reading, writing = os.pipe()
    environment = {
        **os.environ,
        "GATE": str(reading),
        "ONCELOG_URL": db.url,
        "ONCELOG_INBOX": f"sqlite:///{place._url}",
    }
    command = [sys.executable, "-m", "oncelog.cli"]
    worker = subprocess.Popen(
        [*command, "worker", "handlers:handle", "emails", "--json"],
        cwd=tmp_path,
        env=environment,
        pass_fds=[reading],
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None
    assert msgspec.json.decode(worker.stdout.readline())["event"] == "begun"
    worker.send_signal(signal.SIGTERM)
    assert msgspec.json.decode(worker.stdout.readline())["event"] == "draining"
    os.write(writing, b"x")
    out, _ = worker.communicate(timeout=60)
    told = [msgspec.json.decode(line) for line in out.splitlines()]
    assert worker.returncode == 0
    assert [line["event"] for line in told[:-1]] == ["done"]
    assert "first" in told[0]["about"]
    assert told[-1] == {"counts": {"done": 1}}
    assert place.effects() == ["first"]
    shown = subprocess.run(
        [*command, "inbox", "show", "0:0:first", "--json"], env=environment, capture_output=True, check=True
    )
    known = msgspec.json.decode(shown.stdout)
    assert (known["status"], known["result"], known["attempts"]) == ("COMMITTED", 1, 1)
    assert [event["what"] for event in known["story"]] == ["committed", "result"]
    for pipe in (reading, writing):
        os.close(pipe)
    place.close()


def test_keys_are_forgotten_past_a_message_that_cannot_be_read(db: Database, queue: Queue, tmp_path: Path) -> None:
    """It never comes, and has no key."""
    place = Place("sqlite3", str(tmp_path / "shop.sqlite"))
    with db.log("queue/emails/0").writer() as writer:
        writer.append(b"bad", headers={"oncelog-envelope": b"not msgpack"})
    with place.inbox(retention_s=3600, topic="emails", group="mailer") as inbox, queue.consume("mailer"):
        with inbox.once("old"):
            pass
        place.age()
        assert retention.prune(inbox, queue, "mailer") == 1
    place.close()


@pytest.mark.parametrize("with_inbox", [False, True], ids=["bare", "inbox"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_that_wants_to_exit_has_failed(
    queue: Queue, kind: str, error: type[BaseException], tmp_path: Path, *, with_inbox: bool
) -> None:
    """It fails alone, is told and counted, and spends one attempt: it was buried as if its time had run out, and an
    event loop would have ended with all handlers in it.
    """
    until, calls = Until(), []

    def handle(delivery: Delivery) -> None:
        calls.append(delivery.last_error)
        if len(calls) == 1:
            raise error

    async def handle_async(delivery: Delivery) -> None:
        handle(delivery)

    queue.send(b"a")
    use_inbox = with_inbox and kind == "sync"
    inbox = Inbox(f"sqlite:///{tmp_path}/inbox.sqlite") if use_inbox else None
    with work(queue, handle if kind == "sync" else handle_async, until, inbox=inbox) as worker:
        until.wait("done")
    assert (worker.counts()["failed"], worker.counts()["done"]) == (1, 1)
    assert calls == [None, f"the handler ended in {error()!r}"]
    if inbox is not None:
        inbox.close()


def test_a_failure_is_logged_with_its_traceback(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """What a handler raised is in the log of the process, with the line that raised it: the reason alone is no help."""
    told = Until()

    def break_down(delivery: Delivery) -> None:
        message = f"no address in {delivery.value!r}"
        raise ValueError(message)

    queue.send(b"welcome", id="1")
    with caplog.at_level("WARNING", "oncelog.worker"), oncelog.worker(queue, "mailer", break_down, report=told):
        told.wait("failed")
    found = next(record for record in caplog.records if record.name == "oncelog.worker")
    assert "emails" in found.getMessage()
    assert found.exc_info is not None
    shown = "".join(traceback.format_exception(*found.exc_info))  # who formats the log is the process's affair
    assert "in break_down" in shown
    assert "no address in b'welcome'" in shown


def test_a_value_that_cannot_be_read_is_a_dead_letter_at_once(queue: Queue) -> None:
    """Bytes that are no such object do not become one by being read again: no attempt is wasted on them."""
    numbers = oncelog.json(int)
    queue.send(b"no number", id="1")
    queue.send(numbers.encode(7), id="2")
    until = Until()
    seen: list[int] = []
    with work(queue, lambda delivery: seen.append(numbers.decode(delivery)), until):
        until.wait("dead")
        until.wait("done")
    (letter,) = queue.dead_letters.list()
    assert (letter.attempts, letter.value, seen) == (1, b"no number", [7])
    assert "BadValue" in letter.last_error


class _Unshown(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class _Showing(logging.Handler):
    """Shows the text of errors, as some formatters do, and fails where there is none."""

    def emit(self, record: logging.LogRecord) -> None:
        str(record.exc_info and record.exc_info[1])


@pytest.mark.parametrize("with_inbox", [False, True])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (oncelog.LeaseLost("of another message"), "LeaseLost: of another message"),
        (_Unshown(), "_Unshown (and its text: RuntimeError)"),
    ],
)
def test_whatever_a_handler_raises_its_message_is_refused_at_once(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, *, with_inbox: bool
) -> None:
    """A handler that settles another message may raise ``LeaseLost`` itself, and an error may have no text, at which a
    handler of logs fails, too: the message does not wait for its ack timeout, and the dead letter has the reason.
    """
    monkeypatch.setattr(logging.getLogger("oncelog.worker"), "handlers", [_Showing()])
    queue.configure(msgspec.structs.replace(queue.settings, ack_timeout_s=600.0))
    until = Until()

    def handler(_: Delivery) -> None:
        raise error

    queue.send(b"", id="m")
    with Inbox(f"sqlite:///{tmp_path}/shop.sqlite") as inbox:
        with work(queue, handler, until, inbox=inbox if with_inbox else None):
            until.wait("failed", 3)
        [letter] = queue.dead_letters.list()
        assert (letter.attempts, letter.last_error) == (3, reason)


def test_a_report_that_wants_to_exit_changes_nothing(queue: Queue) -> None:
    """``sys.exit`` in a report would end the thread of a handler; the worker would wait for it for ever."""
    told = threading.Event()

    def report(_: oncelog.WorkerEvent) -> None:
        told.set()
        sys.exit(1)

    queue.send(b"", id="m")
    with oncelog.worker(queue, "mailer", print, report=report):
        assert told.wait(60)
    assert queue.lag("mailer") == 0
