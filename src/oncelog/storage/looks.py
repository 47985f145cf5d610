"""How often those who wait for a block ask for it, where every question is paid for."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.clock import Clock
from oncelog.storage.bell import Bell

POLL_S = 0.25
IDLE_POLL_S = 1.5
ACTIVE_S = 5.0
LOOK_S = 1.0
"""A block is asked for so often by those who wait for it: often as long as blocks came lately, else less than once a
second, because each question is paid for. After ``LOOK_S`` who waits may look whether the log has moved on.
"""

_ASKED_MAX = 64

NUMBER_END = 10**10
"""Numbers of blocks are below this: a place behind it is one where no block will ever be."""

Place = tuple[int, int]
"""A segment, and the number of a block in it."""


class Looks:
    """The looks of all who wait for blocks of one log, in one process: one asks, all believe the answer for a while.

    A sound of the bell ends that: then this process has written, or somebody is to look again.
    """

    def __init__(self, bell: Bell, clock: Clock) -> None:
        """Begin without an answer."""
        self._bell = bell
        self._clock = clock
        self._asked: dict[Place, tuple[int, object]] = {}  # in vain, for a block: when, after which sound
        self._came_us = -(10**15)  # when the last new block was found

    def wait(self, place: Place, ask: Callable[[], bool], timeout_s: float) -> bool:
        """Return when ``ask`` has found a block at a place, or it is time to look whether the log has moved on."""
        timeout_s = min(timeout_s, LOOK_S)
        return self._bell.wait(lambda: self._has_come(place, ask), timeout_s, self._clock, min(POLL_S, timeout_s))

    def is_silent(self, place: Place) -> bool:
        """Tell, without a question, whether this process has written nothing since a block was looked for in vain."""
        asked = self._asked.get(place)
        return asked is not None and asked[1] is self._bell.sounds

    def _has_come(self, place: Place, ask: Callable[[], bool]) -> bool:
        """Tell whether a block is there; that it was not a moment ago is believed, unless this process wrote since."""
        now_us, sounds = self._clock.elapsed_us(), self._bell.sounds
        asked_us, heard = self._asked.get(place, (-(10**15), None))
        poll_s = POLL_S if now_us - self._came_us < ACTIVE_S * 1e6 else IDLE_POLL_S
        if heard is sounds and now_us - asked_us < poll_s * 1e6:
            return False
        if place[1] < NUMBER_END and ask():
            return True
        self.note(place, sounds, found=False)
        return False

    def note(self, place: Place, sounds: object, *, found: bool) -> None:
        """Remember that there is no block at a place, as far as a look tells that began after this sound."""
        now_us = self._clock.elapsed_us()
        if len(self._asked) >= _ASKED_MAX:
            self._asked.clear()
        self._asked[place] = now_us, sounds
        if found:
            self._came_us = now_us
