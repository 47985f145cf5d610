"""A node: one existing store (a bucket or a folder) that holds registers, and the threads that ask it.

A *register* is a key that is created once: empty, then a block or a fence, for ever.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa

from oncelog.clock import Clock
from oncelog.errors import Closed, CorruptionError, NotFound, OncelogError, Unavailable
from oncelog.format import block as block_format
from oncelog.format import frame
from oncelog.format.block import HEADER_BYTES
from oncelog.shapes import UNREADABLE
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.quorum.folder import FolderBucket

IDENTITY = "oncelog-node"
"""The key of the object that says who a node is."""

KIND, FORMAT = b"OLnd", 1
FENCE_KIND, FENCE_FORMAT = b"OLfn", 1
LANE_REQUESTS = 4
"""Requests that one node is asked at once: so many appends, and so many others."""

BACKLOG_BYTES_MAX = 64 << 20
"""A node that is further behind gets nothing more for now: its copy is missing, and the segment is sealed early."""

REST_US = 1_000_000
"""A node that failed is asked again after so long."""

LATE_S = 2.0
"""A node that takes longer is not waited for, as long as the others suffice."""

LATE_REST_US = 15_000_000
"""A node that was late is left alone for so long: a request that hangs costs ``LATE_S`` each time."""

LATE_AGAIN_S = 0.2
"""A node that was late a moment ago is not waited for longer than this, as long as the others suffice."""

IDENTITY_US = 5_000_000
"""How often a writer checks that a node is still the one that was formatted."""

BELIEVED_US = 10_000_000
"""So long a reader believes a node that says "nothing is here". Believing a wiped node delays what the reader sees."""

Written = Literal["block", "fence", "damaged"]
"""What is in a register: a block or a fence whose checksum holds, or bytes that are neither."""

_T = TypeVar("_T")


class NodeIdentity(msgspec.Struct, frozen=True):
    """Who a node is: a random identity that it got when it was formatted, and the quorum that it belongs to."""

    identity: str
    quorum: str
    name: str


class Node:
    """One node of a quorum. Safe to share between threads."""

    def __init__(self, name: str, bucket: Bucket, identity: NodeIdentity, clock: Clock) -> None:
        """Keep a store; nothing is asked of it yet."""
        self.name = name
        self.bucket = bucket
        self.identity = identity
        self.trouble: str | None = None
        """Why the last request failed; ``None`` once one succeeded."""
        self._clock = clock
        self._lane = ThreadPoolExecutor(LANE_REQUESTS, thread_name_prefix=f"oncelog-node-{name}")
        self._appends = ThreadPoolExecutor(LANE_REQUESTS, thread_name_prefix=f"oncelog-append-{name}")
        """A lane of their own: blocks of a writer do not wait behind slow reads of the same process."""
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._backlog_bytes = 0
        self._failed_us: int | None = None
        self._late_us: int | None = None
        self._checked_us: int | None = None

    # Asking.

    def ask(self, work: Callable[[], _T]) -> Future[_T]:
        """Run a request in the lane of this node."""
        return self._submit(self._lane, lambda: self._watched(work))

    def ask_aside(
        self, work: Callable[[], _T], answered: Callable[[_T | OncelogError], object], size_bytes: int
    ) -> None:
        """Run a request in the lane of appends, and give its answer, or its error, to ``answered``. ``Unavailable`` at
        once when the node is too far behind.

        Every append comes here, once for each node: the lane itself calls ``answered``, and no future is waited for.
        """
        with self._lock:
            if self._backlog_bytes + size_bytes > BACKLOG_BYTES_MAX and self._backlog_bytes:
                message = f"node {self.name} is {self._backlog_bytes:,} bytes behind"
                raise Unavailable(message)
            self._backlog_bytes += size_bytes
        try:
            asked = self._submit(self._appends, lambda: self._do_aside(work, answered, size_bytes))
        except Closed:
            self._caught_up(size_bytes)
            raise

        def if_cancelled(asked: Future[None]) -> None:
            """Do what the request would have done at its end."""
            if asked.cancelled():
                self._caught_up(size_bytes)
                answered(self._closed())

        asked.add_done_callback(if_cancelled)

    def _do_aside(
        self, work: Callable[[], _T], answered: Callable[[_T | OncelogError], object], size_bytes: int
    ) -> None:
        try:
            answer: _T | OncelogError = self._watched(work)
        except OncelogError as error:
            answer = error
        finally:
            self._caught_up(size_bytes)
        answered(answer)

    def _submit(self, lane: ThreadPoolExecutor, work: Callable[[], _T]) -> Future[_T]:
        try:
            return lane.submit(work)
        except RuntimeError as error:
            raise self._closed() from error

    def _closed(self) -> Closed:
        return Closed(f"the connection to node {self.name} is closed")

    def _watched(self, work: Callable[[], _T]) -> _T:
        """Run a request, and note whether the node answered."""
        try:
            done = work()
        except NotFound:
            self._well()
            raise
        except OncelogError as error:
            self.trouble, self._failed_us = str(error), self._clock.elapsed_us()
            raise
        self._well()
        return done

    def _well(self) -> None:
        self.trouble = self._failed_us = None

    def _caught_up(self, size_bytes: int) -> None:
        with self._idle:
            self._backlog_bytes -= size_bytes
            if not self._backlog_bytes:
                self._idle.notify_all()

    @property
    def rests(self) -> bool:
        """Whether the node failed, or was late, a moment ago, and is better left alone."""
        failed_us = self._failed_us
        return self._was_late or (failed_us is not None and self._clock.elapsed_us() - failed_us < REST_US)

    @property
    def _was_late(self) -> bool:
        late_us = self._late_us
        return late_us is not None and self._clock.elapsed_us() - late_us < LATE_REST_US

    @property
    def patience_s(self) -> float:
        """How long to wait for an answer of the node, as long as the others suffice."""
        return LATE_AGAIN_S if self._was_late else LATE_S

    def late(self) -> Unavailable:
        """Note that an answer is late; return the error that stands for it.

        A quick answer to another request does not undo this: a server may list names at once, and hang on a read.
        """
        self.trouble = f"node {self.name} did not answer within {LATE_S:.0f} s"
        if not self._was_late:
            self._late_us = self._clock.elapsed_us()
        return Unavailable(self.trouble, outcome="unknown")

    # Identity.

    def check_identity(self) -> None:
        """Raise ``Unavailable`` unless this is the node that was formatted: a wiped or foreign store is no answer."""
        began_us = self._clock.elapsed_us()  # an answer that took long tells of the moment when it was asked for
        if read_identity(self.bucket) != self.identity:
            message = (
                f"node {self.name} ({self.bucket.url}) is not the one that was formatted: it was wiped, or replaced; "
                "bring its store back, or give it a new one (oncelog quorum replace)"
            )
            raise Unavailable(message, outcome="unknown")
        self._checked_us = began_us

    @property
    def unchecked_us(self) -> float:
        """How long ago the identity was checked."""
        return math.inf if self._checked_us is None else self._clock.elapsed_us() - self._checked_us

    def check_identity_after(self, believed_us: int) -> None:
        """Check the identity if the last check was so long ago."""
        if self.unchecked_us > believed_us:
            self.check_identity()

    # Registers. These run in the lane.

    def write(self, path: str, data: pa.Buffer) -> Written:
        """Create a register, or find what is in it: this block, a fence, or damage. ``CorruptionError`` for another
        block.
        """
        if not self.bucket.create(path, [data]):
            found = self._found(path)
            if not found.equals(data):
                kind = kind_of(found)
                if kind != "block":
                    return kind
                message = f"{self.bucket.url}/{path}: another block is there, though a number has one possible block"
                raise CorruptionError(message)
        self.check_identity_after(IDENTITY_US)
        return "block"

    def fence(self, path: str, fence: bytes, segment: int) -> Written:
        """Create a fence in a register, or find what is in it."""
        created = self.bucket.create(path, [fence])
        found: Written = "fence" if created else kind_of(self._found(path), segment)
        self.check_identity()
        return found

    def read(self, path: str) -> pa.Buffer | None:
        """Return what a register holds; ``None`` if it is empty. A wiped node has empty registers, and is no answer."""
        try:
            return self.bucket.get(path)
        except NotFound:
            self.check_identity()
            return None

    def holds(self, path: str, believed_us: int) -> bool:
        """Tell whether a register holds a block. That a wiped node holds none is no answer."""
        if (self.bucket.size(path) or 0) >= HEADER_BYTES:
            return True
        self.check_identity_after(believed_us)
        return False

    def kind_of(self, path: str) -> Written:
        """Return what a register holds that was not empty."""
        return kind_of(self._found(path))

    def _found(self, path: str) -> pa.Buffer:
        """Return what is in a register that was not empty."""
        try:
            return self.bucket.get(path)
        except NotFound as error:
            message = f"{self.bucket.url}/{path}: the register was there, and is not any more"
            raise Unavailable(message, outcome="unknown") from error

    def registers(self, folder: str) -> dict[str, int]:
        """Return the registers of a folder with the bytes of each; checked to be of this node after the answer."""
        found = dict(self.bucket.below(folder))
        self.check_identity()
        return found

    def catch_up(self, until_us: int) -> None:
        """Wait until blocks that nobody waits for any more are stored, unless that takes too long."""
        with self._idle:
            while self._backlog_bytes and (left_us := until_us - self._clock.elapsed_us()) > 0:
                self._clock.wait(self._idle, left_us / 1e6)

    def close(self) -> None:
        """Let go of the threads."""
        for lane in (self._lane, self._appends):
            lane.shutdown(wait=False, cancel_futures=True)


def read_identity(bucket: Bucket) -> NodeIdentity | None:
    """Return who a node is; ``None`` if it was never formatted."""
    try:
        data = bucket.get(IDENTITY)
    except NotFound:
        return None
    what = f"{bucket.url}/{IDENTITY}"
    try:
        return msgspec.json.decode(frame.unwrap(KIND, FORMAT, data, what), type=NodeIdentity)
    except UNREADABLE as error:
        message = f"{what}: not the identity of a node"
        raise CorruptionError(message) from error


def format_node(bucket: Bucket, identity: NodeIdentity) -> bool:
    """Make a store a node; ``False`` when it is one already."""
    return bucket.create(IDENTITY, [frame.wrap(KIND, FORMAT, msgspec.json.encode(identity))])


def open_bucket(url: str, options: Mapping[str, str]) -> Bucket:
    """Return the store behind the URL of a node: a folder (``file://``), or a bucket."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return FolderBucket(Path(unquote(parts.path)))
    return Bucket.connect(url.rstrip("/"), options)


def fence_of(epoch: int) -> bytes:
    """Return the bytes of a fence; they are shorter than any block."""
    made = frame.wrap(FENCE_KIND, FENCE_FORMAT, str(epoch).encode())
    assert len(made) < HEADER_BYTES
    return made


def kind_of(data: pa.Buffer, segment: int | None = None) -> Written:
    """Return what the bytes of a register are. A block that was cut short, or of another segment, is damage."""
    try:
        if data.size >= HEADER_BYTES:
            header = block_format.check(data)
            return "block" if segment in (None, header.segment) else "damaged"
        frame.unwrap(FENCE_KIND, FENCE_FORMAT, data, "a register")
    except CorruptionError:
        return "damaged"
    return "fence"


def settled(asked: Future[_T]) -> _T | OncelogError:
    """Return the answer of a request, or its error."""
    try:
        error = asked.exception()
    except CancelledError:
        return Closed("the connection to the node was closed")
    if isinstance(error, OncelogError):
        return error
    return asked.result()
