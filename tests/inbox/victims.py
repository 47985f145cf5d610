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


def connect(home: str, die_at: int = 0) -> Any:
    """Connect to a home: the path of a SQLite file, or a URL."""
    if home.startswith("postgresql"):
        return psycopg.connect(home, autocommit=True)
    if home.startswith("unix:"):
        return redis.Redis.from_url(home)
    _DyingCursor.left = die_at
    return sqlite3.connect(home, timeout=0.2, isolation_level=None, check_same_thread=False, factory=_DyingConnection)


def act(connection: Any, key: str, name: str, effect_id: str) -> None:
    """Have an effect: a row, or in Redis what another system does that knows the effect's id."""
    if isinstance(connection, redis.Redis):
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
        say("born", os.getpid())
        sys.stdin.readline()
        connection = connect(home, die_at)
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


def worker(url: str, home: str, with_inbox: str, seed: str) -> None:
    """Work on a queue until all is done or it is killed; at times it dies by itself, between its effect and its ack."""
    chance = random.Random(f"{seed}-{os.getpid()}")
    original = Delivery.ack

    def ack(self: Delivery) -> None:
        if chance.random() < 0.04:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self)

    Delivery.ack = ack  # type: ignore[method-assign]
    inbox = Inbox(home) if with_inbox == "inbox" else None
    control = psycopg.connect(home, autocommit=True)

    def handle(delivery: Delivery, effect: Any = None) -> int:
        connection = effect.connection if effect is not None else control
        if chance.random() < 0.02:
            os.kill(os.getpid(), signal.SIGKILL)
        act(connection, delivery.id, str(os.getpid()), "")
        if chance.random() < 0.02:
            os.kill(os.getpid(), signal.SIGKILL)
        return delivery.attempts

    with oncelog.connect(url) as db:
        queue = db.queue("orders")
        say("ready")
        oncelog.worker(queue, "default", handle, inbox=inbox, ack_timeout_s=0.5).run()
    say("end")


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {"zygote": zygote, "puppet": puppet, "worker": worker}
    programs[sys.argv[1]](*sys.argv[2:])
