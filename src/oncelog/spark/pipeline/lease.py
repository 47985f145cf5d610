"""One run at a time for each checkpoint: a lease avoids double work, and names the process that runs.

Correctness does not rest on the lease: a process that was paused may wake up after its lease was taken. The log
relies on ids and marks, and a file sink on the manifest of each batch (``sinks.folder``): no lease is needed for them.

On a disk the lease is a lock of the operating system, which ends with its holder. In a bucket it is a run of objects
``lease/<epoch>/<number>``: the holder creates the next number again and again; a run that sees no new number for as
long as a lease lasts, by its own clock, creates the next epoch.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from oncelog.clock import SYSTEM, Clock
from oncelog.errors import LeaseLost, LogBusy, NotFound, OncelogError
from oncelog.shapes import UNREADABLE
from oncelog.spark.pipeline import spec
from oncelog.spark.pipeline.spec import Spec
from oncelog.storage.bucket.paths import bucket_of
from oncelog.storage.local import links
from oncelog.types import moment

if TYPE_CHECKING:
    from oncelog.storage.bucket.bucket import Bucket

LEASE_S = 30.0
_POLL_S = 0.2
_PATIENCE_S = 0.5
"""How long a run waits for a lock in any case: a process that looks who runs has it for a moment."""

_FILE = "run.lock"
_ENDED = "ended"


class Holder(msgspec.Struct, frozen=True):
    """Who runs a pipeline, since when."""

    host: str
    pid: int
    since_us: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {moment(self.since_us):%Y-%m-%d %H:%M:%S} UTC"


class PipelineLease(Protocol):
    """The right to run a pipeline."""

    def check(self) -> None:
        """Raise ``LeaseLost`` when another run has taken it."""
        ...


class NoLease:
    """What there is where neither a lock nor a conditional create is known: sinks alone keep two runs apart."""

    def check(self) -> None:
        """Accept."""


@contextmanager
def held(given: Spec, clock: Clock, wait_s: float = 0.0) -> Iterator[PipelineLease]:
    """Hold the lease of a pipeline; ``LogBusy``, which says who runs, if it cannot be had within ``wait_s``."""
    me = Holder(socket.gethostname(), os.getpid(), clock.now_us())
    folder = spec.local_path(given.checkpoint)
    place = None if folder is not None else bucket_of(given.checkpoint)
    if folder is not None:
        with _locked(folder, given.name, me, clock, wait_s) as lock:
            yield lock
    elif place is not None:
        with _leased(*place, given.name, me, clock, wait_s) as lease:
            yield lease
    else:
        yield NoLease()


def holder(given: Spec) -> Holder | None:
    """Return who runs a pipeline now, ``None`` if nobody does. In a bucket the holder may have died a moment ago."""
    folder = spec.local_path(given.checkpoint)
    if folder is not None:
        return _lock_holder(folder / _FILE)
    place = bucket_of(given.checkpoint)
    if place is None:
        return None
    return BucketLease(place[0], f"{place[1]}/lease/", Holder("", 0, 0), SYSTEM).holder()


def _lock_holder(path: Path) -> Holder | None:
    try:
        with path.open("rb") as file:
            if _lock(file.fileno()):
                return None
            return _decoded(file.read()) or Holder("this machine", 0, 0)
    except FileNotFoundError:
        return None


def _busy(name: str, holder: Holder | None) -> LogBusy:
    who = "another run" if holder is None else str(holder)
    message = f"pipeline {name!r} is being run by {who}: wait for it, or run with --wait SECONDS"
    return LogBusy(message, pid=None if holder is None else holder.pid)


@contextmanager
def _locked(folder: Path, name: str, me: Holder, clock: Clock, wait_s: float) -> Iterator[PipelineLease]:
    folder.mkdir(mode=links.FOLDER_MODE, parents=True, exist_ok=True)
    deadline_us = clock.elapsed_us() + round(max(wait_s, _PATIENCE_S) * 1e6)
    with links.append_to(folder / _FILE) as file:
        while not _lock(file.fileno()):
            if clock.elapsed_us() >= deadline_us:
                file.seek(0)
                raise _busy(name, _decoded(file.read()))
            _pause(clock, _POLL_S)
        file.truncate(0)
        file.write(msgspec.json.encode(me))
        file.flush()
        yield NoLease()  # the lock lasts as long as this process does


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _decoded(data: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(data, type=Holder)
    except UNREADABLE:
        return None


def _pause(clock: Clock, seconds: float) -> None:
    condition = threading.Condition()
    with condition:
        clock.wait(condition, seconds)


@contextmanager
def _leased(  # noqa: PLR0917
    bucket: Bucket, prefix: str, name: str, me: Holder, clock: Clock, wait_s: float
) -> Iterator[PipelineLease]:
    lease = BucketLease(bucket, f"{prefix}/lease/", me, clock)
    lease.take(name, wait_s)
    try:
        yield lease
    finally:
        lease.end()


class BucketLease:
    """A lease in a bucket, kept by a thread until ``end``."""

    def __init__(self, bucket: Bucket, prefix: str, me: Holder, clock: Clock, lease_s: float = LEASE_S) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._me = me
        self._clock = clock
        self._lease_s = lease_s
        self._epoch = self._number = 0
        self._lost = False
        self._ending = threading.Condition()
        self._ended = False
        self._thread: threading.Thread | None = None

    def take(self, name: str, wait_s: float = 0.0) -> None:
        """Take the lease, once nobody renews it; ``LogBusy`` if somebody does, for longer than ``wait_s``."""
        deadline_us = self._clock.elapsed_us() + round(wait_s * 1e6)
        seen, since_us = self._newest(), self._clock.elapsed_us()
        while not self._is_free(seen, since_us):
            _pause(self._clock, min(_POLL_S, self._lease_s / 5))
            now = self._newest()
            if now != seen:
                seen, since_us = now, self._clock.elapsed_us()
                if self._clock.elapsed_us() >= deadline_us and not self._is_free(seen, since_us):
                    raise _busy(name, self._holder(seen[0]))
        if not self._create(seen[0] + 1, 0):
            raise _busy(name, self._holder(seen[0] + 1))
        self._epoch = seen[0] + 1
        self._thread = threading.Thread(target=self._renew, name="oncelog-lease", daemon=True)
        self._thread.start()

    def holder(self) -> Holder | None:
        """Return who has the lease, ``None`` once it was ended."""
        epoch, number = self._newest()
        return None if epoch == 0 or number == _ENDED else self._holder(epoch)

    def check(self) -> None:
        """Raise ``LeaseLost`` when another run has created a higher epoch."""
        if self._lost or self._newest()[0] > self._epoch:
            message = "another run has taken this pipeline over: this one was paused, or its bucket did not answer"
            raise LeaseLost(message)

    def end(self) -> None:
        """Let others have it at once."""
        with self._ending:
            self._ended = True
            self._ending.notify_all()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(OncelogError):
            self._bucket.create(f"{self._prefix}{self._epoch:010d}/{_ENDED}", [b"{}"])

    def _is_free(self, seen: tuple[int, str], since_us: int) -> bool:
        epoch, number = seen
        unchanged_us = self._clock.elapsed_us() - since_us
        return epoch == 0 or number == _ENDED or unchanged_us >= self._lease_s * 1e6

    def _newest(self) -> tuple[int, str]:
        """Return the newest epoch, and the newest number in it; ``ended`` sorts behind all numbers."""
        found = [path[len(self._prefix) :] for path, _ in self._bucket.below(self._prefix)]
        epoch, _, number = max(found, default="0/").partition("/")
        return int(epoch), number

    def _holder(self, epoch: int) -> Holder | None:
        try:
            return _decoded(self._bucket.get(f"{self._prefix}{epoch:010d}/{0:010d}").to_pybytes())
        except NotFound:
            return None

    def _create(self, epoch: int, number: int) -> bool:
        key = f"{self._prefix}{epoch:010d}/{number:010d}"
        mine = msgspec.json.encode(self._me)
        return self._bucket.create(key, [mine]) or self._bucket.get(key).to_pybytes() == mine

    def _renew(self) -> None:
        """Create the next number three times in a lease; the numbers before it go, but for the first."""
        while True:
            with self._ending:
                if not self._ended:
                    self._clock.wait(self._ending, self._lease_s / 3)
                if self._ended:
                    return
            try:
                self._lost = self._lost or self._newest()[0] > self._epoch
                self._create(self._epoch, self._number + 1)
            except OncelogError:
                continue  # the bucket does not answer now; a run that takes over is noticed later
            if self._number:
                with contextlib.suppress(OncelogError):
                    self._bucket.delete(f"{self._prefix}{self._epoch:010d}/{self._number:010d}")
            self._number += 1
