"""Calling a handler, plain or async, with or without an inbox."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from oncelog.inbox.effect import Effect
from oncelog.inbox.inbox import Inbox
from oncelog.workers.handlers import is_async
from oncelog.workers.hands import OutOfTime, Trying


class HandlerExit(Exception):
    """A handler ended in what is no ``Exception``: SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the handler ended in {error!r}")


class Calls:
    """Calls one handler for deliveries of a group; has the event loop of one that is async."""

    def __init__(
        self,
        handler: Callable[..., Any],
        group: str,
        inbox: Inbox | None,
        *,
        takes_effect: bool,
        time_limit_s: float | None,
    ) -> None:
        self._handler = handler
        self._group = group
        self._inbox = inbox
        self._takes_effect = takes_effect
        self._limit_s = time_limit_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_async(self) -> bool:
        """Whether the handler runs in an event loop."""
        return self._loop is not None

    def start(self) -> None:
        """Have an event loop, if the handler is a coroutine."""
        if is_async(self._handler):
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run_loop, args=(self._loop,), daemon=True)
            self._thread.start()

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        loop.close()

    def end(self) -> None:
        """End the event loop."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def awaited(self, running: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the loop, and wait for it."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(running, self._loop).result()

    def have(self, trying: Trying) -> str:
        """Have the effect. A handler that ends in SystemExit and the like has failed, as with any other error."""
        try:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(self._have_async(trying), self._loop).result()
            return self._had(trying)
        except Exception:
            raise
        except BaseException as error:
            raise HandlerExit(error) from error

    def _had(self, trying: Trying) -> str:
        if self._inbox is None:
            with trying:
                self._handler(trying.delivery)
            return "done"
        trying.begun = trying.entering = False
        once = self._inbox.once(trying.delivery, group=self._group)
        trying.entering = True
        with once as effect:
            trying.entering = False
            if not effect.done:
                with trying:
                    _keep(effect, self._handler(trying.delivery, **self._named(effect)))
        return "duplicate" if effect.done else "done"

    async def _have_async(self, trying: Trying) -> str:
        try:
            return await self._awaited(trying)
        except Exception:
            raise
        except BaseException as error:  # which would end the loop and all that runs in it, or just this task
            raise HandlerExit(error) from error

    async def _awaited(self, trying: Trying) -> str:
        if self._inbox is None:
            with trying:
                await self._limited(self._handler(trying.delivery))
            return "done"
        trying.begun = trying.entering = False
        once = self._inbox.once(trying.delivery, group=self._group)
        trying.entering = True
        async with once as effect:
            trying.entering = False
            if not effect.done:
                with trying:
                    _keep(effect, await self._limited(self._handler(trying.delivery, **self._named(effect))))
        return "duplicate" if effect.done else "done"

    async def _limited(self, running: Any) -> Any:
        """Await a handler; when it is out of time, cancel it."""
        scope = asyncio.timeout(self._limit_s)
        try:
            async with scope:
                return await running
        except TimeoutError as error:
            if scope.expired() and self._limit_s is not None:
                raise OutOfTime(self._limit_s) from error
            raise

    def _named(self, effect: Effect) -> dict[str, Any]:
        return {"effect": effect} if self._takes_effect else {}


def _keep(effect: Effect, returned: object) -> None:
    """Keep what a handler returned; one that returns nothing may have set the result itself."""
    if returned is not None:
        effect.result = returned
