"""Up-time: how long the log has had a living writer whose storage answered. The age of ids is counted in it."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.clock import CREDIT_US, Clock

PATIENCE_US = 1_000_000
"""A storage that has not answered a request for so long counts as away, until it answers."""


class Uptime:
    """Continues from where the log's last writer left off, and stands still while writer or storage is away.

    So neither an outage, nor a pause of the process, nor a clock that jumps ages the window: retries arrive exactly
    when an outage ends. Each sign of life is good for ``CREDIT_US`` at most. Signs of the process are the beats of the
    clock's pulse. With ``looks``, storage must give signs too: every answer to a request is one (``answered``,
    ``seen``), and somebody asks it every second (``probe``, or the one who watches for requests), so that an idle
    writer also notices an outage.

    Time is an argument: ``elapsed_us`` is always the present moment. Of the clock only the pulse is read here, as two
    numbers. Guarded by the committer's lock. Moments inside are *lived* time: elapsed time without the pauses.
    """

    def __init__(self, clock: Clock, start_us: int, *, looks: bool = False) -> None:
        self.probe: Callable[[], None] = lambda: None
        """Asks storage for a sign; called every second."""
        clock.keep_pulse(self)
        self._clock = clock
        lived_us = self._lived_us(clock.elapsed_us())
        self._offset_us = start_us - lived_us
        self._stopped_us: int | None = None
        self.asked_us: dict[int, tuple[int, int]] = {}  # unanswered requests, oldest first: elapsed, lived
        self._sign_us = lived_us if looks else None  # when storage answered last
        self._requests = 0
        self._stamped_us = start_us

    @property
    def looks(self) -> bool:
        """Whether storage must give signs for time to count."""
        return self._sign_us is not None

    def beat(self) -> None:
        """Ask storage for a sign. The committer's lock is not held."""
        self.probe()

    def at(self, elapsed_us: int) -> int:
        """Return the up-time of the log at this moment, which is now."""
        if self._stopped_us is not None:
            return self._stopped_us
        beat_us, paused_us = self._clock.pulse
        if elapsed_us - beat_us > CREDIT_US:
            elapsed_us = beat_us + CREDIT_US
        lived_us = elapsed_us - paused_us
        if self.asked_us:
            lived_us = min(lived_us, next(iter(self.asked_us.values()))[1] + PATIENCE_US)
        if self._sign_us is not None and lived_us > self._sign_us + CREDIT_US:
            lived_us = self._sign_us + CREDIT_US
        return lived_us + self._offset_us

    def _lived_us(self, elapsed_us: int) -> int:
        """Return how much of the elapsed time this process lived. ``at`` spells the same out: every append calls it."""
        beat_us, paused_us = self._clock.pulse
        return (elapsed_us if elapsed_us - beat_us <= CREDIT_US else beat_us + CREDIT_US) - paused_us

    def stamp_at(self, elapsed_us: int) -> int:
        """Return the up-time for a block: never less than that of the block before, whatever fails."""
        self._stamped_us = max(self._stamped_us, self.at(elapsed_us))
        return self._stamped_us

    def ask(self, elapsed_us: int) -> int:
        """Note that storage is asked for something, now; return the number of the request."""
        self._requests += 1
        beat_us, paused_us = self._clock.pulse  # as ``_lived_us`` has it: every append calls this
        lived_us = (elapsed_us if elapsed_us - beat_us <= CREDIT_US else beat_us + CREDIT_US) - paused_us
        self.asked_us[self._requests] = elapsed_us, lived_us
        return self._requests

    def failed(self, request: int, elapsed_us: int) -> None:
        """Stand still, from the moment of the request on: storage has not done what it was asked for.

        Where a block was begun since, while others were in flight, from the moment of that.
        """
        standing_us = self.at(elapsed_us)
        _, asked_us = self.asked_us.pop(request, (elapsed_us, self._lived_us(elapsed_us)))
        if self._stopped_us is None:
            self._stopped_us = max(min(asked_us + self._offset_us, standing_us), self._stamped_us)

    def answered(self, request: int, elapsed_us: int, *, stored: bool = True) -> None:
        """Continue from where it stood: storage has answered. If it has ``stored`` nothing, an outage continues too."""
        asked = self.asked_us
        if len(asked) == 1 and self._stopped_us is None and elapsed_us - asked[request][0] <= PATIENCE_US:
            beat_us, paused_us = self._clock.pulse  # as ``_lived_us`` has it
            lived_us = (elapsed_us if elapsed_us - beat_us <= CREDIT_US else beat_us + CREDIT_US) - paused_us
            if self._sign_us is None or lived_us <= self._sign_us + CREDIT_US:
                if self._sign_us is not None:
                    self._sign_us = lived_us
                del asked[request]
                return  # nothing stood still
        standing_us = self.at(elapsed_us)
        del self.asked_us[request]
        if stored:
            self._stopped_us = None
        self._resume(elapsed_us, standing_us)

    def forget_asked(self, elapsed_us: int) -> None:
        """Wait for no request any more: nothing is on its way, so who asked was interrupted, and never reports."""
        standing_us = self.at(elapsed_us)
        self.asked_us.clear()
        self._resume(elapsed_us, standing_us)

    def seen(self, elapsed_us: int) -> None:
        """Note that storage has answered somebody who only looked, now. What it has not stored stays an outage."""
        self._resume(elapsed_us, self.at(elapsed_us))

    def _resume(self, elapsed_us: int, standing_us: int) -> None:
        """Count from here on, unless an outage continues: storage has given a sign of life."""
        lived_us = self._lived_us(elapsed_us)
        if self._sign_us is not None:
            self._sign_us = lived_us
        if self._stopped_us is not None:
            return
        # Requests that still hang keep hanging: no time from here on counts before they are answered too.
        since_us = lived_us - PATIENCE_US
        self.asked_us = {other: (at, max(asked, since_us)) for other, (at, asked) in self.asked_us.items()}
        self._offset_us = standing_us - lived_us
