"""How full the window of one writer is: now, or when the writer left its table to the next one."""

from __future__ import annotations

from collections.abc import Mapping

from oncelog.dedup.window import DedupWindow
from oncelog.log.append.session import WriterSession

WindowState = Mapping[str, int | None]


class Standing:
    """Tells how full a window is, and how many ids it has forgotten. The committer's lock is held.

    Once frozen it tells what was true then: the table may belong to the next writer by now.
    """

    def __init__(self, session: WriterSession) -> None:
        self._session = session
        self._window = window = session.core.window
        self._known_at_first = 0 if window is None else window.evicted + window.count
        self._last: tuple[WindowState, int] | None = None

    def freeze(self) -> None:
        """Keep what is true now: from here on the table may change without this writer."""
        if self._last is None:
            self._last = self.state(), self.forgotten()

    def state(self) -> WindowState:
        """Return how full the window is; nothing, where there is none."""
        if self._last is not None:
            return self._last[0]
        return {} if self._window is None else self._state_of(self._window)

    def _state_of(self, window: DedupWindow) -> WindowState:
        oldest_us = window.oldest_tick_us
        sieve = self._session.recall.view.runs.sieve
        return {
            "keys": window.count,
            "pending": window.pending_count,
            "evicted": window.evicted,
            "bytes": window.nbytes + (0 if sieve is None else sieve.nbytes),
            "horizon_s": None if oldest_us is None else (self._session.uptime_us - oldest_us) // 1_000_000,
        }

    def forgotten(self) -> int:
        """Return how many ids that this writer stored its window has forgotten, or is about to: the oldest go first."""
        if self._last is not None:
            return self._last[1]
        if self._window is None:
            return 0
        overfull = max(0, self._window.count - self._session.settings.window.keys_max)
        return max(0, self._window.evicted + overfull - self._known_at_first)
