"""Which task reads what: positions cut where segments, files and row groups begin."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from oncelog.format.sealed import ROW_GROUP_ROWS
from oncelog.log.info import Extent

RECORDS_MAX = 500_000
BYTES_MAX = 64 << 20
"""What one task reads unless it is told otherwise: a second's work or so."""


def cut(
    extents: Sequence[Extent], start: int, end: int, *, partitions_min: int | None, records_max: int | None
) -> list[tuple[int, int]]:
    """Return ranges of positions that make up the whole from ``start`` to ``end``, one for each task.

    A range ends where an extent does if one ends in its second half; within an extent it ends between row groups.
    """
    most = records_max if records_max is not None else _records_max(extents)
    wanted = max(partitions_min or 1, -(-(end - start) // most))
    bounds = [extent.first_position for extent in extents]
    ranges: list[tuple[int, int]] = []
    while start < end:
        left = max(1, wanted - len(ranges))
        ideal = start + min(most, -(-(end - start) // left))
        stop = end if ideal >= end else _stop(bounds, start, ideal)
        ranges.append((start, stop))
        start = stop
    return ranges


def _records_max(extents: Sequence[Extent]) -> int:
    """Return how many records of this log make a task's worth of bytes."""
    stored = [extent for extent in extents if extent.bytes]
    records = sum(extent.records for extent in stored)
    if not records:
        return RECORDS_MAX
    record_bytes = max(1.0, sum(extent.bytes for extent in stored) / records)
    return max(1, min(RECORDS_MAX, int(BYTES_MAX / record_bytes)))


def _stop(bounds: Sequence[int], start: int, ideal: int) -> int:
    """Return where a range that might end at ``ideal`` ends best."""
    at = bisect.bisect_right(bounds, ideal) - 1
    if at < 0:
        return ideal
    half = start + (ideal - start + 1) // 2
    if bounds[at] >= half and bounds[at] > start:
        return bounds[at]
    aligned = ideal - (ideal - bounds[at]) % ROW_GROUP_ROWS
    return aligned if aligned >= half and aligned > start else ideal
