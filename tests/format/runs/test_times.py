"""Timestamps of commits come back as they were, and no byte of them can change unnoticed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import CorruptionError, OncelogError
from oncelog.format.runs.pages import PAGE_BYTES
from oncelog.format.runs.run import TimesPart
from oncelog.format.runs.times import Commits, decode_front, decode_page, encode

STEP = st.integers(1, 10_000) | st.integers(2**32 - 2, 2**33)
WAIT = st.integers(0, 10_000_000) | st.integers(2**32 - 2, 2**40) | st.integers(-5, -1)


def commits_of(steps: list[tuple[int, int]]) -> Commits:
    """Return commits that follow each other by these steps of position and time."""
    moved = np.array(steps, np.int64)
    return Commits(np.cumsum(moved[:, 0]) - moved[0, 0], 10**15 + np.cumsum(moved[:, 1]))


def decoded(data: bytes, told: TimesPart) -> list[tuple[int, int]]:
    """Return all commits of an object."""
    head, _ = decode_front(pa.py_buffer(data), told, "times")
    found: list[tuple[int, int]] = []
    for number in range(head.pages):
        start = told.front_bytes + number * PAGE_BYTES
        page = decode_page(memoryview(data)[start : start + PAGE_BYTES], number, head, "times")
        found += zip(page.positions.tolist(), page.timestamps_us.tolist(), strict=True)
    return found


@given(steps=st.lists(st.tuples(STEP, WAIT), min_size=1, max_size=40), times=st.integers(1, 60))
def test_commits_come_back(steps: list[tuple[int, int]], times: int) -> None:
    """Small steps, steps of an hour and more, and a clock that went back."""
    commits = commits_of(steps * times)
    told, data = encode("log", commits)
    whole = b"".join(data)
    assert len(whole) == told.size_bytes
    assert decoded(whole, told) == list(zip(commits.positions.tolist(), commits.timestamps_us.tolist(), strict=True))


def test_a_commit_takes_eight_bytes() -> None:
    """Commits that follow each other within an hour are packed."""
    told, _ = encode("log", commits_of([(3, 1_000_000)] * 100_000))
    assert told.size_bytes < 100_000 * 8.2 + 2 * PAGE_BYTES


def test_no_byte_changes_unnoticed() -> None:
    """A changed byte is an error, or is padding: never another timestamp."""
    told, data = encode("log", commits_of([(3, 1_000)] * 300))
    raw = bytearray(b"".join(data))
    expected = decoded(bytes(raw), told)
    noticed = 0
    for at in range(len(raw)):
        raw[at] ^= 1 << at % 8
        try:
            assert decoded(bytes(raw), told) == expected, at
        except OncelogError:
            noticed += 1
        raw[at] ^= 1 << at % 8
    assert noticed > PAGE_BYTES


def test_an_object_of_another_log_is_refused() -> None:
    """The manifest names the object by the checksum of its head."""
    told, _ = encode("log", commits_of([(3, 1_000)]))
    _, data = encode("other", commits_of([(3, 1_000)]))
    with pytest.raises(CorruptionError, match="not the one that the manifest names"):
        decode_front(pa.py_buffer(b"".join(data)), told, "times")
