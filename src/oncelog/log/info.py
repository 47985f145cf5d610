"""What can be told of a log: to operators, and to those who share its positions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from oncelog.format.manifest import File, Manifest, Segment
from oncelog.log.append.counters import Counts
from oncelog.settings import LogSettings
from oncelog.storage.base import LogHome


class MemoryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a log without bounds remembers.

    ``ids`` are those in its runs and, where this handle has a writer, in the writer's table; repeats count. What they
    take in memory (of the runs that is filters and fences, mapped where the home is a disk, and the writer's sieve) and
    on disk is in bytes.
    ``since`` is the position from which on no id that was in the log was stored again.
    """

    ids: int
    runs: int
    memory_bytes: int
    disk_bytes: int
    since: int


class LogInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator would ask of a log.

    ``bytes`` are those of closed segments and sealed files. ``snapshots`` are keys with the position they reach to;
    ``snapshot_age_s`` is the age of the newest. ``window`` (keys, pending, evicted, bytes, and the age of the oldest
    key: its horizon) and ``counters`` are there while this handle has a writer. ``memory`` is there where ids are
    remembered without bounds. ``adopted_records`` are those of adopted files whose ids a bounded window
    remembers beside its keys. ``at_risk``: on a quorum, how many closed segments have fewer copies than they should
    and are not sealed yet.
    """

    name: str
    log_id: str
    settings: LogSettings
    version: int
    epoch: int
    first_position: int
    last_position: int
    segments: int
    sealed_segments: int
    open_segment: int | None
    bytes: int
    uptime_s: float
    snapshots: dict[str, int]
    snapshot_age_s: float | None
    window: dict[str, int | None]
    counters: Counts | None
    memory: MemoryInfo | None = None
    adopted_records: int = 0
    at_risk: int | None = None


class SealedFileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed file: where it is, the position of its first row, and how many rows and bytes it has.

    ``local``: whether ``path`` can be opened from here. It cannot if it is on the disk of a server; a URL can.
    """

    path: str
    first_position: int
    records: int
    bytes: int
    local: bool = True


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive records that are kept together: a segment, and the bytes it takes as far as that is known."""

    first_position: int
    records: int
    bytes: int = 0


def at_risk_of(home: LogHome, closed: Sequence[Segment]) -> int | None:
    """Return how many closed segments too few stores hold; ``None`` where a block has one place."""
    if not home.seals_early:
        return None
    return sum(home.at_risk(one.number, one.end) for one in closed if one.file is None)


def memory_of(manifest: Manifest, table: Mapping[str, int | None]) -> MemoryInfo | None:
    """Return what a log without bounds remembers; ``table`` is the state of its writer's table, if it has one."""
    if manifest.settings.idempotence == "off" or not manifest.settings.window.unbounded:
        return None
    fronts = sum(part.front_bytes for run in manifest.memory for part in run.parts)
    return MemoryInfo(
        ids=sum(run.ids for run in manifest.memory) + (table.get("keys") or 0),
        runs=len(manifest.memory),
        memory_bytes=fronts + (table.get("bytes") or 0),
        disk_bytes=sum(run.size_bytes for run in manifest.memory),
        since=manifest.window_since,
    )


def adopted_records_of(manifest: Manifest, closed: Sequence[Segment]) -> int:
    """Return how many records of adopted files have ids that a bounded window remembers, beside its keys."""
    window = manifest.settings.window
    if manifest.settings.idempotence == "off" or window.unbounded:
        return 0
    since_us = manifest.uptime_us - window.duration_us
    return sum(one.entries for one in closed if one.identities is not None and one.last_uptime_us > since_us)


def files_of(home: LogHome, segments: Sequence[Segment]) -> list[SealedFileInfo]:
    """Return the sealed files of segments, oldest first. Several segments may share a file."""
    found: dict[str, SealedFileInfo] = {}
    for segment in segments:
        file = segment.file
        if file is None:
            continue
        earlier = found.get(file.key)
        found[file.key] = SealedFileInfo(
            path=home.location(file.key),
            first_position=earlier.first_position if earlier else segment.first_position - file.row,
            records=(earlier.records if earlier else file.row) + segment.entries,
            bytes=file.size_bytes,
        )
    return list(found.values())


def file_of(segments: Sequence[Segment], first_position: int) -> File | None:
    """Return the sealed file that begins with a position, as ``files_of`` lists it; ``None`` if there is none."""
    begun: set[str] = set()
    for segment in segments:
        file = segment.file
        if file is None or file.key in begun:
            continue
        begun.add(file.key)
        if segment.first_position - file.row == first_position:
            return file
    return None


def extents_of(segments: Sequence[Segment], open_position: int, end: int) -> list[Extent]:
    """Return how records before ``end`` are kept: in closed segments, and from ``open_position`` on in the open one."""
    found = [
        Extent(first_position=segment.first_position, records=segment.entries, bytes=_bytes_of(segment))
        for segment in segments
        if segment.first_position < end
    ]
    if open_position < end:
        found.append(Extent(first_position=open_position, records=end - open_position))
    return found


def _bytes_of(segment: Segment) -> int:
    """Return about how many bytes a segment takes, alone or of the file that it shares."""
    file = segment.file
    return (
        segment.size_bytes if file is None else file.size_bytes * segment.entries // max(1, file.row + segment.entries)
    )
