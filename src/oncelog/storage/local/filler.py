"""Zeros ahead of a segment's end: a sync is twice as quick where the file need not grow.

Small files are filled by the appending thread; large ones by a thread, in portions, so that an append never waits for
more than one of them. Nothing depends on the zeros: when they cannot be written, the file grows as it is appended to.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from oncelog.limits import KIB, MIB
from oncelog.storage.local.disk import Disk, close_quietly

STEP_BYTES_MIN = 64 * KIB
STEP_BYTES_MAX = 16 * MIB
AHEAD_BYTES_MIN = 1 * MIB
"""From this step on a thread fills ahead of need."""

_PORTION_BYTES = 1 * MIB
_PAGE_BYTES = 4096
_ZEROS = bytes(_PORTION_BYTES)


class ZeroFiller:
    """Keeps zeros ahead of the end of one segment's file.

    Invariant: below ``filled`` nobody writes zeros any more, at or behind it nobody has written a block, nor will while
    a portion is being filled.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self.filled = 0
        """Zeros reach so far: below it ``prepare`` has nothing to do."""
        self._target = 0
        self._filling = False
        self._stopped = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def prepare(self, descriptor: int, offset: int, end: int) -> None:
        """Call before blocks are written up to ``end``: makes room if that is cheap, and takes the place for them."""
        if end < self.filled:
            return
        with self._changed:
            while self._filling:
                self._changed.wait()
            step_bytes = min(max(offset, STEP_BYTES_MIN), STEP_BYTES_MAX)
            if step_bytes < AHEAD_BYTES_MIN:
                # If the disk is full, the append of the block itself reports it.
                with contextlib.suppress(OSError):
                    self._disk.write(descriptor, [bytes(end + step_bytes - self.filled)], self.filled)
                    self.filled = end + step_bytes
            self.filled = max(self.filled, end + -end % _PAGE_BYTES)

    def fill_ahead(self, end: int) -> None:
        """Call when blocks were written up to ``end``: has the next step filled in the background, if it is large."""
        step_bytes = min(end, STEP_BYTES_MAX)
        if step_bytes < AHEAD_BYTES_MIN or end + step_bytes // 2 <= self.filled or end + step_bytes <= self._target:
            return
        with self._changed:
            self._target = end + step_bytes
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._run, name="oncelog zero filler", daemon=True)
                with contextlib.suppress(RuntimeError):  # without a thread the file grows as it is appended to
                    thread.start()
                    self._thread = thread
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread, if there is one. May be repeated."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        # Whatever goes wrong here, the writer finds out for itself, if it is still true when it matters.
        with contextlib.suppress(BaseException):
            # A descriptor of its own: a write-back error is reported once per open file, and must reach the writer's.
            descriptor = self._disk.open(self._path)
            try:
                while self._fill_portion(descriptor):
                    self._disk.sync(descriptor)
            finally:
                close_quietly(self._disk, descriptor)
        with self._changed:
            self._thread = None

    def _fill_portion(self, descriptor: int) -> bool:
        """Fill a portion when there is need; ``False`` when there never will be again."""
        with self._changed:
            while not self._stopped and self.filled >= self._target:
                self._changed.wait()
            if self._stopped:
                return False
            self._filling = True
            size = min(_PORTION_BYTES, self._target - self.filled)
        filled = 0
        try:
            self._disk.write(descriptor, [_ZEROS[:size]], self.filled)
            filled = size
        finally:
            with self._changed:
                self.filled += filled
                self._filling = False
                self._changed.notify_all()
        return True
