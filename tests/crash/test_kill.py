"""Writers that are killed with SIGKILL again and again, on a real disk: what was acknowledged is there, once."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

import oncelog
from oncelog import Entry
from oncelog.settings import Idempotence
from tests.crash.history import Acked, History, Seen
from tests.crash.processes import Process
from tests.crash.work import LOG, Step, settings
from tests.crash.worker import Life

SOAK = os.environ.get("ONCELOG_SOAK") == "1"
KILLS = 2_000 if SOAK else 110
KILLS_CONTROL = 40
LINES_MAX = 250
SPINS_EXPONENT_MAX = 6
STEPS = 1_000
"""More than any writer lives to send."""


@dataclass
class Shop:
    """A producer that sends again whatever it has no answer for, through writers that keep being killed."""

    zygote: Process
    idempotence: Idempotence
    chance: random.Random
    history: History = field(default_factory=History)
    kills: int = 0
    rolls: int = 0
    closes: int = 0
    answers_lost: int = 0
    _next: int = 0
    _unanswered: dict[int, Step] = field(default_factory=dict)
    _answered: set[int] = field(default_factory=set)
    _complete: list[Step] = field(default_factory=list)

    def live(self, *, kill: bool = True) -> None:
        """Let a writer live for some lines of its report, kill it, and note what it said before and after that."""
        steps = STEPS if kill and self.chance.random() < 0.9 else self.chance.randrange(5)
        lines = self._lines_to_live() if kill else None
        life = Life(self.idempotence, self._to_resend(), self._next, steps, self.chance.randrange(2**32))
        born = self.zygote.ask(msgspec.json.encode(life).decode())
        assert born[0] == "born", born
        line, heard, acks_before = born, 0, len(self.history.acks)
        while line[0] != "ended":
            self._note(line, arrived=lines is None or heard <= lines)
            if heard == lines:
                _spin(int(10 ** self.chance.uniform(0, SPINS_EXPONENT_MAX)))
                os.kill(int(born[1]), signal.SIGKILL)
            line, heard = self.zygote.hear(), heard + 1
        self.kills += int(line[1]) == -signal.SIGKILL
        written = {ack.segment for ack in self.history.acks[acks_before:] if not ack.duplicate}
        self.rolls += max(0, len(written) - 1)

    def _lines_to_live(self) -> int:
        """Choose when to kill: while it opens, at once when it is open, soon, or when it has rolled."""
        chance = self.chance
        return chance.choice((0, 1, chance.randrange(2, LINES_MAX // 10), chance.randrange(LINES_MAX // 10, LINES_MAX)))

    @property
    def is_waiting(self) -> bool:
        """Whether there is something that was sent and has no answer."""
        return bool(self._unanswered)

    def _to_resend(self) -> list[Step]:
        """Return all that has no answer; and, if that is safe, some of what has one."""
        some = [] if self.idempotence == "off" else self.chance.sample(self._complete, min(3, len(self._complete)))
        return sorted({*self._unanswered.values(), *some}, key=lambda step: step.first)

    def _note(self, line: list[str], *, arrived: bool) -> None:
        """Note a line of a writer's report. What did not arrive before the kill, the producer does not know."""
        assert line[0] in {"born", "open", "send", "ack", "closed"}, line
        if line[0] == "send":
            step = Step(line[1], int(line[2]), int(line[3]))  # type: ignore[arg-type]
            self.history.sent.append(step)
            self._next = max(self._next, step.first + step.size)
            self._unanswered |= {number: step for number in step.numbers if number not in self._answered}
        elif line[0] == "ack":
            number, position, segment, entry, duplicate = map(int, line[1:])
            self.history.acks.append(Acked(number, position, segment, entry, bool(duplicate)))
            self.answers_lost += not arrived
            if arrived:
                self._answer(number)
        self.closes += line[0] == "closed"

    def _answer(self, number: int) -> None:
        self._answered.add(number)
        step = self._unanswered.pop(number, None)
        if step is not None and not any(other in self._unanswered for other in step.numbers):
            self._complete.append(step)


def _spin(rounds: int) -> None:
    """Let the writer go on for a moment that no line of its report marks."""
    for _ in range(rounds):
        pass


def create(folder: Path, idempotence: Idempotence) -> str:
    """Make a log in a folder and return the database's URL."""
    with oncelog.connect(folder.as_uri()) as db:
        db.log(LOG, settings(idempotence), create=True)
    return folder.as_uri()


def content(url: str) -> list[Entry]:
    """Return all that is in the log."""
    with oncelog.connect(url) as db:
        return list(db.log(LOG).read())


def run(url: str, idempotence: Idempotence, kills: int, seed: int) -> Shop:
    """Kill that many writers, and let a last one send what is still without an answer."""
    with Process("zygote", url) as zygote:
        shop = Shop(zygote, idempotence, random.Random(seed), History(idempotence))
        while shop.kills < kills:
            shop.live()
        shop.live(kill=False)
        assert not shop.is_waiting
        assert zygote.finish() == 0
    return shop


def run_with_reader(folder: Path, kills: int, seed: int) -> tuple[Shop, list[Entry]]:
    """Kill writers while another process reads; return what happened and what is there."""
    url = create(folder / "shop", "explicit")
    report = folder / "seen"
    with report.open("wb") as stdout, Process("reader", url, stdout=stdout) as reader:
        shop = run(url, "explicit", kills, seed)
        entries = content(url)
        reader.tell(str(len(entries) - 1))
        assert reader.finish() == 0
    for line in report.read_text().splitlines():
        word, *figures = line.split()
        assert word == "saw"
        shop.history.seen.append(Seen(*map(int, figures)))
    return shop, entries


def check(shop: Shop, entries: list[Entry], kills: int) -> None:
    """Hold what is in the log against what happened, and make sure that enough happened for that to mean something."""
    assert shop.history.complaints(entries) == []
    assert shop.kills == kills
    assert shop.answers_lost > 0
    assert shop.closes > 0
    assert any(ack.duplicate for ack in shop.history.acks)
    assert shop.rolls > 0
    assert {seen.position for seen in shop.history.seen} == set(range(len(entries)))
    assert {step.kind for step in shop.history.sent} == {"append", "many", "batch", "submit"}


def test_nothing_is_lost_and_nothing_twice_over_a_hundred_kills(tmp_path: Path) -> None:
    """Acknowledged means durable, at most once, whole batches, visible means durable: whenever a writer is killed."""
    shop, entries = run_with_reader(tmp_path, KILLS, seed=1)
    check(shop, entries, KILLS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_nothing_is_lost_and_nothing_twice_over_thousands_of_kills(tmp_path: Path, seed: int) -> None:
    """The same, for long, and along other ways each time."""
    shop, entries = run_with_reader(tmp_path, 500, seed)
    check(shop, entries, 500)


def test_without_idempotence_the_same_kills_leave_duplicates(tmp_path: Path) -> None:
    """The control: what the test above finds is not so by itself. Even here nothing that was acknowledged is lost."""
    url = create(tmp_path / "shop", "off")
    shop = run(url, "off", KILLS_CONTROL, seed=1)
    entries = content(url)
    found = shop.history.complaints(entries)
    twice = [complaint for complaint in found if "times" in complaint]
    assert len(twice) > 0
    assert found == twice
    assert not any(ack.duplicate for ack in shop.history.acks)
