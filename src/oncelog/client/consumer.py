"""Consumers over the wire: leases are in the server's state, not in a connection.

A delivery that was claimed for a consumer and not handed out is returned when the consumer closes. What was handed out
stays leased, whatever becomes of the connection.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import grpc

from oncelog import arguments
from oncelog.client.channel import Broken, Channel
from oncelog.concurrency.batcher import Batcher
from oncelog.concurrency.pending import Pending, begun, failed
from oncelog.concurrency.pending import settle as answer
from oncelog.errors import Closed, LeaseLost, OncelogError, Unavailable
from oncelog.handle import Handle, closes_anywhere
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


class Leases:
    """Settles the deliveries of one group. Safe to share between threads."""

    def __init__(self, channel: Channel, queue: str, group: str) -> None:
        self._channel = channel
        self.queue = queue
        self.group = group
        self._batcher: Batcher[tuple[Sequence[Delivery], SettlementRequest, Pending[None]]] = Batcher(
            "oncelog-settler", self._settle_all
        )

    def settle(self, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> None:
        """Settle deliveries in one call; ``LeaseLost`` if some were lost to others."""
        lost = self.lost_of(deliveries, settlement)
        if lost:
            raise _lost_error(lost)

    def submit(self, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> Pending[None]:
        """Settle deliveries without waiting; those of one kind that are submitted at the same time go together."""
        pending = begun()
        try:
            self._batcher.put((deliveries, settlement, pending))
        except OncelogError as error:
            return failed(error)
        return pending

    def _settle_all(self, submitted: Sequence[tuple[Sequence[Delivery], SettlementRequest, Pending[None]]]) -> None:
        left = list(submitted)
        while left:
            settlement = left[0][1]
            alike: list[tuple[Sequence[Delivery], SettlementRequest, Pending[None]]] = []
            while left and left[0][1] == settlement:
                alike.append(left.pop(0))
            self._settle_alike(alike, settlement)

    def _settle_alike(
        self,
        alike: Sequence[tuple[Sequence[Delivery], SettlementRequest, Pending[None]]],
        settlement: SettlementRequest,
    ) -> None:
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
            answer(pending, lambda mine=mine: _check(mine))  # type: ignore[misc]

    def lost_of(self, deliveries: Sequence[Delivery], settlement: SettlementRequest) -> list[Delivery]:
        """Settle deliveries in one call; return those whose lease another consumer has taken.

        If the call is repeated after a broken connection and a lease is gone, the first attempt may have ended it: the
        outcome is unknown.
        """
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

    __slots__ = ("_found", "_headers", "_leases")

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
        self._check_unfed()
        wanted = self._prefetch if limit is None else check_prefetch(limit, "limit")
        if self._unread:
            self._check_usable()
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
        request = self._request
        request.limit, request.timeout_s = count, left_s
        try:
            found = self._asked(request, left_s)
        except Broken as broken:
            self._breaks += 1
            if self._breaks >= BREAKS_MAX:
                raise broken.unavailable(write=False) from None
            self._channel.rest(min(self._channel.pause_s(self._breaks), max(left_s, 0.05)))
            return
        self._breaks = 0
        now_us = self._clock.elapsed_us()
        for one in found.deliveries:
            self._held.append(RemoteDelivery(self._leases, one, now_us + int(one.lease_s * 1e6)))
        if self._closed:  # meanwhile, by another thread
            self._give_back()

    def _asked(self, request: Any, left_s: float) -> Any:
        call = self._channel.future("Queue.Receive", request, left_s + TIMEOUT_S)
        self._call = call
        try:
            return call.result()
        except grpc.RpcError as error:
            self._check_usable()
            raise self._channel.translated(error) from None
        except grpc.FutureCancelledError:
            self._check_usable()
            return messages.Deliveries()
        finally:
            self._call = None

    @property
    def _topic(self) -> str:
        return self._leases.queue

    def _is_own(self, one: object) -> bool:
        return isinstance(one, RemoteDelivery) and (one.topic, one.group) == (self._topic, self.group)

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
        with self._receiving:
            return self._claimed(1, 0.0)

    def _await_more(self, timeout_s: float) -> None:
        """Hold a claim open on the server; what comes is handed out by the next look."""
        with self._receiving:
            self._check_usable()
            self._fill(self._prefetch, timeout_s)

    def _end_wait(self) -> None:
        call = self._call
        if call is not None:
            call.cancel()

    def _source(self) -> object:
        return self

    @closes_anywhere
    def close(self) -> None:
        if not self._closes_now():
            return
        self._end_wait()
        with self._receiving, contextlib.suppress(Unavailable, Closed):  # not given back: its time runs out
            self._give_back()
        self._leases.close()
