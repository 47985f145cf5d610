"""Deliveries for clients: messages are claimed here, and settled by the names of their leases.

A settlement that a client sends again under its tag, because the first answer was lost, gets that answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from oncelog.errors import OncelogError
from oncelog.queue import inner
from oncelog.queue.deliver.consumer import Consumer, Delivery
from oncelog.queue.deliver.settling import LeaseName, SettlementRequest
from oncelog.queue.queue import Queue

if TYPE_CHECKING:
    from oncelog.server.server import Server

LOOK_S = 0.25
"""How often a consumer looks for what became due, or what other processes have sent."""

WAIT_S_MAX = 60.0
"""So long one pull waits at most."""

KEPT_MAX = 1024
"""Answers to settlements that are kept for one session, the latest ones."""


class ConsumerSession:
    """The answers that one client's consumer was given, by their tags."""

    def __init__(self, queue: str, group: str) -> None:
        self.queue = queue
        self.group = group
        self.answers: dict[int, asyncio.Future[list[LeaseName]]] = {}
        self.streams = 0
        self.ended_us = 0


class Consumers:
    """Claims and settles for clients."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sessions: dict[tuple[bytes, str, str], ConsumerSession] = {}

    def queue(self, name: str) -> Queue:
        """Open a queue that exists. For threads."""
        return self._server.database.queue(name, state=self._server.settings.queue_state)

    async def receive(self, consumer: Consumer, name: str, limit: int, timeout_s: float) -> list[Delivery]:
        """Claim up to ``limit`` messages, waiting for the first up to ``timeout_s``. No thread waits.

        A caller that is cancelled gives back what was claimed for it.
        """
        loop = self._server.loop
        deadline = loop.time() + min(timeout_s, WAIT_S_MAX)
        with self._server.queue_woken(name) as woken:
            while True:
                woken.clear()
                found = await self._claimed(consumer, name, limit)
                left_s = deadline - loop.time()
                if found or left_s <= 0 or self._server.draining.is_set():
                    return found
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, LOOK_S)):
                        await woken.wait()

    async def _claimed(self, consumer: Consumer, name: str, limit: int) -> list[Delivery]:
        claiming = asyncio.ensure_future(self._server.write(lambda: consumer.receive(limit, timeout_s=0), name))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            claiming.add_done_callback(lambda done: self._give_back_of(name, consumer.group, done))
            raise

    def _give_back_of(self, name: str, group: str, done: asyncio.Future[list[Delivery]]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.give_back(name, group, done.result())

    def give_back(self, name: str, group: str, deliveries: Sequence[Delivery]) -> None:
        """Give back what did not reach its client: it is delivered again at once, and counts as no attempt."""
        leases = [LeaseName(one.token, one.partition, one.position) for one in deliveries]
        if leases:
            self._server.writers.post(
                lambda: inner.settle(self.queue(name), group, leases, SettlementRequest("returned"))
            )
            self._server.wake_queue(name)

    async def settle(
        self, name: str, group: str, leases: Sequence[LeaseName], settlement: SettlementRequest
    ) -> list[LeaseName]:
        """Settle deliveries in one commit; return those that were lost to others."""
        lost = await self._server.write(lambda: inner.settle(self.queue(name), group, leases, settlement), name)
        self._server.wake_queue(name)
        return lost

    # Settlements that are sent again.

    @contextlib.contextmanager
    def _attached(self, key: tuple[bytes, str, str]) -> Iterator[ConsumerSession]:
        session = self._sessions.setdefault(key, ConsumerSession(*key[1:]))
        session.streams += 1
        try:
            yield session
        finally:
            session.streams -= 1
            session.ended_us = self._server.clock.elapsed_us()

    def session(self, key: bytes, name: str, group: str) -> contextlib.AbstractContextManager[ConsumerSession]:
        """Have the answers that a client's session was given, for as long as its stream lasts, and a while longer."""
        return self._attached((key, name, group))

    async def settle_once(
        self, session: ConsumerSession, tag: int, leases: Sequence[LeaseName], settlement: SettlementRequest
    ) -> list[LeaseName]:
        """Settle deliveries, unless that was asked before under the same tag: then the answer is the same.

        A failure that is known to have changed nothing is forgotten: the same tag may try again.
        """
        answer = session.answers.get(tag)
        if answer is None:
            answer = session.answers[tag] = asyncio.ensure_future(
                self.settle(session.queue, session.group, leases, settlement)
            )
            while len(session.answers) > KEPT_MAX:
                del session.answers[next(iter(session.answers))]
        try:
            return await asyncio.shield(answer)
        except OncelogError:
            if session.answers.get(tag) is answer:
                del session.answers[tag]
            raise

    def tidy(self, now_us: int) -> None:
        """Forget the sessions whose streams have ended a while ago."""
        kept_us = self._server.settings.session_s * 1e6
        over = [
            key
            for key, session in self._sessions.items()
            if not session.streams and now_us - session.ended_us >= kept_us
        ]
        for key in over:
            del self._sessions[key]
