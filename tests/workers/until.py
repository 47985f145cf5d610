"""Workers that tests wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import oncelog
from oncelog import Queue, WorkerEvent
from oncelog.workers.worker import Worker


class Until:
    """Waits for what a worker reports."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.told: list[tuple[str, str]] = []
        self.events: list[WorkerEvent] = []

    def __call__(self, event: WorkerEvent) -> None:
        """Note it."""
        with self._changed:
            self.told.append((event.word, event.about))
            self.events.append(event)
            self._changed.notify_all()

    def wait(self, word: str, count: int = 1) -> None:
        """Wait until a word was told so often."""
        with self._changed:
            assert self._changed.wait_for(lambda: [told for told, _ in self.told].count(word) >= count, 30), self.told


def work(queue: Queue, handler: Callable[..., Any], until: Until, **options: Any) -> Worker:
    """Return a worker that reports."""
    return oncelog.worker(queue, "mailer", handler, report=until, **options)
