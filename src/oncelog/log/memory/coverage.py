"""Which closed segments the runs of a manifest cover, and how runs come into a manifest and leave it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from oncelog import limits
from oncelog.format.manifest import Manifest, Segment
from oncelog.format.runs.run import Run
from oncelog.log.stored.manifests import Change, Manifests
from oncelog.log.stored.object_keys import created_us

RUNS_APART = 8
"""With a bounded window, so many runs are searched although they are no neighbours. With more, gaps are filled."""


class Stretch(NamedTuple):
    """Neighbouring closed segments that no run covers, from a position on (the first may begin before it)."""

    first_position: int
    segments: tuple[Segment, ...]

    @property
    def next_position(self) -> int:
        """The position behind the last record."""
        return self.segments[-1].next_position

    @property
    def records(self) -> int:
        """How many records there are."""
        return self.next_position - self.first_position

    @property
    def beside(self) -> list[str]:
        """The keys of identities beside adopted files: nobody needs those of which a run has the ids."""
        return [segment.identities for segment in self.segments if segment.identities is not None]

    def holds(self, run: Run) -> bool:
        """Tell whether what a run covers, as far as the log still has it, is in this stretch."""
        return self.first_position < run.next_position <= self.next_position


def stretches(
    manifests: Manifests, manifest: Manifest, runs: Sequence[Run], first: int = 0, end: int | None = None
) -> list[Stretch]:
    """Return what these runs do not cover of the closed segments from one position to another, oldest first.

    Only those segments are looked at. Positions are those of the log if none are given; they are where segments begin.
    """
    found = []
    bounds = max(first, manifest.first_position), manifest.next_position if end is None else end
    for first, end in _gaps(runs, *bounds):  # noqa: PLR1704
        segments = []
        for segment in manifests.closed_from(manifest, first):
            if segment.first_position >= end:
                break
            segments.append(segment)
        if segments:
            found.append(Stretch(first, tuple(segments)))
    return found


def _gaps(runs: Sequence[Run], first: int, end: int) -> Iterator[tuple[int, int]]:
    position = first
    for run in runs:
        if run.first_position >= end:
            break
        if run.first_position > position:
            yield position, min(run.first_position, end)
        position = max(position, run.next_position)
    if position < end:
        yield position, end


def adopted_stretch(
    manifests: Manifests, manifest: Manifest, runs: Sequence[Run], shown: Sequence[Run], held: Sequence[Segment]
) -> Stretch | None:
    """Return what to make a run of where a window is bounded, if anything; ``runs`` are those that can be read.

    A run has all ids of its range, also those of appended records between adopted files. First come adopted files
    whose ids are ``held`` in memory. Then, where look-ups are ``shown`` many runs, the smallest gap between two of
    them: only neighbours can be merged. What lies between and is large is left alone, because reading it costs more.
    """
    if held:
        first, numbers = held[0].first_position, {segment.number for segment in held}
        near = range(first - limits.MEMORY_RUN_RECORDS_MIN, first + 1)
        begin = max((run.next_position for run in runs if run.next_position in near), default=first)
        gaps_there = stretches(manifests, manifest, runs, begin, held[-1].next_position)
        groups = (_group(gap, numbers) for gap in gaps_there)
        found = next((group for group in groups if group is not None), None)
        if found is not None:
            return found
    apart = [(one.next_position, other.first_position) for one, other in itertools.pairwise(shown)]
    gaps = [gap for ends in apart for gap in _gaps(runs, *ends)]
    narrow = [gap for gap in gaps if gap[1] - gap[0] <= limits.MEMORY_FOLD_RECORDS_MAX]
    if len(shown) <= RUNS_APART or not narrow:
        return None
    between = stretches(manifests, manifest, runs, *min(narrow, key=lambda gap: gap[1] - gap[0]))
    return next((_begun(gap) for gap in between), None)


def _group(gap: Stretch, numbers: Collection[int]) -> Stretch | None:
    """Return neighbouring segments of a gap, up to the last of these numbers that fits into a run of some size.

    They begin where the gap does, so that the run can be merged with the one before it, unless that is far away.
    """
    first, chosen, count = gap.first_position, list[Segment](), 0
    for segment in gap.segments:
        is_wanted, is_far = segment.number in numbers, segment.next_position - first > limits.MEMORY_RUN_RECORDS_MIN
        if count and is_far:
            break
        if is_far and not is_wanted:
            first, chosen = segment.next_position, []
            continue
        chosen.append(segment)
        count = len(chosen) if is_wanted else count
    return Stretch(first, tuple(chosen[:count])) if count else None


def _begun(gap: Stretch) -> Stretch:
    """Return the first segments of a gap that make up a run of some size."""
    ends = (segment.next_position - gap.first_position > limits.MEMORY_RUN_RECORDS_MIN for segment in gap.segments)
    count = next((number for number, is_far in enumerate(ends) if is_far), len(gap.segments))
    return Stretch(gap.first_position, gap.segments[: max(1, count)])


def neighbours(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs in groups without a gap between them: only such may be merged."""
    groups: list[list[Run]] = []
    for run in runs:
        if groups and groups[-1][-1].next_position == run.first_position:
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def built(manifests: Manifests, run: Run, stretch: Stretch, replaced: Sequence[Run] = ()) -> Change:
    """Return the change by which a run that was made of closed segments comes into the manifest.

    Nothing is changed if those segments are not there as they were, but for what was truncated away since, or if other
    runs than ``replaced`` are in the way.
    """

    def change(manifest: Manifest) -> Manifest:
        there = _are_there(manifests, manifest, stretch)
        return _replaced(manifest, run, replaced, stretch.beside) if there else manifest

    return change


def merged(run: Run, inputs: Sequence[Run]) -> Change:
    """Return the change by which a merged run takes the place of its inputs, if they are all there."""
    return lambda manifest: _replaced(manifest, run, inputs)


def _are_there(manifests: Manifests, manifest: Manifest, stretch: Stretch) -> bool:
    then = [_place(segment) for segment in stretch.segments if segment.next_position > manifest.first_position]
    closed = manifests.closed_from(manifest, max(stretch.first_position, manifest.first_position))
    return bool(then) and then == [_place(now) for _, now in zip(then, closed, strict=False)]


def _place(segment: Segment) -> tuple[int, int, int, int]:
    return segment.number, segment.first_position, segment.entries, segment.epoch


def _replaced(manifest: Manifest, run: Run, inputs: Sequence[Run], beside: Sequence[str] = ()) -> Manifest:
    """Return the manifest with a run in place of others, or as it is if they are not all that is in its range.

    Their objects, and identities ``beside`` files, are to be deleted. The version that names a run is the one that
    dooms what it makes superfluous: nothing is deleted before it.
    """
    inside = [old for old in manifest.memory if _overlap(old, run) or old in inputs]
    if inside != list(inputs) or created_us(run.key) < manifest.staging_floor_us:
        return manifest
    kept = [old for old in manifest.memory if old not in inside]
    memory = sorted([*kept, run], key=lambda each: each.first_position)
    doomed = [key for old in inside for key in old.keys()]  # noqa: SIM118  (these are keys of objects)
    return msgspec.structs.replace(manifest, memory=tuple(memory), doomed=(*manifest.doomed, *doomed, *beside))


def _overlap(one: Run, other: Run) -> bool:
    return one.first_position < other.next_position and other.first_position < one.next_position


def truncated(manifest: Manifest, target: int) -> tuple[tuple[Run, ...], list[str]]:
    """Return the runs that a truncation leaves, and the keys of the objects of the others."""
    kept = tuple(run for run in manifest.memory if run.next_position > target)
    gone = [key for run in manifest.memory if run.next_position <= target for key in run.keys()]  # noqa: SIM118
    return kept, gone
