"""One thread that takes all that has arrived, in order: calls that must not wait leave their work here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from oncelog.concurrency.pending import on_loop
from oncelog.errors import Unavailable
from oncelog.handle import Backlog

T = TypeVar("T")

ITEMS_MAX = 100_000
BYTES_MAX = 64 << 20
"""So much may wait in a batcher."""

_IDLE_S = 1.0


class Batcher(Backlog, Generic[T]):
    """Hands items to a function, in their order, all that have arrived at once. Safe to share between threads.

    The function runs in one thread, which starts with the first item and ends when no more come. It must not raise.
    """

    def __init__(
        self, name: str, handle: Callable[[list[T]], None], *, items_max: int = ITEMS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        super().__init__()
        self._name = name
        self._handle = handle
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._guard = threading.RLock()  # a ``with`` of the condition could leave it taken after Ctrl-C
        self._changed = threading.Condition(self._guard)
        self._items: list[T] = []
        self.count = 0
        """How much is waiting, or being handled."""
        self._bytes = 0
        self._taken = self._taken_bytes = 0
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """How much is waiting, or being handled."""
        return self.count

    def put(self, item: T, *, count: int = 1, size_bytes: int = 0, timeout_s: float | None = 0.0) -> None:
        """Leave an item. Without room, wait for it up to ``timeout_s``, but never on an event loop.

        ``Unavailable``, not written, when there is no room, or no thread.
        """
        with self._guard:
            if not self._has_room(count, size_bytes) and not on_loop():
                self._changed.wait_for(lambda: self._has_room(count, size_bytes), timeout_s)
            if not self._has_room(count, size_bytes):
                message = f"{self.count} calls ({self._bytes} bytes) are waiting, which is as many as may: slow down"
                raise Unavailable(message)
            self._start()
            self._items.append(item)
            self.count += count
            self._bytes += size_bytes
            self._taken += count
            self._taken_bytes += size_bytes
            self._changed.notify_all()

    def _has_room(self, count: int, size_bytes: int) -> bool:
        return not self.count or (self.count + count <= self._items_max and self._bytes + size_bytes <= self._bytes_max)

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                message = f"no thread to work with ({error}): end some, and try again"
                raise Unavailable(message) from error
            self._thread = thread

    def _work(self) -> None:
        while True:
            with self._guard:
                if not self._items:
                    self._changed.wait_for(lambda: bool(self._items), _IDLE_S)
                if not self._items:
                    self._thread = None
                    return
                items, self._items = self._items, []
                taken, taken_bytes = self._taken, self._taken_bytes
                self._taken = self._taken_bytes = 0
            try:
                self._handle(items)
            finally:
                with self._guard:
                    self.count -= taken
                    self._bytes -= taken_bytes
                    self._changed.notify_all()

    def wait_idle(self, timeout_s: float | None) -> bool:
        """Return whether all that was left here was handled within the time."""
        with self._guard:
            return self._changed.wait_for(lambda: not self.count, timeout_s)
