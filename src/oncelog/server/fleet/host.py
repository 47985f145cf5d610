"""What a fleet asks of the server that it belongs to. ``Server`` has all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from oncelog.clock import Clock
from oncelog.connect import Database
from oncelog.log.log import Log
from oncelog.server.crew import Crew
from oncelog.server.settings import ServeSettings

if TYPE_CHECKING:
    from oncelog.server.fleet.fleet import Fleet

_T = TypeVar("_T")


class FleetHost(Protocol):
    """The server as its fleet sees it."""

    database: Database
    settings: ServeSettings
    clock: Clock
    loop: asyncio.AbstractEventLoop
    closers: Crew
    draining: asyncio.Event
    told: set[asyncio.Event]
    fleet: Fleet | None
    name: str
    started_us: int

    def check_bucket(self) -> None:
        """Raise ``Unavailable``, not written, while the server does not reach its bucket."""

    def retry_after_s(self) -> float:
        """Return how long a client that was refused should wait."""

    def open_log(self, name: str) -> Log:
        """Open a log that exists. For threads."""

    def open_count(self) -> int:
        """Return how many logs have their writer open here."""

    def is_held(self, name: str) -> bool:
        """Tell whether this server has the writer of a log now."""

    def wake(self, name: str) -> None:
        """Wake all who wait for something to be appended to a log. For the event loop."""

    def waking(self, name: str, ring: Callable[[], None]) -> AbstractContextManager[None]:
        """Have a function called whenever something was appended to a log by this server."""

    async def read(self, work: Callable[[], _T]) -> _T:
        """Run a function that reads, in a thread."""
