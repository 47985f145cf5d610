"""The keys of objects beside the blocks of a log. A key says when it was made, so its age needs no request."""

from __future__ import annotations

from oncelog.clock import Clock

PREFIX = "sealed/"
STAGED_S = 86_400
"""How long a file may exist before the manifest points to it."""


def new_key(clock: Clock, floor_us: int = 0) -> str:
    """Return a key for a file that nobody else uses. It tells when it was made, for the staging floor.

    A floor that a clock announced which was ahead is no reason to refuse what is made now, so it counts as made then.
    """
    return f"{PREFIX}{max(clock.now_us(), floor_us):020d}-{clock.token(8).hex()}.parquet"


def created_us(key: str) -> int:
    """Return when a file of that key was made; 0 for a key that does not say."""
    digits = key.removeprefix(PREFIX)[:20]
    return int(digits) if digits.isdecimal() else 0
