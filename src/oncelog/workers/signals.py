"""Signals that stop a worker."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class stopped_by_signals:  # noqa: N801  (used as a verb)
    """Within it, SIGTERM and SIGINT stop; a second one does what it did before. Only in the main thread."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._restore()
        # Not here: the main thread may hold the lock that stopping needs.
        threading.Thread(target=self._stop, daemon=True).start()

    def _restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
