"""The latest answers of a log: time, id, peer and outcome, for people who ask what became of an id."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

ANSWERS_MAX = 10_000
"""Answers that are kept for one log, the latest ones."""

_OVERHEAD_BYTES = 200


class RefusedAppend(NamedTuple):
    """The content of an append that was refused, because its id is taken by other content: the beginning of the value,
    and the size and the SHA-256 of the whole value.
    """

    value: bytes
    size_bytes: int
    digest: str
    headers: Mapping[str, bytes]
    labels: Mapping[str, str]


class Answered(NamedTuple):
    """One answer. ``outcome``: ``"stored"``, ``"duplicate"``, ``"conflict"``, or the name of an error."""

    time_us: int
    id: str | None
    peer: str
    outcome: str
    position: int | None
    refused: RefusedAppend | None = None


class RingBudget:
    """The bytes that the rings of all logs of a server share, about."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0


class AnswerRing:
    """The latest answers of one log. One thread adds; any thread reads."""

    def __init__(self, budget: RingBudget, answers_max: int = ANSWERS_MAX) -> None:
        self._budget = budget
        self._answers_max = answers_max
        self._answers: deque[Answered] = deque()
        self.count = 0
        """How many answers were added since the log's seat was made."""

    def add(self, answered: Answered) -> None:
        """Add an answer; the oldest one of this log leaves when there is no room."""
        self._answers.append(answered)
        self._budget.used_bytes += _size_bytes(answered)
        self.count += 1
        while len(self._answers) > self._answers_max or (
            len(self._answers) > 1 and self._budget.used_bytes > self._budget.bytes_max
        ):
            self._budget.used_bytes -= _size_bytes(self._answers.popleft())

    def latest(self, limit: int = ANSWERS_MAX, *, id: str | None = None) -> list[Answered]:
        """Return the latest answers, the newest first; those to one id, if it is given."""
        found = [one for one in reversed(self._answers.copy()) if id is None or one.id == id]
        return found[:limit]

    def clear(self) -> None:
        """Forget all answers."""
        while self._answers:
            self._budget.used_bytes -= _size_bytes(self._answers.popleft())


def _size_bytes(answered: Answered) -> int:
    return _OVERHEAD_BYTES + len(answered.id or "") + len(answered.peer) + _refused_bytes(answered.refused)


def _refused_bytes(refused: RefusedAppend | None) -> int:
    if refused is None:
        return 0
    parts = [*refused.headers.items(), *refused.labels.items()]
    return _OVERHEAD_BYTES + len(refused.value) + sum(_OVERHEAD_BYTES + len(one) + len(other) for one, other in parts)
