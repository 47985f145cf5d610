"""When something goes wrong: the nth call, every call of a kind, or the whole process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")
When = Literal["before", "during", "after"]
"""Whether a call that fails has done nothing, a part (of what can be done in parts), or all of its work."""


class Killed(BaseException):
    """The process died here. No handler for errors sees it, as none sees a ``kill -9``."""


class Faults:
    """Counts calls, and says which of them go wrong. Safe to share between threads.

    ``fail_at`` and ``kill_at`` count from the next call, which is number 1. ``calls`` is how many there were.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.operations: list[str] = []
        self._lock = threading.Lock()
        self._planned: dict[int, tuple[Exception, When]] = {}
        self._kill: tuple[int, When] | None = None
        self._killed = False
        self._forever: list[tuple[Callable[[str, str], Exception | None], When]] = []

    def fail_at(self, number: int, error: Exception, when: When = "before") -> None:
        """Let the call of that number, from now, raise an error."""
        with self._lock:
            self._planned[self.calls + number] = (error, when)

    def kill_at(self, number: int, when: When = "before") -> None:
        """Let the process die in the call of that number, from now: it and all later ones raise ``Killed``."""
        with self._lock:
            self._kill = (self.calls + number, when)

    def fail_forever(self, predicate: Callable[[str, str], Exception | None], when: When = "before") -> None:
        """Ask before every call: the operation and its object in, an error to raise, or ``None``, out."""
        with self._lock:
            self._forever.append((predicate, when))

    def heal(self) -> None:
        """Let everything succeed again."""
        with self._lock:
            self._planned.clear()
            self._forever.clear()
            self._kill = None
            self._killed = False

    @property
    def is_killed(self) -> bool:
        """Whether the process has died and was not started again."""
        return self._killed

    def call(self, operation: str, what: str, work: Callable[[], T]) -> T:
        """Do the work of an operation, unless it is to fail, before or after."""
        error, when = self.next_call(operation, what)
        if error is not None and when == "before":
            raise error
        answer = work()
        if error is not None:
            raise error
        return answer

    def next_call(self, operation: str, what: str) -> tuple[BaseException | None, When]:
        """Count a call; return what it is to raise, and when. Raises ``Killed`` when the process is dead already."""
        with self._lock:
            if self._killed:
                raise Killed
            self.calls += 1
            self.operations.append(operation)
            if self._kill is not None and self.calls >= self._kill[0]:
                self._killed = True
                return Killed(), self._kill[1]
            if self.calls in self._planned:
                return self._planned.pop(self.calls)
            for predicate, when in self._forever:
                error = predicate(operation, what)
                if error is not None:
                    return error, when
        return None, "before"
