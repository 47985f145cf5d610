"""Which closed segments the runs of a manifest cover, and how runs come into a manifest and leave it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from oncelog.format.manifest import Manifest, Segment
from oncelog.format.runs.run import Run
from oncelog.log.stored.manifests import Change, Manifests
from oncelog.log.upkeep.sealing import created_us


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

    def holds(self, run: Run) -> bool:
        """Tell whether what a run covers, as far as the log still has it, is in this stretch."""
        return self.first_position < run.next_position <= self.next_position


def stretches(manifests: Manifests, manifest: Manifest, runs: Sequence[Run]) -> list[Stretch]:
    """Return what these runs do not cover of the closed segments, oldest first. Only those segments are looked at."""
    found = []
    for first, end in _gaps(runs, manifest.first_position, manifest.next_position):
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
        if run.first_position > position:
            yield position, min(run.first_position, end)
        position = max(position, run.next_position)
    if position < end:
        yield position, end


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

    Nothing is changed if those segments are not there as they were, or if other runs than ``replaced`` are in the way.
    """

    def change(manifest: Manifest) -> Manifest:
        return _replaced(manifest, run, replaced) if _are_there(manifests, manifest, stretch) else manifest

    return change


def rebuilt(manifests: Manifests, made: Sequence[tuple[Run, Stretch]], replaced: Sequence[Run]) -> Change:
    """Return the change by which runs that were made of closed segments come into the manifest together.

    What they replace goes with the same version: nobody sees the one without the others.
    """

    def change(manifest: Manifest) -> Manifest:
        inside = [old for old in manifest.memory if any(_overlap(old, run) for run, _ in made) or old in replaced]
        late = any(created_us(run.key) < manifest.staging_floor_us for run, _ in made)
        there = all(_are_there(manifests, manifest, stretch) for _, stretch in made)
        if inside != list(replaced) or late or not there:
            return manifest
        return _with(manifest, [run for run, _ in made], inside)

    return change


def merged(run: Run, inputs: Sequence[Run]) -> Change:
    """Return the change by which a merged run takes the place of its inputs, if they are all there."""
    return lambda manifest: _replaced(manifest, run, inputs)


def _are_there(manifests: Manifests, manifest: Manifest, stretch: Stretch) -> bool:
    closed = manifests.closed_from(manifest, stretch.first_position)
    there = [_place(now) for _, now in zip(stretch.segments, closed, strict=False)]
    return there == [_place(then) for then in stretch.segments]


def _place(segment: Segment) -> tuple[int, int, int, int]:
    return segment.number, segment.first_position, segment.entries, segment.epoch


def _replaced(manifest: Manifest, run: Run, inputs: Sequence[Run]) -> Manifest:
    """Return the manifest with a run in place of others, or as it is if they are not all that is in its range."""
    inside = [old for old in manifest.memory if _overlap(old, run) or old in inputs]
    if inside != list(inputs) or created_us(run.key) < manifest.staging_floor_us:
        return manifest
    return _with(manifest, [run], inside)


def _with(manifest: Manifest, runs: Sequence[Run], replaced: Sequence[Run]) -> Manifest:
    kept = [old for old in manifest.memory if old not in replaced]
    memory = sorted([*kept, *runs], key=lambda run: run.first_position)
    doomed = [key for old in replaced for key in old.keys()]  # noqa: SIM118  (these are keys of objects)
    return msgspec.structs.replace(manifest, memory=tuple(memory), doomed=(*manifest.doomed, *doomed))


def _overlap(one: Run, other: Run) -> bool:
    return one.first_position < other.next_position and other.first_position < one.next_position


def truncated(manifest: Manifest, target: int) -> tuple[tuple[Run, ...], list[str]]:
    """Return the runs that a truncation leaves, and the keys of the objects of the others."""
    kept = tuple(run for run in manifest.memory if run.next_position > target)
    gone = [key for run in manifest.memory if run.next_position <= target for key in run.keys()]  # noqa: SIM118
    return kept, gone
