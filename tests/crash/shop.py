"""A producer whose writers keep being killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from dataclasses import dataclass, field

import msgspec

from oncelog.settings import Idempotence
from tests.crash.history import Acked, History
from tests.crash.processes import Process
from tests.crash.work import Step
from tests.crash.worker import Life

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
    fenced: int = 0
    answers_lost: int = 0
    force: float = 0.0
    lines_max: int = LINES_MAX
    next: int = 0
    _unanswered: dict[int, Step] = field(default_factory=dict)
    _answered: set[int] = field(default_factory=set)
    _complete: list[Step] = field(default_factory=list)

    def live(self, *, kill: bool = True) -> None:
        """Let a writer live for some lines of its report, kill it, and note what it said before and after that."""
        steps = STEPS if kill and self.chance.random() < 0.9 else self.chance.randrange(5)
        lines = self._lines_to_live() if kill else None
        seed, force = self.chance.randrange(2**32), self.chance.random() < self.force
        life = Life(self.idempotence, self._to_resend(), self.next, steps, seed, force)
        born = self.zygote.ask(msgspec.json.encode(life).decode())
        assert born[0] == "born", born
        line, heard, acks_before = born, 0, len(self.history.acks)
        while line[0] != "ended":
            self._note(line, arrived=lines is None or heard <= lines)
            if heard == lines:
                _spin(int(10 ** self.chance.uniform(0, SPINS_EXPONENT_MAX)))
                with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(int(born[1]), signal.SIGKILL)
            line, heard = self.zygote.hear(), heard + 1
        self.kills += int(line[1]) == -signal.SIGKILL
        written = {ack.segment for ack in self.history.acks[acks_before:] if not ack.duplicate}
        self.rolls += max(0, len(written) - 1)

    def _lines_to_live(self) -> int:
        """Choose when to kill: while it opens, at once when it is open, soon, or when it has rolled."""
        chance = self.chance
        soon = self.lines_max // 10
        return chance.choice((0, 1, chance.randrange(2, soon), chance.randrange(soon, self.lines_max)))

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
        assert line[0] in {"born", "open", "send", "ack", "closed", "fenced"}, line
        if line[0] == "send":
            step = Step(line[1], int(line[2]), int(line[3]))  # type: ignore[arg-type]
            self.history.sent.append(step)
            self.next = max(self.next, step.first + step.size)
            self._unanswered |= {number: step for number in step.numbers if number not in self._answered}
        elif line[0] == "ack":
            number, position, segment, entry, duplicate = map(int, line[1:])
            self.history.acks.append(Acked(number, position, segment, entry, bool(duplicate)))
            self.answers_lost += not arrived
            if arrived:
                self._answer(number)
        self.closes += line[0] == "closed"
        self.fenced += line[0] == "fenced"

    def _answer(self, number: int) -> None:
        self._answered.add(number)
        step = self._unanswered.pop(number, None)
        if step is not None and not any(other in self._unanswered for other in step.numbers):
            self._complete.append(step)


def _spin(rounds: int) -> None:
    """Let the writer go on for a moment that no line of its report marks."""
    for _ in range(rounds):
        pass
