"""Keeping leases while their effects are at work."""

from __future__ import annotations

import asyncio
import logging
import threading

from oncelog.clock import Clock
from oncelog.concurrency.trouble import Trouble
from oncelog.inbox.contract import KeyClaim
from oncelog.inbox.steps import Steps, run, run_async
from oncelog.inbox.stores.connections import Home

_logger = logging.getLogger("oncelog.inbox")


class LeaseKeeper:
    """Renews leases, each three times within its length, on a connection that no effect is using.

    A process that is stopped renews nothing, and loses them. Safe to share between threads.
    """

    def __init__(self, home: Home, clock: Clock, lease_s: float) -> None:
        self._home = home
        self._clock = clock
        self._pause_s = lease_s / 3
        self._changed = threading.Condition()
        self._held: dict[str, KeyClaim] = {}
        self._trouble = Trouble("oncelog.inbox", "renewing the leases of effects")
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, claim: KeyClaim) -> None:
        """Renew this one from now on."""
        with self._changed:
            self._held[claim.nonce] = claim
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_all, name="oncelog-inbox", daemon=True)
                self._thread.start()

    def drop(self, claim: KeyClaim) -> None:
        """Renew this one no more."""
        with self._changed:
            self._held.pop(claim.nonce, None)

    def renew(self, claim: KeyClaim) -> bool:
        """Renew one now; tell whether it was still held."""
        return run(self._renew(claim))

    def close(self) -> None:
        """Renew nothing any more."""
        with self._changed:
            self._closed = True
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _keep_all(self) -> None:
        while True:
            with self._changed:
                if not self._closed:
                    self._clock.wait(self._changed, self._pause_s)
                if self._closed:
                    return
                held = list(self._held.values())
            for claim in held:
                self._try(claim)

    def _try(self, claim: KeyClaim) -> None:
        try:
            if not self.renew(claim):
                self.drop(claim)
                _say_lost()
            self._trouble.end()
        except Exception as error:  # noqa: BLE001  it is tried again soon; at the end the token decides
            self._trouble.begin(error)

    def _renew(self, claim: KeyClaim) -> Steps[bool]:
        connection = yield from self._home.take()
        try:
            kept = yield from connection.renew(claim)
        finally:
            yield from self._home.give_back(connection)
        return kept

    async def keep(self, claim: KeyClaim) -> None:
        """Renew one for ever, in an event loop."""
        while True:
            await asyncio.sleep(self._pause_s)
            try:
                kept = await run_async(self._renew(claim))
                self._trouble.end()
            except Exception as error:  # noqa: BLE001  as above
                self._trouble.begin(error)
                continue
            if not kept:
                _say_lost()
                return


def _say_lost() -> None:
    """Say it without the key, which may be a person."""
    _logger.info("the lease of an effect is no longer held: it ended, or another worker has it")
