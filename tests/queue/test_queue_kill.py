"""Consumers and producers that are killed with SIGKILL again and again: every message is done in the end, or dead."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec
import pytest

import oncelog
from oncelog import Queue, QueueSettings, RetryPolicy
from tests.queue.history import Got, History
from tests.queue.worker import ACK_TIMEOUT_S, GROUP, TOPIC, Task

ROOT = Path(__file__).parents[2]
SOAK = os.environ.get("ONCELOG_SOAK") == "1"
MESSAGES = 2_000 if SOAK else 200
"""Of each producer. About a hundred a second are done, most of the time by processes that are being born."""
MESSAGES_CONTROL = 100
MESSAGES_PER_KILL_MAX = 16
"""When all is done nobody says much, and kills would be long in coming: so few are waited for that there are."""
PRODUCERS = ("p0", "p1")
CONSUMERS = ("c0", "c1")


@dataclass
class Works:
    """Processes at work, and what was heard of them."""

    zygote: subprocess.Popen[bytes]
    queue: Queue
    stop: Path
    chance: random.Random
    broken: bool = False
    messages: int = MESSAGES
    kills: int = 0
    history: History = field(default_factory=lambda: History(round(ACK_TIMEOUT_S * 1e6)))
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PRODUCERS, 0))
    pids: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    unanswered: set[tuple[tuple[int, int], int]] = field(default_factory=set)
    births: int = 0
    heard_at: dict[tuple[tuple[int, int], int], int] = field(default_factory=dict)

    @property
    def kills_min(self) -> int:
        """How many kills there have to be."""
        return self.messages // MESSAGES_PER_KILL_MAX

    def bear(self, name: str) -> None:
        """Start a child under a name, which an earlier one may have had."""
        self.births += 1
        kind = "produce" if name in PRODUCERS else "consume"
        child = f"{name}.{self.births}"
        first = self.sent.get(name, 0)
        seed = self.chance.randrange(2**32)
        task = Task(name, child, kind, seed, str(self.stop), first, self.messages, self.broken)
        stream(self.zygote.stdin).write(msgspec.json.encode(task) + b"\n")
        stream(self.zygote.stdin).flush()
        while child not in self.pids and child not in self.ended:
            self.hear()

    def hear(self) -> str:
        """Note the next line; return its first word."""
        word, child, *rest = stream(self.zygote.stdout).readline().decode().split()
        if word == "born":
            if child not in self.ended:
                self.pids[child] = int(rest[0])
        elif word == "sent":
            name = child.partition(".")[0]
            self.sent[name] = max(self.sent[name], int(rest[1]))
        elif word == "bye":
            self.pids.pop(child, None)
            self.ended.add(child)
        elif word == "got":
            partition, position, attempts, token, until_us = map(int, rest[:5])
            delivery = (partition, position), token
            self.heard_at[delivery] = len(self.history.got)
            self.history.got.append(Got(partition, position, attempts, token, until_us, rest[5]))
            self.unanswered.add(delivery)
        elif word in ("acked", "nacked", "lost", "extended"):
            self._answered(word, list(map(int, rest)))
        else:
            assert word == "empty", (word, child, rest)
        return word

    def _answered(self, word: str, rest: list[int]) -> None:
        delivery = (rest[0], rest[1]), rest[2]
        if word == "extended":
            at = self.heard_at[delivery]
            self.history.got[at] = self.history.got[at]._replace(until_us=rest[3])
            return
        self.unanswered.discard(delivery)
        if word == "acked":
            self.history.acked.add(delivery)
        elif word == "nacked":
            self.history.nacked.add(delivery)

    def kill(self, child: str) -> None:
        """Kill a child, and bear another under its name."""
        os.kill(self.pids.pop(child), signal.SIGKILL)
        self.kills += 1
        self.bear(child.partition(".")[0])

    def run(self) -> None:
        """Let them work, killing one after another, until all is sent and done."""
        for name in (*CONSUMERS, *PRODUCERS):
            self.bear(name)
        until_kill = 0
        while min(self.sent.values()) < self.messages or self.kills < self.kills_min:
            until_kill -= 1
            if until_kill <= 0:
                self.kill(self.chance.choice(sorted(self.pids)))
                until_kill = self.chance.choice((1, 5, 40, 120))
            self.hear()
        while self.hear() != "empty" or self.queue.lag(GROUP):
            pass
        self.stop.touch()
        while self.pids:
            self.hear()
        self.history.maybe |= self.unanswered  # a worker that was killed with it may have answered, unheard


def stream(pipe: IO[bytes] | None) -> IO[bytes]:
    """Return a stream that is known to be there."""
    assert pipe is not None
    return pipe


def worked(
    folder: Path, state: str | None, *, ordered: bool, seed: int, broken: bool = False, messages: int = MESSAGES
) -> tuple[Works, list[str]]:
    """Let processes work and be killed; return what happened, and which promises were broken."""
    url = (folder / "db").as_uri()
    settings = QueueSettings(retry=RetryPolicy(max_attempts=6, backoff_s=0, max_backoff_s=0))
    with oncelog.connect(url) as db:
        queue = db.queue(TOPIC, settings, partitions=2, create=True, state=state)
        queue.consume(GROUP, ordered=ordered).close()
        command = [sys.executable, "-m", "tests.queue.worker", url, state or ""]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as zygote:
            works = Works(zygote, queue, folder / "stop", random.Random(seed), broken, messages)
            try:
                works.run()
            finally:
                for pid in works.pids.values():
                    os.kill(pid, signal.SIGKILL)
                stream(zygote.stdin).close()
        queue.consume(GROUP).receive(1)  # a message that was dying is buried now
        everything = {(part, at) for part, end in enumerate(queue.stats().ends) for at in range(end)}
        letters = queue.dead_letters.list()
        dead = {(letter.origin_partition, letter.origin_position): letter.attempts for letter in letters}
        assert len(dead) == len(letters), "each died once"
        assert len(everything) == len(PRODUCERS) * messages, "each was enqueued once"
        return works, works.history.complaints(everything, dead)


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
def test_every_message_is_done_or_dead_whoever_is_killed(tmp_path: Path, *, ordered: bool) -> None:
    """Attempts are truthful, nothing is delivered while leased, nothing after its ack, and order per key is kept.

    A group that does not ask for order does not get it by chance: the control of that rule.
    """
    works, complaints = worked(tmp_path, None, ordered=ordered, seed=1)
    out_of_order = [complaint for complaint in complaints if "was done" in complaint]
    assert [complaint for complaint in complaints if complaint not in out_of_order] == []
    assert bool(out_of_order) != ordered
    assert works.kills >= works.kills_min


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 5))
@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_every_message_is_done_or_dead_for_long(
    tmp_path: Path, request: pytest.FixtureRequest, where: str, seed: int
) -> None:
    """The same, for long, along other ways, and with the state in PostgreSQL too."""
    state = request.getfixturevalue("postgres_state") if where == "postgresql" else None
    _, complaints = worked(tmp_path, state, ordered=True, seed=seed)
    assert complaints == []


def test_leases_that_end_early_are_found(tmp_path: Path) -> None:
    """The control: brokers that take leases for over too early are caught by the same kills and the same checker."""
    _, complaints = worked(tmp_path, None, ordered=True, seed=1, broken=True, messages=MESSAGES_CONTROL)
    assert any("while it was leased" in complaint for complaint in complaints)
