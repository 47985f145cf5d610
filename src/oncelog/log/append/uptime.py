"""Up-time: how long the log has had a writer whose storage answered. The age of ids is counted in it."""

from __future__ import annotations

from oncelog.clock import Clock

PATIENCE_US = 1_000_000
"""A storage that has not answered for so long counts as away, until it does."""


class Uptime:
    """Goes on from where the log's last writer left off, and stands still while storage is away.

    So neither an outage nor a clock that jumps ages the window: retries arrive exactly when an outage ends. Guarded by
    the committer's lock.
    """

    def __init__(self, clock: Clock, start_us: int) -> None:
        self._clock = clock
        self._offset_us = start_us - clock.elapsed_us()
        self._stopped_us: int | None = None
        self._asked_us: dict[int, int] = {}  # the requests that are not answered, oldest first, and their moments
        self._requests = 0
        self._stamped_us = start_us

    def now_us(self) -> int:
        """Return the up-time of the log so far."""
        return self.at(self._clock.elapsed_us())

    def at(self, elapsed_us: int) -> int:
        """Return the up-time of the log at this moment, which is now."""
        if self._stopped_us is not None:
            return self._stopped_us
        if self._asked_us:
            oldest_us = next(iter(self._asked_us.values()))
            return min(elapsed_us, oldest_us + PATIENCE_US) + self._offset_us
        return elapsed_us + self._offset_us

    def stamp_us(self) -> int:
        """Return the up-time for a block: never less than the one before had, whatever fails meanwhile."""
        self._stamped_us = max(self._stamped_us, self.now_us())
        return self._stamped_us

    def ask(self, elapsed_us: int) -> int:
        """Note that storage is asked for something, now; return the number of the request."""
        self._requests += 1
        self._asked_us[self._requests] = elapsed_us
        return self._requests

    def failed(self, request: int) -> None:
        """Stand still, from the moment of the request on: storage has not done what it was asked for.

        Where a block was begun since, while others were in flight, from the moment of that.
        """
        asked_us = self._asked_us.pop(request, self._clock.elapsed_us())
        if self._stopped_us is None:
            self._stopped_us = max(asked_us + self._offset_us, self._stamped_us)

    def answered(self, request: int, now_us: int, *, stored: bool = True) -> None:
        """Go on from where it stood: storage has answered. If it has ``stored`` nothing, an outage goes on too."""
        asked_us = self._asked_us[request]
        if now_us - asked_us <= PATIENCE_US and len(self._asked_us) == 1 and self._stopped_us is None:
            self._asked_us.clear()
            return  # nothing stood still
        stood_us = self.at(now_us)
        del self._asked_us[request]
        # Those that still hang go on hanging: none of the time from here on counts before they are answered too.
        if self._asked_us:
            self._asked_us = {other: max(moment, now_us - PATIENCE_US) for other, moment in self._asked_us.items()}
        if stored:
            self._stopped_us = None
        self._offset_us = stood_us - now_us if self._stopped_us is None else self._offset_us
