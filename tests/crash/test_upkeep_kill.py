"""Writers that are killed with SIGKILL, on a real disk, while the log is sealed, truncated and adopted into."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

import oncelog
from oncelog import LogSettings, Window
from oncelog.errors import NotFound
from oncelog.log.log import Log
from oncelog.log.read.reader import Tail
from tests.crash.processes import ROOT
from tests.crash.upkeep import Upkeep
from tests.crash.upkeep_worker import WINDOW_KEYS, Life, Step, asked
from tests.crash.work import LOG, record

SOAK = os.environ.get("ONCELOG_SOAK") == "1"
KILLS = 600 if SOAK else 32
LINES_MAX = 160
SPINS_EXPONENT_MAX = 5.5
STEPS = 1_000
"""More than any writer lives to send."""

SETTINGS = LogSettings(
    window=Window(duration_s=86_400, max_keys=WINDOW_KEYS),
    segment_bytes=64 * 1024,
    snapshot_records=50,
    snapshot_interval_s=0.05,
)


class Producer:
    """Sends again whatever it has no answer for, through writers that keep being killed; reads at the same time."""

    def __init__(self, workers: subprocess.Popen[bytes], log: Log, seed: int) -> None:
        self.history = Upkeep()
        self.heard: Counter[str] = Counter()
        self.kills = self.lost_answers = self.jumps = self.adopted = 0
        self._workers = workers
        self._log = log
        self._chance = random.Random(seed)
        self._tail: Tail | None = None
        self._reached = 0
        self._next = 0
        self._unanswered: dict[int, Step] = {}

    def live(self, *, kill: bool, adopts: bool, steps: int = STEPS) -> None:
        """Let a writer live for some lines of its report, kill it, and note what it said before and after that."""
        lines = self._chance.choice((0, 1, self._chance.randrange(20), self._chance.randrange(LINES_MAX)))
        resend = sorted(set(self._unanswered.values()), key=lambda step: step.first)
        life = Life(resend, self._next, steps, self._chance.randrange(2**32), adopts)
        assert self._workers.stdin is not None
        self._workers.stdin.write(msgspec.json.encode(life) + b"\n")
        self._workers.stdin.flush()
        line = born = self.hear()
        heard = 0
        while line[0] != "ended":
            self._note(line, arrived=not kill or heard <= lines)
            if kill and heard == lines:
                for _ in range(int(10 ** self._chance.uniform(0, SPINS_EXPONENT_MAX))):
                    pass
                os.kill(int(born[1]), signal.SIGKILL)
            elif heard % 16 == 0:
                self.read(20)
            line, heard = self.hear(), heard + 1
        assert int(line[1]) == (-signal.SIGKILL if kill else 0), line
        self.kills += kill
        self.read(1_000)

    def hear(self) -> list[str]:
        """Return the words of the next line that a writer says."""
        assert self._workers.stdout is not None
        return self._workers.stdout.readline().decode().split()

    def _note(self, line: list[str], *, arrived: bool) -> None:
        """Note a line. What did not arrive before the kill, the producer does not know."""
        assert line[0] != "failed", line
        self.heard[line[0]] += 1
        if line[0] == "send":
            self._sent(Step(line[1], int(line[2]), int(line[3])))
        elif line[0] == "ack":
            self._acked(*map(int, line[1:]))
            self.lost_answers += not arrived
            if arrived:
                self._unanswered.pop(int(line[1]), None)
        elif line[0] == "cut":
            self.history.cut_max = max(self.history.cut_max, int(line[1]))
        elif line[0] == "begins":
            assert int(line[1]) <= self.history.cut_max

    def _sent(self, step: Step) -> None:
        self.history.offer(step.records)
        if step.first >= self._next:
            self._next = step.first + step.size
            self._unanswered |= dict.fromkeys(range(step.first, self._next), step)
            self.adopted += step.kind == "adopt"
            if step.kind == "batch":
                self.history.batch(asked(step))

    def _acked(self, number: int, position: int, duplicate: int) -> None:
        value = record(number, "explicit").value
        assert duplicate or value not in self.history.acknowledged, f"{number} was acknowledged, and then as new"
        self.history.adopted([record(number, "explicit")], position)

    def read(self, count: int) -> None:
        """Go on reading for some entries, or to the end."""
        found = []
        for _ in range(count):
            try:
                if self._tail is None:
                    self._tail = self._log.tail(self._reached)
                entry = self._tail.poll()
            except NotFound as error:
                self._tail, self._reached = None, self._begin(error.first)
                continue
            if entry is None:
                break
            assert entry.position == self._reached
            self._reached += 1
            found.append(entry)
        self.history.passed(found)

    def _begin(self, first: int | None) -> int:
        """Return where reading goes on after a truncation that was further than the reader."""
        assert first is not None
        assert first > self._reached
        self.jumps += 1
        return first

    @property
    def is_waiting(self) -> bool:
        """Whether there is something that was sent and has no answer."""
        return bool(self._unanswered)


def run(folder: Path, kills: int, seed: int) -> tuple[Producer, Log]:
    """Kill that many writers, and let a last one send what is still without an answer.

    Adopted files keep the log from being truncated as long as the window lasts, so they come in the second half.
    """
    database = oncelog.connect(folder.as_uri())
    log = database.log(LOG, SETTINGS, create=True)
    command = [sys.executable, "-m", "tests.crash.upkeep_worker", folder.as_uri()]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as workers:
        producer = Producer(workers, log, seed)
        producer.live(kill=False, adopts=False, steps=20)
        while producer.kills < kills:
            producer.live(kill=True, adopts=producer.kills >= kills // 2)
        producer.live(kill=False, adopts=True, steps=5)
        assert not producer.is_waiting
        workers.communicate()
        assert workers.returncode == 0
    return producer, log


def check(producer: Producer, log: Log) -> None:
    """Hold what is in the log against what happened, and see that enough happened for that to mean something."""
    producer.read(100_000)
    entries = list(log.read())
    producer.history.saw(entries)
    verified = log.verify()
    assert verified.ok, verified.findings
    assert verified.records == len(entries)
    assert producer.history.first > 0, "nothing was truncated"
    assert log.files(), "nothing was sealed"
    assert log.info().first_position == producer.history.first
    assert producer.adopted > 0
    assert producer.lost_answers > 0
    assert {"sealed", "begins", "snapshot", "ack", "closed"} <= producer.heard.keys()


def test_upkeep_survives_kills(tmp_path: Path) -> None:
    """Whenever a writer is killed in sealing, truncating, adopting or taking snapshots: what was acknowledged is
    there once, where it was told to be, unless it was truncated away, and the log verifies.
    """
    producer, log = run(tmp_path, KILLS, seed=1)
    assert producer.kills == KILLS
    check(producer, log)
    log.seal()
    check(producer, log)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 8))
def test_upkeep_survives_hundreds_of_kills(tmp_path: Path, seed: int) -> None:
    """The same, for long, and along other ways each time."""
    check(*run(tmp_path, 200, seed))


def test_a_record_that_is_lost_is_noticed(tmp_path: Path) -> None:
    """A control: an acknowledged record that is not in the log, or is there twice, does not pass."""
    producer, log = run(tmp_path, 2, seed=3)
    entries = list(log.read())
    producer.history.check(entries)
    with pytest.raises(AssertionError, match="told"):
        producer.history.check(entries[:-1])
    with pytest.raises(AssertionError, match="gaps"):
        producer.history.check([*entries, entries[-1]])
