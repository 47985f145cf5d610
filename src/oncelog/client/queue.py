"""A work queue over the wire."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import msgspec

from oncelog import arguments, names
from oncelog.client.channel import Channel, check_size, told
from oncelog.client.consumer import RemoteConsumer
from oncelog.client.log import close_all
from oncelog.client.writer import absent
from oncelog.concurrency.batcher import Batcher
from oncelog.concurrency.pending import Pending, begun, failed
from oncelog.errors import InvalidArgument, OncelogError, Unavailable
from oncelog.handle import Handle, closes_anywhere
from oncelog.limits import KIB
from oncelog.log.log import Log
from oncelog.queue.deliver.consumer import Consumer, check_consume
from oncelog.queue.deliver.dead_letters import DeadLetter, DeadLetters, chosen, name_of_letters
from oncelog.queue.inspect import Peeked, QueueStats, no_group
from oncelog.queue.queue import Queue
from oncelog.queue.rules import message as message_rules
from oncelog.queue.rules import settings as settings_rules
from oncelog.queue.rules.message import Message
from oncelog.queue.rules.retry import RetryPolicy
from oncelog.queue.rules.settings import QueueSettings
from oncelog.queue.send.sender import OnPending, SendStatus, Sent, all_sent, check_on_pending
from oncelog.queue.send.topic import Topic, log_name
from oncelog.settings import TIMEOUT_S
from oncelog.wire import failures, messages, values
from oncelog.wire.frames import REQUEST_BYTES_MAX

SEND_MESSAGES = 1024
SEND_BYTES = 2 << 20
"""So many messages go into one call, at most, and so many bytes, unless one alone is larger."""


_ONE_BYTES_MAX = REQUEST_BYTES_MAX - 64 * KIB
"""A message of a queue with its headers: the rest of a call is for its id and other names."""


class MadeQueue(msgspec.Struct, frozen=True):
    """What the server says of a queue that was opened or created."""

    name: str
    partitions: int
    settings: QueueSettings


_Letters = list[DeadLetter]


class _QueuedSend(NamedTuple):
    message: Message
    on_pending: OnPending
    timeout_s: float
    pending: Pending[Sent]


class RemoteQueue(Queue):
    """A work queue on a server. Made by ``Database.queue``; safe to share between threads."""

    def __init__(self, channel: Channel, made: MadeQueue, open_log: Callable[[str], Log]) -> None:
        Handle.__init__(self)
        self._open_log = open_log
        self.name = made.name
        self._channel = channel
        self._made = made
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._batcher: Batcher[_QueuedSend] = Batcher("oncelog-sender", self._send_submitted)

    def ask(self, key: str, request: Any, kind: Any, *, write: bool = False) -> Any:
        """Ask the server what may be asked again; return the document that it answers."""
        self._check_usable()
        return values.from_document(self._channel.ask(key, request, write=write).json, kind)

    def _asked(self) -> Any:
        return messages.QueueRequest(queue=self.name)

    @property
    def partitions(self) -> int:
        return self._made.partitions

    def _stored(self) -> MadeQueue:  # type: ignore[override]
        self._made = self.ask("Queue.Info", self._asked(), MadeQueue)
        return self._made

    @property
    def _topic(self) -> Topic:  # type: ignore[override]
        """The queue's logs, to be read: by who forgets keys of messages that are gone."""
        return Topic(self.name, [self._open_log(log_name(self.name, part)) for part in range(self.partitions)])

    # Sending.

    def send_many(
        self, messages: Iterable[Message], *, on_pending: OnPending = "join", timeout_s: float = TIMEOUT_S
    ) -> list[Sent]:
        self._check_usable()
        checked = [message_rules.check(one) for one in message_rules.listed(messages)]
        check_on_pending(on_pending)
        check_size("a message", max(map(_size_bytes, checked), default=0), _ONE_BYTES_MAX)
        deadline_us = self._channel.deadline(timeout_s)
        results: list[Sent | OncelogError] = []
        for run in _runs(checked):
            left_s = self._channel.left(deadline_us) or 0.0
            if results and not left_s:
                results += [Unavailable("not sent: the time is over")] * len(run)
                continue
            try:
                results += self._sent_run(run, on_pending, left_s)
            except OncelogError as error:
                if not results:
                    raise
                results += [error] * len(run)  # of this run alone: those before it have their answers
        return all_sent(results)

    def _sent_run(self, run: Sequence[Message], on_pending: OnPending, timeout_s: float) -> list[Sent | OncelogError]:
        """Send messages by one call; again after a break if all of them have ids."""
        request = messages.SendRequest(
            queue=self.name,
            messages=[values.queue_message_message(one) for one in run],
            on_pending=on_pending,
            timeout_s=timeout_s,
        )
        try:
            if all(one.id for one in run):
                found = self._channel.again(
                    lambda left_s: self._channel.once("Queue.Send", request, left_s), timeout_s, write=True
                )
            else:
                with told(write=True):
                    found = self._channel.once("Queue.Send", request, timeout_s)
        except (InvalidArgument, Unavailable) as error:
            if len(run) == 1 or isinstance(error, InvalidArgument):
                raise
            return [error] * len(run)
        return [_result(one) for one in found.results]

    def submit(
        self,
        value: bytes,
        *,
        id: str = "",
        key: str = "",
        tenant: str = "",
        headers: Mapping[str, bytes] | None = None,
        delay_s: float = 0.0,
        deadline_s: float | None = None,
        retry: RetryPolicy | None = None,
        on_pending: OnPending = "join",
        timeout_s: float = TIMEOUT_S,
    ) -> Pending[Sent]:
        try:
            self._check_usable()
            check_on_pending(on_pending)
            within_s = arguments.seconds("timeout_s", timeout_s)
            one = message_rules.check(Message(value, id, key, tenant, headers, delay_s, deadline_s, retry))
            submission = _QueuedSend(one, on_pending, within_s, begun())
            self._batcher.put(submission, size_bytes=len(value), timeout_s=within_s)
        except OncelogError as error:
            return failed(error)
        return submission.pending

    def _send_submitted(self, submitted: Sequence[_QueuedSend]) -> None:
        for on_pending, alike in groupby(submitted, key=lambda one: one.on_pending):
            left = list(alike)
            for run in _runs([one.message for one in left]):
                group, left = left[: len(run)], left[len(run) :]
                self._settle(group, on_pending)

    def _settle(self, group: Sequence[_QueuedSend], on_pending: OnPending) -> None:
        answers: Sequence[Any]
        try:
            answers = self._sent_run([one.message for one in group], on_pending, max(one.timeout_s for one in group))
        except BaseException as error:  # noqa: BLE001 (the future has it)
            answers = [error] * len(group)
        for one, answer in zip(group, answers, strict=True):
            if isinstance(answer, BaseException):
                one.pending.set_exception(answer)
            else:
                one.pending.set_result(answer)

    def status(self, id: str, *, key: str = "", tenant: str = "") -> SendStatus | None:
        message_rules.check_identity(tenant, key, id)
        request = messages.StatusRequest(queue=self.name, id=id, key=key, tenant=tenant)
        return self.ask("Queue.Status", request, SendStatus | None)  # type: ignore[no-any-return]

    # Consuming.

    def consume(
        self,
        group: str = "default",
        *,
        prefetch: int = 1,
        ack_timeout_s: float | None = None,
        ordered: bool | None = None,
        start: Literal["earliest", "latest"] = "earliest",
    ) -> Consumer:
        self._check_usable()
        names.check(group, "group")
        timeout_s = ack_timeout_s if ack_timeout_s is not None else self._made.settings.ack_timeout_s
        check_consume(prefetch, timeout_s, ordered, start)
        request = messages.ReceiveRequest(
            queue=self.name, group=group, ack_timeout_s=ack_timeout_s, ordered=ordered, start=start
        )
        consumer = RemoteConsumer(self._channel, request, prefetch=prefetch, ack_timeout_s=timeout_s)
        consumer.join()
        self._handles.add(consumer)
        return consumer

    # Dead letters.

    @property
    def dead_letters(self) -> DeadLetters:
        name_of_letters(self.name)
        self._check_usable()
        return RemoteDeadLetters(self)

    def letters(self, key: str, **which: Any) -> int:
        """Have the server send dead letters back, or give them up; return how many."""
        self._check_usable()
        return int(self._channel.ask(key, messages.LettersRequest(queue=self.name, **which), write=True).value)

    # Operating.

    def pause(self, group: str | None = None) -> None:
        self._check_usable()
        self._channel.ask("Queue.Pause", messages.GroupRequest(queue=self.name, group=group), write=True)

    def resume(self, group: str | None = None) -> None:
        self._check_usable()
        self._channel.ask("Queue.Resume", messages.GroupRequest(queue=self.name, group=group), write=True)

    def groups(self) -> list[str]:
        self._check_usable()
        return list(self._channel.ask("Queue.Groups", self._asked()).names)

    @arguments.checked
    def remove_group(self, group: str, *, force: bool = False) -> None:
        """Forget a group and all that the group has not settled. Consumers of the group that are open here end.

        The server is asked once. After a broken connection the group may be gone: then the next attempt raises
        ``NotFound``.
        """
        self._check_usable()
        with told(write=True):
            self._channel.once("Queue.RemoveGroup", messages.GroupRequest(queue=self.name, group=group, force=force))
        close_all(one for one in self._handles if isinstance(one, RemoteConsumer) and one.group == group)

    def stats(self) -> QueueStats:
        return self.ask("Queue.Stats", self._asked(), QueueStats)  # type: ignore[no-any-return]

    def lag(self, group: str = "default") -> int:
        found = self.stats().groups
        if group not in found:
            raise no_group(self.name, group, list(found))
        return found[group].lag

    def peek(self, group: str = "default", *, limit: int = 10) -> list[Peeked]:
        request = messages.PeekRequest(queue=self.name, group=group, limit=arguments.count("limit", limit))
        return self.ask("Queue.Peek", request, list[Peeked])  # type: ignore[no-any-return]

    def configure(self, changed: QueueSettings) -> None:
        document = values.to_document(settings_rules.check(changed))
        request = messages.ConfigureRequest(name=self.name, settings=document)
        stored = self.ask("Queue.Configure", request, QueueSettings, write=True)
        self._made = msgspec.structs.replace(self._made, settings=stored)

    def trim(self) -> list[int]:
        return self.ask("Queue.Trim", self._asked(), list[int], write=True)  # type: ignore[no-any-return]

    @closes_anywhere
    def close(self) -> None:
        """Close the consumers; what was submitted is sent first."""
        if self._closed:
            return
        if self._of_this_process:
            self._batcher.wait_idle(TIMEOUT_S)
        self._closed = True
        if self._of_this_process:
            close_all(self._handles)


class RemoteDeadLetters(DeadLetters):
    """The dead letters of one queue on a server. Made by ``Queue.dead_letters``."""

    def __init__(self, queue: RemoteQueue) -> None:
        self._queue = queue

    def list(self, *, limit: int | None = None) -> list[DeadLetter]:
        return [*self._each(None if limit is None else arguments.count("limit", limit))]

    def _each(self, limit: int | None = None) -> Iterator[DeadLetter]:
        start, left = 0, limit
        while left is None or left > 0:
            page = self._letters_of(limit=left, start=start)
            if not page or page[0].position < start:  # a server that knows no pages has sent all at once
                return
            yield from page
            start = page[-1].position + 1
            left = None if left is None else left - len(page)

    def show(self, position: int) -> DeadLetter:
        (found,) = self._letters_of(position=arguments.count("position", position))
        return found

    def _letters_of(self, **which: int | None) -> _Letters:
        request = messages.DeadLettersRequest(queue=self._queue.name, **which)
        return self._queue.ask("Queue.DeadLetters", request, list[DeadLetter])  # type: ignore[no-any-return]

    def redrive(self, positions: Iterable[int] | None = None) -> int:
        if positions is None:
            return self._queue.letters("Queue.Redrive", all=True)
        wanted = chosen(positions)
        return self._queue.letters("Queue.Redrive", positions=wanted) if wanted else 0

    def discard(self, positions: Iterable[int]) -> int:
        wanted = chosen(positions)
        return self._queue.letters("Queue.Discard", positions=wanted) if wanted else 0


def _size_bytes(one: Message) -> int:
    return len(one.value) + sum(len(name) + len(value) for name, value in (one.headers or {}).items())


def _runs(given: Sequence[Message]) -> Iterable[Sequence[Message]]:
    """Cut messages into runs that each fit a call."""
    start = size_bytes = 0
    for row, one in enumerate(given):
        size = _size_bytes(one)
        if row > start and (row - start >= SEND_MESSAGES or size_bytes + size > SEND_BYTES):
            yield given[start:row]
            start, size_bytes = row, 0
        size_bytes += size
    if start < len(given):
        yield given[start:]


def _result(found: Any) -> Sent | OncelogError:
    one = failures.from_result(found)
    return one if isinstance(one, OncelogError) else values.sent(one)


QUEUE_ABSENT = ("_settle_leases", "_take_writers")
"""What rooms of one process call of each other on a queue: not a part of the public surface."""

absent(RemoteQueue, QUEUE_ABSENT)
