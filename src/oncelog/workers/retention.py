"""How long keys are kept beside a queue: never shorter than a message can still come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from oncelog.errors import InvalidArgument
from oncelog.inbox.decisions import Identity
from oncelog.inbox.inbox import Inbox
from oncelog.inbox.store import Row
from oncelog.queue.queue import Queue
from oncelog.queue.rules import message
from oncelog.queue.send.topic import DEAD_LETTERS

_AT_ONCE = 1000


def check(inbox: Inbox, queue: Queue) -> None:
    """Raise ``InvalidArgument`` if the inbox would forget a key while the queue's window still refuses its id."""
    window_s = queue.settings.log.window.duration_s
    if inbox.retention_s is not None and inbox.retention_s < window_s:
        error = (
            f"the inbox keeps keys for {inbox.retention_s:g} s, and queue {queue.name!r} refuses ids for "
            f"{window_s:g} s: keep them at least as long"
        )
        raise InvalidArgument(error)


def prune(inbox: Inbox, queue: Queue, group: str) -> int:
    """Forget the keys whose retention is over and whose messages cannot be delivered any more; return how many.

    A message that is not settled, or lies among the dead letters, may still come: its key stays, however old it is.
    """
    return inbox.prune(refused=_refused_by(queue, group))


async def aprune(inbox: Inbox, queue: Queue, group: str) -> int:
    """Do as ``prune`` does, where connections are asynchronous."""
    return await inbox.aprune(refused=_refused_by(queue, group))


def _refused_by(queue: Queue, group: str) -> Callable[[Sequence[Row]], Collection[bytes]]:
    def refused(rows: Sequence[Row]) -> Collection[bytes]:
        """Return which keys stay; those of other queues and groups are for others to forget."""
        mine = {row.digest for row in rows if (row.identity.topic, row.identity.group) == (queue.name, group)}
        others = {row.digest for row in rows} - mine
        return others | {digest for digest in _deliverable(queue, group) if digest in mine}

    return refused


def _deliverable(queue: Queue, group: str) -> Iterator[bytes]:
    """Yield the keys of all messages that may still be delivered to a group.

    Dead letters come first and last: one that is sent back meanwhile is met in the queue, one that dies meanwhile here.
    """
    yield from _dead(queue)
    yield from _unsettled(queue, group)
    yield from _dead(queue)


def _unsettled(queue: Queue, group: str) -> Iterator[bytes]:
    topic = queue._topic  # noqa: SLF001  (of the same room)
    stats = queue.stats()
    if group in stats.groups:
        for partition, first in enumerate(stats.groups[group].watermarks):
            for start in range(first, stats.ends[partition], _AT_ONCE):
                for entry in topic.read(partition, start, min(_AT_ONCE, stats.ends[partition] - start)):
                    if not message.is_readable(entry):  # it is never delivered
                        continue
                    key = message.inbox_key_of(entry, message.envelope_of(entry), partition)
                    yield Identity(entry.tenant or "", queue.name, group, key).digest


def _dead(queue: Queue) -> Iterator[bytes]:
    if not queue.name.startswith(DEAD_LETTERS):
        for letter in queue.dead_letters.list():
            yield Identity(letter.tenant, letter.topic, letter.group, letter.inbox_key).digest
