"""Consumers over the wire: leases are in the server's state, not in a connection.

A delivery that was claimed for a consumer and not handed out is returned when the consumer closes. What was handed out
stays leased, whatever becomes of the connection.

A claim is a call that the server holds until there are messages. A thread waits for the answer to its own claim. The
claim of a task has no thread: when the answer comes, gRPC's thread rings the bell of the connection. What comes for a
claim that nobody waits for any more goes back at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

import grpc

from oncelog import arguments
from oncelog.client.channel import Broken, Channel
from oncelog.concurrency.batcher import Batcher
from oncelog.concurrency.pending import Pending, begun, failed, mapped
from oncelog.errors import Closed, LeaseLost, OncelogError, Unavailable
from oncelog.handle import Handle, OfOneProcess, closes_anywhere
from oncelog.queue.deliver.consumer import Consumer, Delivery, check_prefetch
from oncelog.queue.deliver.settling import SettlementRequest
from oncelog.queue.rules import message
from oncelog.settings import TIMEOUT_S
from oncelog.types import moment
from oncelog.wire import messages, values

BREAKS_MAX = 20
"""After so many calls in vain, one after the other, a consumer says that the server does not answer."""

POLL_S = 10.0
"""So long the server holds a call that waits for messages."""

ANSWER_S = 0.5
"""The answer to a younger claim may be on its way. ``close`` waits for it: cancelling the call would lose it."""

_Submitted = tuple[Sequence[Delivery], SettlementRequest, Pending[Sequence[Delivery]]]


class Leases(OfOneProcess):
    """Settles the deliveries of one group. Safe to share between threads."""

    _what = "delivery"

    def __init__(self, channel: Channel, queue: str, group: str) -> None:
        super().__init__()
        self._channel = channel
        self.queue = queue
        self.group = group
        self._batcher: Batcher[_Submitted] = Batcher("oncelog-settler", self._settle_all)

    def settle(self, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> None:
        """Settle deliveries in one call; ``LeaseLost`` if some were lost to others."""
        lost = self.lost_of(deliveries, settlement)
        if lost:
            raise _lost_error(lost)

    def submit(self, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> Pending[None]:
        """Settle deliveries without waiting; ``LeaseLost`` if some were lost to others."""
        return mapped(self.submit_for_lost(deliveries, settlement), _check)

    def submit_for_lost(
        self, deliveries: Sequence[Delivery], settlement: SettlementRequest
    ) -> Pending[Sequence[Delivery]]:
        """Settle deliveries without waiting; those of one kind that are submitted at the same time go together. The
        answer has those that were lost to others.
        """
        pending = begun()
        try:
            self._check_process()
            self._batcher.put((deliveries, settlement, pending))
        except OncelogError as error:
            return failed(error)
        return pending

    def _settle_all(self, submitted: Sequence[_Submitted]) -> None:
        for settlement, alike in groupby(submitted, key=lambda one: one[1]):
            self._settle_alike(list(alike), settlement)

    def _settle_alike(self, alike: Sequence[_Submitted], settlement: SettlementRequest) -> None:
        try:
            lost = {_name(one) for one in self.lost_of([one for group, _, _ in alike for one in group], settlement)}
        except BaseException as error:  # noqa: BLE001 (the future has it)
            for _, _, pending in alike:
                pending.set_exception(error)
            return
        seen: set[tuple[int, int, int]] = set()
        for group, _, pending in alike:
            mine = [one for one in group if _name(one) in lost or _name(one) in seen]
            seen.update(map(_name, group))  # settled twice in one call: the second has lost
            pending.set_result(mine)

    def lost_of(self, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> list[Delivery]:
        """Settle deliveries in one call; return those whose lease another consumer has taken.

        If the call is repeated after a broken connection and a lease is gone, the first attempt may have ended it: the
        outcome is unknown.
        """
        self._check_process()
        request = messages.SettleRequest(
            queue=self.queue,
            group=self.group,
            settlement=messages.Settlement(
                kind=settlement.kind,
                leases=[messages.Lease(token=a, partition=b, position=c) for a, b, c in map(_name, deliveries)],
                reason=settlement.reason,
                retry=settlement.again,
                extend_s=settlement.extend_us / 1e6,
            ),
        )
        broke = False

        def call(left_s: float | None) -> Any:
            nonlocal broke
            try:
                return self._channel.once("Queue.Settle", request, left_s)
            except Broken as broken:
                broke = broke or broken.sent
                raise
            except Unavailable as unavailable:
                broke = broke or unavailable.outcome == "unknown"
                raise

        found = self._channel.again(call, TIMEOUT_S, write=True)
        gone = {(one.token, one.partition, one.position) for one in found.lost}
        if gone and broke and settlement.kind != "extended":
            text = "the answer was lost, and the lease is over now: it was settled, or its time ran out"
            raise Unavailable(text, outcome="unknown")
        return [one for one in deliveries if _name(one) in gone]

    def until_us(self, span_us: int) -> int:
        """Return when a lease ends that has so much left."""
        return self._channel.clock.elapsed_us() + span_us

    def close(self) -> None:
        """Return when what was submitted is settled."""
        self._batcher.wait_idle(TIMEOUT_S)


def _name(one: Delivery) -> tuple[int, int, int]:
    return one.token, one.partition, one.position


def _check(lost: Sequence[Delivery]) -> None:
    if lost:
        raise _lost_error(lost)


def _lost_error(lost: Sequence[Delivery]) -> LeaseLost:
    one = lost[0]
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return LeaseLost(
        f"message {one.position} of {one.topic!r}, partition {one.partition}{more}: lease {one.token} is over: it "
        "was settled before, or its time ran out; then it is delivered again, and what another makes of it stands"
    )


class RemoteDelivery(Delivery):
    """One message in a worker's hands: ``ack()`` when it is done, ``nack(reason)`` when it could not be."""

    __slots__ = ("_found", "_headers", "_leases", "until_us")

    def __init__(self, leases: Leases, found: Any, until_us: int) -> None:
        self._leases = leases
        self._found = found
        self._headers = values.headers(found.headers)
        self.until_us = until_us

    @property
    def partition(self) -> int:
        return int(self._found.partition)

    @property
    def attempts(self) -> int:
        return int(self._found.attempts)

    @property
    def last_error(self) -> str | None:
        return str(self._found.last_error) if self._found.HasField("last_error") else None

    @property
    def token(self) -> int:
        return int(self._found.token)

    @property
    def value(self) -> bytes:
        return bytes(self._found.value)

    @property
    def id(self) -> str:
        return str(self._found.id)

    @property
    def key(self) -> str:
        return str(self._found.key)

    @property
    def tenant(self) -> str:
        return str(self._found.tenant)

    @property
    def topic(self) -> str:
        return str(self._found.topic)

    @property
    def group(self) -> str:
        return str(self._found.group)

    @property
    def position(self) -> int:
        return int(self._found.position)

    @property
    def headers(self) -> Mapping[str, bytes]:
        return self._headers

    @property
    def sent_at(self) -> datetime:
        return moment(self._found.sent_at_us)

    @property
    def inbox_key(self) -> str:
        return str(self._found.inbox_key)

    @property
    def redriven(self) -> int:
        return int(self._found.redriven)

    def _settle(self, settlement: SettlementRequest) -> None:
        self._leases.settle([self], settlement)

    def _submit(self, settlement: SettlementRequest) -> Pending[None]:
        return self._leases.submit([self], settlement)

    def _in_us(self, span_us: int) -> int:
        return self._leases.until_us(span_us)


class RemoteConsumer(Consumer):
    """Messages of a group, for ever: iterate it, or ``receive`` some at a time. Used by one thread at a time."""

    def __init__(self, channel: Channel, request: Any, *, prefetch: int, ack_timeout_s: float) -> None:
        Handle.__init__(self)
        self._channel = channel
        self._clock = channel.clock
        self._request = request
        self._prefetch = check_prefetch(prefetch)
        self._lease_us = message.span_us("ack_timeout_s", ack_timeout_s)
        self._leases = Leases(channel, request.queue, request.group)
        self._held: deque[Delivery] = deque()
        self._receiving = threading.Lock()
        self._call: Any = None
        """The claim of a thread that receives."""
        self._task_call: Any = None
        """The claim for a task. Who takes it from here, under ``_taking``, sees to what comes."""
        self._taking = threading.Lock()
        self._asked_us = 0
        """When the last claim was begun."""
        self._due_us = 0
        """When the next claim for a task may begin: later after a break."""
        self._renewal: Pending[tuple[Sequence[Delivery], int]] | None = None
        self._breaks = 0

    @property
    def group(self) -> str:
        return self._leases.group

    def join(self) -> None:
        """Have the server make the group, or say what is wrong with it. Nothing is claimed yet."""
        asked = self._request
        opening = messages.OpenConsumer(queue=asked.queue, group=asked.group, prefetch=1, start=asked.start)
        if asked.HasField("ack_timeout_s"):
            opening.ack_timeout_s = asked.ack_timeout_s
        if asked.HasField("ordered"):
            opening.ordered = asked.ordered
        self._channel.again(lambda _: self._opened(opening), TIMEOUT_S)

    def _opened(self, opening: Any) -> None:
        done = threading.Event()

        def requests() -> Iterator[Any]:
            yield messages.ConsumeRequest(open=opening)
            done.wait(TIMEOUT_S)

        call = self._channel.talk("Queue.Consume", requests())
        try:
            next(call)
        except grpc.RpcError as error:
            raise self._channel.translated(error) from None
        except StopIteration:
            text = "the server ended the stream"
            raise Broken(text) from None
        finally:
            done.set()
            call.cancel()

    def receive(self, limit: int | None = None, *, timeout_s: float = 0.0) -> list[Delivery]:
        self._check_usable()
        self._check_unfed()
        wanted = self._prefetch if limit is None else check_prefetch(limit, "limit")
        if self._unread:
            return self._left_unread(wanted)
        deadline_us = self._clock.elapsed_us() + round(arguments.seconds("timeout_s", timeout_s) * 1e6)
        with self._receiving:
            while True:
                left_s = max(0.0, (deadline_us - self._clock.elapsed_us()) / 1e6)
                found = self._claimed(wanted, min(left_s, POLL_S))
                if found or self._clock.elapsed_us() >= deadline_us:
                    return found

    def _fill(self, count: int, left_s: float) -> None:
        """Claim messages, waiting for the first up to ``left_s``. A break is an empty answer: the next call asks on."""
        self._renewal = None  # a task left it
        if (left := self._taken_from_task()) is not None:
            if left.done():
                self._take(left)
                if self._held:
                    return
            else:
                left.add_done_callback(self._return)
        call = self._call = self._claim(count, left_s)
        try:
            with contextlib.suppress(grpc.RpcError, grpc.FutureCancelledError):
                call.exception()  # returns when there is an answer
        except BaseException:  # an interrupt
            call.add_done_callback(self._return)
            raise
        finally:
            self._call = None
        pause_s = self._take(call)
        if pause_s:
            self._channel.rest(min(pause_s, max(left_s, 0.05)))

    def _claim(self, count: int, left_s: float) -> Any:
        """Ask for messages, without waiting for the answer."""
        request = self._request
        request.limit, request.timeout_s = count, left_s
        self._asked_us = self._clock.elapsed_us()
        return self._channel.held("Queue.Receive", request, left_s + TIMEOUT_S)

    def _take(self, call: Any) -> float:
        """Hold what came for a claim; return how long to rest before the next one, if the call broke."""
        try:
            found = call.result()
        except grpc.RpcError as error:
            self._check_usable()
            broken = self._channel.translated(error)
            if not isinstance(broken, Broken):
                raise broken from None
            return self._rest_after(broken)
        except grpc.FutureCancelledError:
            self._check_usable()
            return 0.0
        self._breaks = 0
        self._held += self._deliveries(found)
        if self._closed:  # meanwhile, by another thread
            self._give_back()
        return 0.0

    def _rest_after(self, broken: Broken) -> float:
        self._breaks += 1
        if self._breaks >= BREAKS_MAX:
            raise broken.unavailable(write=False) from None
        return self._channel.pause_s(self._breaks)

    def _deliveries(self, found: Any) -> list[Delivery]:
        now_us = self._clock.elapsed_us()
        return [RemoteDelivery(self._leases, one, now_us + int(one.lease_s * 1e6)) for one in found.deliveries]

    def _return(self, call: Any) -> None:
        """Return what came for a claim that nobody waits for. Called by gRPC, in a thread that must not wait."""
        if not call.cancelled() and call.exception() is None and (found := self._deliveries(call.result())):
            self._leases.submit(found, SettlementRequest("returned"))

    @property
    def _topic(self) -> str:
        return self._leases.queue

    def _others(self, listed: Sequence[object]) -> list[object]:
        own = self._topic, self.group
        return [one for one in listed if not isinstance(one, RemoteDelivery) or (one.topic, one.group) != own]

    def _settle(self, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> None:
        self._leases.settle(deliveries, settlement)

    def _submit(self, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> Pending[None]:
        return self._leases.submit(deliveries, settlement)

    def _lost_of(self, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> Sequence[Delivery]:
        return self._leases.lost_of(deliveries, settlement)

    def _in_us(self, span_us: int) -> int:
        return self._leases.until_us(span_us)

    # For tasks.

    def _look(self) -> list[Delivery]:
        """Return what there is, or see to it that a claim is at the server. Never waits: others are looked for next."""
        self._check_usable()
        if not self._receiving.acquire(blocking=False):
            return []  # a thread receives
        try:
            call = self._task_call
            if call is not None and call.done() and self._taken_from_task() is call:
                self._due_us = self._clock.elapsed_us() + int(self._take(call) * 1e6)
            if self._held and self._is_fresh():
                return self._hand_out(1)
            if not self._held and self._task_call is None and self._clock.elapsed_us() >= self._due_us:
                call = self._task_call = self._claim(self._prefetch, POLL_S)
                call.add_done_callback(self._came)
            return []
        finally:
            self._receiving.release()

    def _came(self, call: Any) -> None:
        """Have the feeder look. If the task has left, what came goes back. Called by gRPC."""
        if self._is_fed():
            self._channel.bell.ring()
        elif self._taken_from_task(call) is call:
            self._return(call)

    def _was_left(self) -> None:
        """Return what came for a claim between the last look and the end of its task. Later answers return by
        themselves.
        """
        call = self._task_call
        if call is not None and call.done() and self._taken_from_task(call) is call:
            self._return(call)

    def _taken_from_task(self, call: Any = None) -> Any:
        """Take over the claim for a task, if there is one, and if it is this call."""
        with self._taking:
            found = self._task_call
            if call is not None and call is not found:
                return None
            self._task_call = None
            return found

    def _is_fresh(self) -> bool:
        """Tell whether what is held may be handed out; else have its leases renewed, without waiting for that."""
        renewal = self._renewal
        if renewal is not None and renewal.done():
            self._renewal = None
            self._keep(*renewal.result())
        if not self._held:
            return False
        if not self._are_old():
            return True
        if self._renewal is None:
            extended = SettlementRequest("extended", extend_us=self._lease_us)
            self._renewal = mapped(
                self._leases.submit_for_lost(list(self._held), extended),
                lambda lost: (lost, self._in_us(self._lease_us)),
            )
            self._renewal.add_done_callback(lambda _: self._channel.bell.ring())
        return False

    def _await_more(self, timeout_s: float) -> None:
        self._channel.bell.wait(timeout_s)

    def _end_wait(self) -> None:
        self._channel.bell.ring()

    def _source(self) -> object:
        return self._channel.bell

    @closes_anywhere
    def close(self) -> None:
        if not self._closes_now():
            return
        self._end_wait()
        self._end_claims()
        with self._receiving, contextlib.suppress(Unavailable, Closed):  # not given back: its time runs out
            self._give_back()
        self._leases.close()

    def _end_claims(self) -> None:
        """Cancel claims that wait for messages. One that may be answered by now is waited for: what came goes back."""
        calls = [call for call in (self._call, self._taken_from_task()) if call is not None]
        for call in calls:
            if call is not self._call:
                call.add_done_callback(self._return)
            answer_us = self._asked_us + int(ANSWER_S * 1e6) - self._clock.elapsed_us()
            with contextlib.suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError):
                call.exception(max(0.0, answer_us / 1e6))
            call.cancel()
