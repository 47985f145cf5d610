"""Reading over the wire: to the log's end as it was, or for ever; a cut connection goes on behind the last position."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa

from oncelog import arguments
from oncelog.client.channel import Broken
from oncelog.client.following import Follower, FollowingHandle
from oncelog.concurrency.feeding import AT_ONCE
from oncelog.errors import OncelogError, Unavailable
from oncelog.handle import Handle
from oncelog.log.read.reader import Reader, Tail
from oncelog.log.read.scan import Start
from oncelog.types import Entry
from oncelog.wire import frames, messages, values
from oncelog.wire.frames import Kind

if TYPE_CHECKING:
    from oncelog.client.log import RemoteLog

ATTEMPTS_MAX = 20
"""A reader to the end gives up after so many attempts in vain; a tail never does."""


class RemoteReader(Reader):
    """The entries of a log from a start to its end as it was when reading began. Iterate it, once."""

    def __init__(
        self,
        log: RemoteLog,
        start: Start,
        *,
        limit: int | None,
        lease_s: float | None,
        columns: Sequence[str] | None = None,
    ) -> None:
        Handle.__init__(self)
        self._log = log
        self._lease_s = lease_s
        self._columns = columns
        wanted = None if limit is None else arguments.count("limit", limit)
        positions = log.positions(start)
        self._position: int = positions.at
        self._end: int = positions.end if wanted is None else min(positions.end, positions.at + wanted)
        self._call: Any = None
        self._left_over = None

    def _entries(self) -> Iterator[Entry]:
        for message in self._messages("Log.Read"):
            self._position = message.next_position
            for found in message.entries:
                self._check_usable()
                yield values.entry(found)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for message in self._messages("Log.ReadArrow"):
            table, self._position, _ = frames.read_message(message)
            if table is not None:
                yield from table.to_batches()

    def _messages(self, key: str) -> Iterator[Any]:
        """Yield messages to the end; after a break, from behind the last one."""
        attempts = 0
        while self._position < self._end:
            self._check_usable()
            before = self._position
            try:
                self._call = self._log.channel.stream(key, self._request())
                yield from self._call
                error: Exception = Broken("the server ended the stream too early")
            except grpc.RpcError as failed:
                error = self._log.channel.translated(failed)
            if self._position >= self._end:
                return
            self._check_usable()
            attempts = 0 if self._position > before else attempts + 1
            if isinstance(error, OncelogError) and not (isinstance(error, Unavailable)):
                raise error
            if attempts >= ATTEMPTS_MAX:
                raise error if isinstance(error, OncelogError) else Unavailable(f"the server does not answer ({error})")
            if attempts:
                self._log.channel.rest(self._log.channel.pause_s(attempts))

    def _request(self) -> Any:
        return messages.ReadRequest(
            log=self._log.name,
            start=messages.Start(position=self._position),
            limit=self._end - self._position,
            lease_s=self._lease_s,
            columns=self._columns or (),
            chosen_columns=self._columns is not None,
            log_id=self._log.log_id,
        )

    def _source(self) -> object:
        return self

    def close(self) -> None:
        Handle.close(self)
        if self._call is not None and self._of_this_process:
            self._call.cancel()


class RemoteTail(FollowingHandle, Tail):
    """The entries of a log as they become durable, for ever. Iterate it, or ``poll``; ``close()`` ends it."""

    def __init__(self, log: RemoteLog, start: Start, *, lease_s: float | None) -> None:
        Handle.__init__(self)
        self._log = log
        self._lease_s = lease_s
        self._next: int = log.positions(start).at
        self._end_seen = self._next
        self._ready = deque()
        self._bell = log.channel.bell
        self._follower: Follower[Entry] = Follower(log.channel, Kind.FOLLOW, self._asked, self._taken)

    def _asked(self) -> Any:
        return messages.ReadRequest(
            log=self._log.name,
            start=messages.Start(position=self._next),
            follow=True,
            lease_s=self._lease_s,
            log_id=self._log.log_id,
        )

    def _taken(self, body: bytes) -> list[Entry]:
        message = messages.Entries.FromString(body)
        entries = [values.entry(found) for found in message.entries]  # first: what cannot be read is not taken
        self._next = message.next_position
        self._end_seen = max(self._end_seen, message.end_position)
        return entries

    def _take(self, limit: int) -> list[Entry]:
        self._check_usable()
        if not self._ready:
            self._ready += self._follower.next(0.0)
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    def poll(self, timeout_s: float = 0.0) -> Entry | None:
        self._check_usable()
        self._check_unfed()
        if self._unread:
            return self._unread.popleft()
        within_s = arguments.seconds("timeout_s", timeout_s)
        if not self._ready:
            self._iterated = True
            try:
                self._ready += self._follower.next(within_s)
                self._check_usable()
            finally:
                self._iterated = False
        return self._ready.popleft() if self._ready else None

    @property
    def position(self) -> int:
        return self._ready[0].position if self._ready else self._next

    def end(self) -> int:
        return self._log.end_position()

    def _look(self) -> list[Entry]:
        return self._take(AT_ONCE)
