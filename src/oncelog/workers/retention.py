"""How long keys are kept beside a queue: never shorter than a message can still come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from oncelog import limits
from oncelog.errors import InvalidArgument
from oncelog.inbox.contract import KeyRow
from oncelog.inbox.decisions import Identity
from oncelog.inbox.inbox import Inbox
from oncelog.queue import inner
from oncelog.queue.queue import Queue
from oncelog.queue.rules import message
from oncelog.queue.send.topic import DEAD_LETTERS

_AT_ONCE = 1000
_FLOOR_S = 600.0
"""A log remembers ids for so long at least, however early their records are truncated."""


def check(inbox: Inbox, queue: Queue) -> None:
    """Raise ``InvalidArgument`` if the inbox keeps keys for less than the queue's logs remember ids at least.

    How long a log remembers an id beyond that is asked when keys are forgotten.
    """
    least_s = min(queue.settings.log.window.duration_s or _FLOOR_S, _FLOOR_S)
    if inbox.retention_s is not None and inbox.retention_s < least_s:
        error = (
            f"the inbox keeps keys for {inbox.retention_s:g} s, and queue {queue.name!r} refuses ids for at least "
            f"{least_s:g} s: keep them as long"
        )
        raise InvalidArgument(error)


def prune(inbox: Inbox, queue: Queue, group: str) -> int:
    """Forget the keys whose retention is over and whose messages are gone; return how many.

    While a message is in the queue's log, the log refuses its id, and a group that is made again would get it: its key
    stays, however old it is. So does that of a dead letter, which may be sent back.
    """
    return inbox.prune(refused=_refused_by(queue, group))


async def aprune(inbox: Inbox, queue: Queue, group: str) -> int:
    """Do as ``prune`` does, where connections are asynchronous."""
    return await inbox.aprune(refused=_refused_by(queue, group))


def _refused_by(queue: Queue, group: str) -> Callable[[Sequence[KeyRow]], Collection[bytes]]:
    def refused(rows: Sequence[KeyRow]) -> Collection[bytes]:
        """Return which keys stay; those of other queues and groups are for others to forget."""
        mine = {row.digest for row in rows if (row.identity.topic, row.identity.group) == (queue.name, group)}
        others = {row.digest for row in rows} - mine
        return others | {digest for digest in _there(queue, group) if digest in mine} if mine else others

    return refused


def _there(queue: Queue, group: str) -> Iterator[bytes]:
    """Yield the keys of all messages that are there.

    Dead letters are read first and last. So a message that moves between queue and dead letters is seen in one of them.
    """
    yield from _dead(queue)
    yield from _in_logs(queue, group)
    yield from _dead(queue)


def _in_logs(queue: Queue, group: str) -> Iterator[bytes]:
    topic = queue._topic  # noqa: SLF001  (of the same room)
    for partition, (first, end) in enumerate(zip(topic.starts("earliest"), topic.ends(), strict=True)):
        start = first
        while start < end:
            count = min(_AT_ONCE, end - start)
            entries = topic.read(partition, start, count, limits.QUEUE_CLAIM_BYTES_MAX)
            for entry in entries:
                if not message.is_readable(entry):  # it is never delivered
                    continue
                key = message.inbox_key_of(entry, message.envelope_of(entry), partition)
                yield Identity(entry.tenant or "", queue.name, group, key).digest
            start = entries[-1].position + 1 if entries else start + count


def _dead(queue: Queue) -> Iterator[bytes]:
    if not queue.name.startswith(DEAD_LETTERS):
        for letter in inner.each_dead_letter(queue):
            yield Identity(letter.tenant, letter.topic, letter.group, letter.inbox_key).digest
