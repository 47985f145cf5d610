"""Which task reads what: positions cut where segments, files and row groups begin."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from oncelog.format.sealed import ROW_GROUP_ROWS
from oncelog.log.info import Extent

RECORDS, RECORDS_MAX = 500_000, 1_000_000
BYTES, BYTES_MAX = 64 << 20, 128 << 20
TASKS = 8
"""What one task reads by default: about half a second of work, and as much again where that leaves
several tasks, for each of them costs its start.
"""


def cut(
    extents: Sequence[Extent], start: int, end: int, *, partitions_min: int | None, records_max: int | None
) -> list[tuple[int, int]]:
    """Return ranges of positions that make up the whole from ``start`` to ``end``, one for each task.

    A range ends where an extent does if one ends in its second half; within an extent it ends between row groups.
    """
    most = records_max if records_max is not None else _records_max(extents, end - start)
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


def within_bytes(extents: Sequence[Extent], start: int, end: int, bytes_max: int) -> int:
    """Return how far one gets from ``start`` with so many stored bytes: one record at least, ``end`` at most.

    An extent's records are taken to be of one size; those of the open segment to be as large as the others.
    """
    known = [extent for extent in extents if extent.bytes]
    average = sum(extent.bytes for extent in known) / max(1, sum(extent.records for extent in known))
    left = float(bytes_max)
    for extent in extents:
        first, last = max(start, extent.first_position), min(end, extent.first_position + extent.records)
        record_bytes = extent.bytes / extent.records if extent.bytes else average
        if (last - first) * record_bytes > left:
            return min(end, max(start + 1, first + int(left / record_bytes)))
        left -= max(0, last - first) * record_bytes
    return end


def _records_max(extents: Sequence[Extent], count: int) -> int:
    """Return how many of so many records of this log a task reads."""
    most = _share(count, RECORDS, RECORDS_MAX)
    stored = [extent for extent in extents if extent.bytes]
    records = sum(extent.records for extent in stored)
    if not records:
        return most
    record_bytes = max(1.0, sum(extent.bytes for extent in stored) / records)
    return max(1, min(most, int(_share(int(count * record_bytes), BYTES, BYTES_MAX) / record_bytes)))


def _share(whole: int, least: int, most: int) -> int:
    """Return how much of a whole one of several tasks has: no less than ``least``, and no more than ``most``."""
    return min(most, max(least, -(-whole // TASKS)))


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
