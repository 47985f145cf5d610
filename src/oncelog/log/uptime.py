"""Up-time: how long the log has had a writer whose storage answered. The age of ids is counted in it."""

from __future__ import annotations

from oncelog.clock import Clock


class Uptime:
    """Goes on from where the log's last writer left off, and stands still while storage is away.

    So neither an outage nor a clock that jumps ages the window: retries arrive exactly when an outage ends.
    """

    def __init__(self, clock: Clock, start_us: int) -> None:
        self._clock = clock
        self._offset_us = start_us - clock.elapsed_us()
        self._stopped_us: int | None = None

    def now_us(self) -> int:
        """Return the up-time of the log so far."""
        if self._stopped_us is not None:
            return self._stopped_us
        return self._clock.elapsed_us() + self._offset_us

    def stop(self, since_elapsed_us: int) -> None:
        """Stand still: storage has not answered since that moment of the clock."""
        if self._stopped_us is None:
            self._stopped_us = since_elapsed_us + self._offset_us

    def resume(self) -> None:
        """Go on from where it stood: storage answers."""
        if self._stopped_us is not None:
            self._offset_us = self._stopped_us - self._clock.elapsed_us()
            self._stopped_us = None
