"""How often somebody may do something: a token bucket (Turner, 1986) for each key, with bounded memory."""

from __future__ import annotations

from oncelog import limits
from oncelog.clock import Clock


class Rates:
    """Buckets that fill with ``per_s`` and hold ``burst``. Used by one thread."""

    def __init__(self, clock: Clock, per_s: float, burst: float) -> None:
        """Begin with full buckets."""
        self._clock = clock
        self._per_s = per_s
        self._burst = burst
        self._buckets: dict[str, tuple[int, float]] = {}  # when it was last looked at, and what was in it then

    def take(self, key: str) -> float:
        """Take one; return 0, or how many seconds to wait when there is none."""
        now_us = self._clock.elapsed_us()
        then_us, held = self._buckets.pop(key, (now_us, self._burst))
        held = min(self._burst, held + (now_us - then_us) / 1e6 * self._per_s)
        if len(self._buckets) >= limits.SERVER_PEERS_MAX:
            self._buckets.pop(next(iter(self._buckets)))  # the least recently used: most likely full again
        self._buckets[key] = (now_us, held - 1 if held >= 1 else held)
        return 0.0 if held >= 1 else (1 - held) / self._per_s
