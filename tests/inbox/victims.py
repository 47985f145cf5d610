"""The programs that are killed and stopped: ``python -m tests.inbox.victims <program> …``, talking in lines."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from typing import Any

import psycopg
import redis
import sqlalchemy

import oncelog
from oncelog import Delivery, Inbox, LeaseLost, Unavailable

TABLE = "effects"


def say(*words: object) -> None:
    """Print a line, at once and whole."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class _DyingCursor(sqlite3.Cursor):
    """Dies before or after its nth statement."""

    left = 0

    def execute(self, *arguments: Any) -> Any:
        """Count the moment before, and the moment after."""
        self._count()
        super().execute(*arguments)
        self._count()
        return self

    @classmethod
    def _count(cls) -> None:
        cls.left -= 1
        if cls.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class _DyingConnection(sqlite3.Connection):
    def cursor(self, *_: Any) -> Any:
        """Return a cursor that dies."""
        return super().cursor(_DyingCursor)


def connect(home: str, die_at: int = 0, busy_s: float = 0.02) -> Any:
    """Connect to a home: the path of a SQLite file, or a URL."""
    if home.startswith("postgresql+psycopg"):
        return sqlalchemy.create_engine(home).connect()
    if home.startswith("postgresql"):
        return psycopg.connect(home, autocommit=True)
    if home.startswith("unix:"):
        return redis.Redis.from_url(home)
    _DyingCursor.left = die_at
    return sqlite3.connect(
        home, timeout=busy_s, isolation_level=None, check_same_thread=False, factory=_DyingConnection
    )


def act(connection: Any, key: str, name: str, effect_id: str) -> None:
    """Have an effect: a row, or in Redis what another system does that knows the effect's id."""
    if isinstance(connection, sqlalchemy.Connection):
        connection.execute(sqlalchemy.text("INSERT INTO effects VALUES (:key, :name)"), {"key": key, "name": name})
    elif isinstance(connection, redis.Redis):
        connection.hsetnx(f"effects:{key}", effect_id, name)
    elif isinstance(connection, psycopg.Connection):
        connection.execute("INSERT INTO effects VALUES (%s, %s)", (key, name))
    else:
        connection.execute("INSERT INTO effects VALUES (?, ?)", (key, name))


# Killed at every statement.


def zygote(home: str, lease: str) -> None:
    """For each line (how many statements to live), bear a process that has the effect once."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _once(home, float(lease) or None, int(line))
        _, status = os.waitpid(pid, 0)
        say("ended", os.waitstatus_to_exitcode(status))


def _once(home: str, lease_s: float | None, die_at: int) -> None:
    try:
        connection = connect(home, die_at)  # before it is counted: there is nothing yet that could be lost
        say("born", os.getpid())
        sys.stdin.readline()
        with Inbox(connection, lease_s=lease_s).once("k") as effect:
            if not effect.done:
                act(connection, "k", "victim", effect.id)
                effect.result = "done"
        os._exit(0)
    except BaseException:  # noqa: BLE001  whatever it is, the test must hear of it
        say("error", repr(traceback.format_exc()[-1_500:]))
        os._exit(1)


# Stopped and resumed.


def puppet(home: str, lease: str, name: str) -> None:
    """Have the effect of each key that is told, saying how far it is."""
    inbox = Inbox(lambda: connect(home), lease_s=float(lease) or None, owner=name)
    say("ready")
    for line in sys.stdin:
        key = line.strip()
        try:
            with inbox.once(key) as effect:
                say("begun")
                if not effect.done:
                    act(effect.connection, key, name, effect.id)
                    effect.result = name
                say("acted")
            say("end", "done" if effect.done else "committed", effect.result)
        except LeaseLost:
            say("end", "lost", "-")
        except (Unavailable, sqlite3.OperationalError, psycopg.OperationalError) as error:
            say("end", "busy", repr(error)[:200])


# Killed at work.


def workers(url: str, home: str, with_inbox: str, lease: str) -> None:
    """For each line, bear a worker, which works until all is done or it dies."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _work(url, home, float(lease) or None, random.Random(line), idempotent=with_inbox == "inbox")
        say("born", pid)
        _, status = os.waitpid(pid, 0)
        say("ended", os.waitstatus_to_exitcode(status))


def _work(url: str, home: str, lease_s: float | None, chance: random.Random, *, idempotent: bool) -> None:
    """Work on a queue; at times die, before the effect, between its parts, between it and its ack."""
    original = Delivery.ack

    def die(probability: float) -> None:
        if chance.random() < probability:
            os.kill(os.getpid(), signal.SIGKILL)

    def ack(self: Delivery) -> None:
        die(0.04)
        original(self)
        if queue.lag("default") == 0:
            os._exit(0)

    def handle(delivery: Delivery, effect: Any = None) -> int:
        connection = effect.connection if effect is not None else control
        die(0.02)
        act(connection, delivery.id, str(os.getpid()), effect.id if effect is not None else "")
        die(0.02)
        return delivery.attempts

    try:
        Delivery.ack = ack  # type: ignore[method-assign]
        inbox = Inbox(lambda: connect(home, busy_s=30), lease_s=lease_s) if idempotent else None
        control = connect(home, busy_s=30)
        with oncelog.connect(url) as db:
            queue = db.queue("orders")
            oncelog.worker(queue, "default", handle, inbox=inbox, ack_timeout_s=0.5).run()
    except BaseException:  # noqa: BLE001  as above
        say("error", repr(traceback.format_exc()[-1_500:]))
    os._exit(1)


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {"zygote": zygote, "puppet": puppet, "workers": workers}
    programs[sys.argv[1]](*sys.argv[2:])
