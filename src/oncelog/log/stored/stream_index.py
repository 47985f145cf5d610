"""Where the index of a log's streams is stored: keys that say to which position they reach.

Readers of streams make the index. A writer only deletes the parts of the index that name events which
the log does not have.
"""

from __future__ import annotations

from oncelog.format.streams import PAGE_ROWS
from oncelog.storage.base import LogHome

PREFIX = "streams/"
PAGES_PREFIX, DIRECTORIES_PREFIX = f"{PREFIX}pages/", f"{PREFIX}directories/"


def discard(home: LogHome, next_position: int) -> None:
    """Delete what is ahead of the log: with other events in their place it would be believed.

    Called by a new writer before it writes, when ``next_position`` is decided. A log that was copied while it was
    written, or restored in part, may have such.
    """
    for key in home.list(PREFIX):
        digits = key.rpartition("/")[2][:20]
        reach = (int(digits) if digits.isdecimal() else 0) + (PAGE_ROWS if key.startswith(PAGES_PREFIX) else 0)
        if reach > next_position:
            home.delete(key)
