"""Many tails in one process."""

from __future__ import annotations

import pytest

from oncelog.connect import Database

TAILS = 1000
LONG_S = 120.0


@pytest.mark.soak
def test_a_thousand_tails_in_one_process(remote: Database) -> None:
    """Each has every record once, in order; one that is appended when all are idle reaches every one of them."""
    log = remote.log("orders", create=True)
    with log.writer() as writer:
        writer.append(b"first")
        tails = [log.tail("earliest") for _ in range(TAILS)]
        for value in (b"first", b"second", b"third"):
            found = [tail.poll(LONG_S) for tail in tails]
            assert [None if entry is None else entry.value for entry in found] == [value] * TAILS
            writer.append({b"first": b"second", b"second": b"third"}.get(value, b"behind"))
        for tail in tails:
            tail.close()
