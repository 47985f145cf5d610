"""Adoption: staged files become segments, in one version of the manifest."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import msgspec

from oncelog.format.manifest import File, Manifest, Mark, Segment
from oncelog.format.runs.run import Run
from oncelog.limits import MARK_S_MAX, MARKS_MAX
from oncelog.log.stored.staged import Staged


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """What one manifest version brings in: files, rows that are put aside, and how far their producer has come.

    ``run`` has the ids of the files, with positions from 0, if they are many.
    """

    staged: tuple[Staged, ...] = ()
    conflicts: tuple[Staged, ...] = ()
    mark: Mark | None = None
    run: Run | None = None


def adopted(manifest: Manifest, adoption: Adoption, timestamp_us: int, uptime_us: int) -> Manifest:
    """Return the manifest with everything that is adopted, behind everything else in it."""
    place = (manifest.next_segment, manifest.next_position)
    segments = _segments(adoption.staged, place, manifest.epoch, timestamp_us, uptime_us)
    last = manifest.conflicts[-1] if manifest.conflicts else None
    place = (0, 0) if last is None else (last.number + 1, last.next_position)
    conflicts = _segments(adoption.conflicts, place, manifest.epoch, timestamp_us, uptime_us)
    return msgspec.structs.replace(
        manifest,
        segments=(*manifest.segments, *segments),
        conflicts=(*manifest.conflicts, *conflicts),
        marks=manifest.marks if adoption.mark is None else with_mark(manifest.marks, adoption.mark),
        next_segment=manifest.next_segment + len(segments),
        next_position=segments[-1].next_position if segments else manifest.next_position,
        last_timestamp_us=timestamp_us if segments else manifest.last_timestamp_us,
        uptime_us=max(manifest.uptime_us, uptime_us),
        labels=functools.reduce(operator.or_, (segment.labels for segment in segments), manifest.labels),
        memory=(*manifest.memory, *_placed(adoption.run, segments)),
        doomed=(*manifest.doomed, *_beside(adoption)),
    )


def _beside(adoption: Adoption) -> list[str]:
    """Return the keys of identities that nobody needs, because a run has them."""
    keys = [file.identities for file in adoption.staged] if adoption.run is not None else []
    return [key for key in keys if key is not None]


def _placed(run: Run | None, segments: Sequence[Segment]) -> list[Run]:
    """Return the run of adopted files with the positions that they got."""
    if run is None:
        return []
    ends = segments[0].first_position, segments[-1].next_position
    return [msgspec.structs.replace(run, first_position=ends[0], next_position=ends[1])]


def _segments(
    staged: Sequence[Staged], place: tuple[int, int], epoch: int, timestamp_us: int, uptime_us: int
) -> list[Segment]:
    """Return the segments that staged files become, from a number and a position on."""
    segments = []
    first_number, position = place
    for number, file in enumerate(staged, first_number):
        segments.append(
            Segment(
                number=number,
                first_position=position,
                entries=file.records,
                epoch=epoch,
                end=0,
                checksum=0,
                size_bytes=0,
                first_timestamp_us=timestamp_us,
                last_timestamp_us=timestamp_us,
                last_uptime_us=uptime_us,
                ids=0,  # they do not spend the window's keys
                file=File(file.key, 0, file.size_bytes, file.checksum),
                identities=file.identities,
                labels=file.labels,
            )
        )
        position += file.records
    return segments


def with_mark(marks: Sequence[Mark], mark: Mark) -> tuple[Mark, ...]:
    """Return the marks with one set: the most recently active last, without those that have been inactive for long."""
    oldest_us = mark.marked_us - MARK_S_MAX * 1_000_000
    others = [other for other in marks if other.producer != mark.producer and other.marked_us >= oldest_us]
    return (*others[-(MARKS_MAX - 1) :], mark)
