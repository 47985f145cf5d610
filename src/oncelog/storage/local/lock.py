"""The right to write a log on a local disk: a lock that the operating system takes back when its holder dies."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from oncelog.clock import Clock
from oncelog.errors import Closed, LogBusy, WriterFenced
from oncelog.storage.local.disk import Disk, close_quietly, explain

_POLL_S = 0.01
_PID_BYTES = 32


class LocalClaim:
    """A lock that is held, or being taken. While ``writing`` is held it is not given back: ``check`` first, then write.

    ``writing`` is a plain lock, because nothing can interrupt ``with`` between taking one and noting that it has.
    """

    def __init__(self, disk: Disk, descriptor: int, path: Path) -> None:
        self._disk = disk
        self._descriptor: int | None = descriptor
        self._path = path
        self._forked = False
        self.is_held = True
        """Whether ``check`` would raise nothing."""
        self.writing = threading.Lock()

    def check(self) -> None:
        """Raise ``WriterFenced`` once it was given back, ``Closed`` in a process forked from the holder."""
        if self._forked:
            message = f"{self._path}: held by the process this one was forked from; open the log again here"
            raise Closed(message)
        if self._descriptor is None:
            message = f"{self._path}: this writer has given the log back"
            raise WriterFenced(message, outcome="unknown")

    def release(self) -> None:
        """Give the lock back when nothing is being written. May be repeated."""
        if self._forked:
            return
        with self.writing:
            with _fork_guard:
                _held.discard(self)
            self.is_held = False
            if self._descriptor is not None:
                close_quietly(self._disk, self._descriptor)
            self._descriptor = None

    def answers(self) -> bool:
        """Tell whether the lock's file is where it was: not if its folder is gone, or the disk fails."""
        try:
            return self._disk.identity(self._path) is not None
        except OSError:
            return False

    def drop_copy(self) -> None:
        """Close a forked child's copy of the lock. The parent's stays locked: a lock ends with its last copy."""
        self._forked = True
        self.is_held = False
        self.writing = threading.Lock()  # the thread that held it is in the parent process
        if self._descriptor is not None:
            close_quietly(self._disk, self._descriptor)
        self._descriptor = None


def acquire(disk: Disk, path: Path, wait_s: float, clock: Clock, *, force: bool) -> LocalClaim:
    """Lock a file in a folder that is there, trying for ``wait_s``; else ``LogBusy``."""
    deadline_us = clock.elapsed_us() + round(wait_s * 1_000_000)
    condition = threading.Condition()
    while True:
        try:
            claim = _try(disk, path)
            if claim is not None:
                return claim
        except OSError as error:
            raise explain(error, path) from error
        left_s = (deadline_us - clock.elapsed_us()) / 1_000_000
        if left_s <= 0:
            raise _busy(disk, path, force=force)
        with condition:
            clock.wait(condition, min(_POLL_S, left_s))


def _try(disk: Disk, path: Path) -> LocalClaim | None:
    # A fork between opening and noting the file would leave a child that keeps the lock.
    with _fork_guard:
        descriptor = disk.open(path, create=True)
        claim = LocalClaim(disk, descriptor, path)
        _held.add(claim)
    locked = False
    try:
        # The file may have been removed with its home since it was opened: a lock on that excludes nobody.
        locked = disk.lock(descriptor) and disk.identity(path) == disk.identity_of(descriptor)
    finally:
        if not locked:
            claim.release()
    if locked:
        with contextlib.suppress(OSError):
            disk.write(descriptor, [f"{disk.process()}".ljust(_PID_BYTES).encode()], 0)
    return claim if locked else None


def _busy(disk: Disk, path: Path, *, force: bool) -> LogBusy:
    pid = _holder(disk, path)
    holder = "another process or writer" if pid is None else f"process {pid}"
    advice = (
        "a local disk cannot fence a living writer: end that process" if force else "close that writer, or wait longer"
    )
    return LogBusy(f"{path.parent}: held by {holder}; {advice}", pid=pid)


def _holder(disk: Disk, path: Path) -> int | None:
    """Return whose id is in the lock's file. It is for people: it may be the one before."""
    try:
        descriptor = disk.open_to_read(path)
        try:
            text = disk.read(descriptor, _PID_BYTES, 0).strip()
        finally:
            close_quietly(disk, descriptor)
    except OSError:
        return None
    return int(text) if text.isdigit() else None


_fork_guard = threading.Lock()
_held: set[LocalClaim] = set()


def _after_fork_in_child() -> None:
    for claim in _held:
        claim.drop_copy()
    _held.clear()
    _fork_guard.release()


os.register_at_fork(
    before=_fork_guard.acquire, after_in_parent=_fork_guard.release, after_in_child=_after_fork_in_child
)
