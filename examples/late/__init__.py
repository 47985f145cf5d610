"""Duplicates that come when the window has forgotten the first are stored again; an audit finds them, a purge takes
them out of sight.

``python -m examples.late``. No Spark is needed for that.
"""

from __future__ import annotations

from pathlib import Path

import oncelog
from oncelog import LogSettings, Window


def run(folder: Path) -> tuple[int, int, list[int], int]:
    """Return how many came late, how many were purged, the positions that are left, and where a retry is met."""
    with oncelog.connect(folder.as_uri()) as db:
        orders = db.log("orders", LogSettings(window=Window(max_keys=100)), create=True)
        with orders.writer() as writer:
            for number in range(1000):
                writer.append(b"paid", id=f"order-{number}")
            for number in range(0, 1000, 250):  # a producer replays orders of long ago
                writer.append(b"paid", id=f"order-{number}")
        orders.seal()
        late = orders.audit().duplicates
        purged = orders.purge(remove=True).purged
        assert orders.audit().ok
        assert orders.verify().ok
        with orders.writer() as writer:
            retried = writer.append(b"paid", id="order-750")  # again: still known, at the place it was given
        assert retried.duplicate
        assert retried.position is not None
        return late, purged, [entry.position for entry in orders.read()], retried.position
