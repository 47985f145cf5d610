"""Killed at every statement, stopped and resumed, killed at work: one effect each, and never one without its key."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import pytest
import redis

import oncelog
from oncelog import Inbox, QueueSettings, RetryPolicy
from tests.inbox.proxy import Proxy
from tests.inbox.victims import act

ROOT = Path(__file__).parents[2]
SOAK = os.environ.get("ONCELOG_SOAK") == "1"
TABLE = "CREATE TABLE effects (key TEXT NOT NULL, name TEXT NOT NULL)"


class Victim:
    """A program of ``victims``, until the ``with`` is left."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.inbox.victims", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # so that one can wait for what it says
        )

    def tell(self, line: object) -> None:
        """Give it a line to read."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def hear(self) -> list[str]:
        """Wait for the next line it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().split(" ", 2)

    def hear_end(self) -> list[str]:
        """Wait for the line that tells how it ended."""
        while (words := self.hear())[0].strip() != "end":
            assert words[0], "it ended"
        return words

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class Stage:
    """A place to look at from outside: what effects there are, and what is known of the key."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.on_server = home.startswith("postgresql")
        self.in_redis = home.startswith("unix:")
        self.client: Any
        if self.in_redis:
            self.client = redis.Redis.from_url(home, decode_responses=True)
            self.client.flushall()
        else:
            self.client = self.connect()
            self.client.execute(TABLE)
            with Inbox(self.connect) as inbox:
                inbox.ping()

    def connect(self) -> Any:
        """Connect past everything."""
        if self.in_redis:
            return redis.Redis.from_url(self.home)
        if self.on_server:
            return psycopg.connect(self.home, autocommit=True)
        return sqlite3.connect(self.home, timeout=10, isolation_level=None, check_same_thread=False)

    def effects(self, key: str = "k") -> int:
        """Return how often an effect is there."""
        if self.in_redis:
            return int(self.client.hlen(f"effects:{key}"))
        mark = "%s" if self.on_server else "?"
        return int(self.client.execute(f"SELECT count(*) FROM effects WHERE key = {mark}", (key,)).fetchone()[0])

    def both(self) -> tuple[int, list[str]]:
        """Return how often the effect is there and the status of its key, at one moment."""
        if self.in_redis:
            with Inbox(self.client) as inbox:
                return self.effects(), [known.status for known in inbox.show("k")]
        row = self.client.execute(
            "SELECT (SELECT count(*) FROM effects), (SELECT status FROM oncelog_inbox)"
        ).fetchone()
        return row[0], [row[1]] if row[1] else []

    def all_effects(self) -> list[str]:
        """Return the keys of all effects, as often as they are there."""
        if self.in_redis:
            keys = [name.removeprefix("effects:") for name in self.client.scan_iter("effects:*", count=1000)]
            return [key for key in keys for _ in range(self.effects(key))]
        return [key for (key,) in self.client.execute("SELECT key FROM effects").fetchall()]

    def expire(self) -> None:
        """Let every lease run out."""
        if self.in_redis:
            for key in self.client.scan_iter("oncelog:inbox:*"):
                self.client.hset(key, "until_us", "1")
        else:
            self.client.execute("UPDATE oncelog_inbox SET until_us = 0 WHERE status = 'PENDING'")

    def clear(self) -> None:
        """Begin again."""
        if self.in_redis:
            self.client.flushall()
        else:
            self.client.execute("DELETE FROM effects")
            self.client.execute("DELETE FROM oncelog_inbox")

    def finish(self, lease_s: float | None) -> Any:
        """Have the effect as one who was not killed; return its result."""
        connection = self.connect()
        with Inbox(connection, lease_s=lease_s).once("k") as effect:
            if not effect.done:
                act(connection, "k", "second", effect.id)
                effect.result = "done"
        connection.close()
        return effect.result


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """Return a stage of each kind."""
    if request.param == "sqlite":
        made = Stage(str(tmp_path / "shop.sqlite"))
    elif request.param == "postgresql":
        made = Stage(request.getfixturevalue("postgres_url"))
    else:
        made = Stage(f"unix://{request.getfixturevalue('redis_socket')}")
    yield made
    made.client.close()


def proxied(stage: Stage, folder: Path) -> tuple[Proxy | None, str]:
    """Return a proxy before a stage that is a server, and the home behind it."""
    if stage.in_redis:
        server = Path(stage.home.removeprefix("unix://"))
        return Proxy(folder / "s", server), f"unix://{folder / 's'}"
    if stage.on_server:
        host = psycopg.conninfo.conninfo_to_dict(stage.home)["host"]
        there = f"{folder}"
        return Proxy(folder / ".s.PGSQL.5432", Path(f"{host}/.s.PGSQL.5432")), stage.home.replace(str(host), there)
    return None, stage.home


@pytest.mark.parametrize(
    ("stage", "lease_s", "through"),
    [
        ("sqlite", None, ""),
        ("sqlite", 60.0, ""),
        ("postgresql", None, ""),
        ("postgresql", 60.0, ""),
        ("postgresql", None, "+psycopg"),
        ("redis", 60.0, ""),
    ],
    indirect=["stage"],
)
def test_killed_at_every_statement(
    stage: Stage, lease_s: float | None, through: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Wherever the worker dies, on the way to the server or back: there is one effect with its key, or neither, and the
    next worker brings it to one effect and its result.
    """
    folder = Path(tmp_path_factory.mktemp("p"))
    proxy, home = proxied(stage, folder)
    kills = 0
    home = home.replace("postgresql:", f"postgresql{through}:")
    with Victim("zygote", home, str(lease_s or 0)) as victim:
        for die_at in range(1, 200):
            stage.clear()
            victim.tell(die_at)
            pid = int(victim.hear()[1])
            if proxy is not None:
                proxy.arm(pid, die_at)
            victim.tell("go")
            words = victim.hear()
            assert words[0] == "ended", words
            effects, statuses = stage.both()
            assert effects <= 1
            if stage.in_redis:
                assert not effects or statuses in (["PENDING"], ["COMMITTED"])
            else:
                assert bool(effects) == (statuses == ["COMMITTED"])
            stage.expire()
            assert stage.finish(lease_s) == "done"
            assert stage.both() == (1, ["COMMITTED"])
            if int(words[1]) == 0:
                break
            kills += 1
    if proxy is not None:
        proxy.__exit__(None, None, None)
    assert kills >= 4


ROUNDS = 2_000 if SOAK else 20


@pytest.mark.parametrize(
    ("stage", "lease_s"),
    [("sqlite", None), ("sqlite", 60.0), ("postgresql", None), ("postgresql", 60.0), ("redis", 60.0)],
    indirect=["stage"],
)
def test_two_workers_one_key_stopped_and_resumed(stage: Stage, lease_s: float | None) -> None:
    """One is stopped anywhere, its lease runs out, the other goes on, the first comes back: one effect, and both who
    say that they are done say the same.
    """
    chance = random.Random(7)
    seen: set[str] = set()
    lease = str(lease_s or 0)
    with Victim("puppet", stage.home, lease, "first") as first, Victim("puppet", stage.home, lease, "second") as second:
        for puppet in (first, second):
            assert puppet.hear()[0].strip() == "ready"
        for number in range(ROUNDS):
            key = f"key-{number}"
            ends = _round(stage, first, second, key, chance)
            seen |= {end[1] for end in ends}
            assert stage.effects(key) == 1, (number, ends)
            results = {end[2] for end in ends if end[1] in ("committed", "done")}
            assert len(results) == 1, ends
    assert {"committed", "done"} <= seen
    if lease_s is not None and SOAK:  # in few rounds that is chance; elsewhere it is brought about
        assert "lost" in seen


def _round(stage: Stage, first: Victim, second: Victim, key: str, chance: random.Random) -> list[list[str]]:
    first.tell(key)
    heard: list[str] = [""]
    for _ in range(chance.randrange(3)):
        heard = first.hear()
        if heard[0] == "end":
            break
    for _ in range(chance.randrange(4_000)):
        pass
    first.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, first.process.pid, os.WSTOPPED | os.WNOWAIT)
    if chance.random() < 0.8:
        stage_expire(stage)
    second.tell(key)
    ends = []
    if stage.on_server or stage.in_redis:
        ends.append(_end_or_resume(first, second))
    else:
        ends.append(second.hear_end())
    first.process.send_signal(signal.SIGCONT)
    ends.append(heard if heard[0] == "end" else first.hear_end())
    while ends[-1][1] in ("busy", "lost") or not any(end[1] in ("committed", "done") for end in ends):
        stage_expire(stage)
        second.tell(key)
        ends.append(second.hear_end())
    return ends


def stage_expire(stage: Stage) -> None:
    """Let leases run out, unless one who is stopped holds the key."""
    if stage.on_server:
        stage.client.execute("SET lock_timeout = 20")
    elif not stage.in_redis:
        stage.client.execute("PRAGMA busy_timeout = 20")
    with contextlib.suppress(sqlite3.OperationalError, psycopg.errors.LockNotAvailable):
        stage.expire()


def _end_or_resume(first: Victim, second: Victim) -> list[str]:
    """Wait for the second; if it waits for a lock that the first holds, let that one go on."""
    assert second.process.stdout is not None
    while True:
        ready, _, _ = select.select([second.process.stdout], [], [], 0.05)
        if not ready:
            first.process.send_signal(signal.SIGCONT)
        words = second.hear()
        assert words[0], "it ended"
        if words[0] == "end":
            return words


MESSAGES = 5_000 if SOAK else 80


@pytest.mark.parametrize(
    ("stage", "how", "lease"),
    [
        ("postgresql", "inbox", "0"),
        ("postgresql", "control", "0"),
        pytest.param("postgresql", "inbox", "1", marks=pytest.mark.soak),
        pytest.param("sqlite", "inbox", "0", marks=pytest.mark.soak),
        pytest.param("sqlite", "inbox", "1", marks=pytest.mark.soak),
        pytest.param("redis", "inbox", "1", marks=pytest.mark.soak),
    ],
    indirect=["stage"],
)
def test_workers_that_are_killed_at_work(stage: Stage, tmp_path: Path, how: str, lease: str) -> None:
    """Workers die at any moment, and messages come again: each has its effect exactly once. Without the inbox, the
    same shows doubles, so it is the inbox that does it.
    """
    url = f"file://{tmp_path}/db"
    settings = QueueSettings(retry=RetryPolicy(max_attempts=100, backoff_s=0.0, max_backoff_s=0.0, jitter=0.0))
    names = [f"order-{number}" for number in range(MESSAGES)]
    with oncelog.connect(url) as db:
        db.queue("orders", settings, create=True).send_many(oncelog.Message(b"", id=name) for name in names)
    deaths = _work_until_done(url, stage.home, how, lease)
    counts = Counter(stage.all_effects())
    assert sorted(counts) == sorted(names)
    assert deaths > MESSAGES / 50
    assert (counts.total() == MESSAGES) == (how == "inbox")


def _work_until_done(url: str, home: str, how: str, lease: str) -> int:
    """Have two workers at a time until one says that nothing is left; return how many have died."""
    deaths = 0
    alive: dict[Victim, int] = {}
    with Victim("workers", url, home, how, lease) as first, Victim("workers", url, home, how, lease) as second:
        for number, victim in enumerate((first, second)):
            victim.tell(-number)
        streams = {victim.process.stdout: victim for victim in (first, second) if victim.process.stdout}
        while True:
            for ready in select.select(list(streams), [], [])[0]:
                word, code, *more = streams[ready].hear()
                if word == "born":
                    alive[streams[ready]] = int(code)
                    continue
                assert word == "ended", (word, code, more)
                del alive[streams[ready]]
                if int(code) == 0:
                    for pid in alive.values():
                        os.kill(pid, signal.SIGKILL)
                    return deaths
                assert int(code) == -signal.SIGKILL
                deaths += 1
                streams[ready].tell(deaths)
