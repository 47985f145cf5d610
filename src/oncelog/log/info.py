"""What can be told of a log: to operators, and to those who share its positions out."""

from __future__ import annotations

import msgspec

from oncelog.log.append.counters import Counts
from oncelog.settings import LogSettings


class MemoryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a log without bounds remembers.

    ``ids`` are those in its runs and, where this handle has a writer, in the writer's table; repeats count. What they
    take in memory (of the runs that is filters and fences, mapped where the home is a disk) and on disk is in bytes.
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
    remembered without bounds.
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
