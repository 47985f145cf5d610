"""Auditing a log: how many records, which ids are there more than once, whether all is whole, by kind and by time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog.clock import Clock
from oncelog.format.manifest import Manifest, Segment
from oncelog.format.payload.arrays import booleans
from oncelog.log.jobs.find_repeats import Progress, Walk, concerned, find
from oncelog.log.jobs.window_rules import Finding
from oncelog.log.jobs.workers import Hands, JobContext, Unit
from oncelog.log.stored.manifests import Manifests
from oncelog.log.stored.rows import Rows
from oncelog.log.upkeep.sealing import size
from oncelog.storage.base import LogHome
from oncelog.types import moment

By = Literal["producer", "type", "stream", "tenant"]
SAMPLE = 20
_HOUR_US = 3600 * 1_000_000
_Key = TypeVar("_Key")


class Share(msgspec.Struct, frozen=True):
    """What there is of one kind, or in one hour: records, and how many of them repeat an id."""

    records: int
    repeats: int


class Repeat(msgspec.Struct, frozen=True):
    """A record whose id an earlier record has: where that is, and whether it has the same content."""

    position: int
    first: int
    same: bool


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit found in the closed segments of a log.

    ``records`` are those that a reader sees; ``purged`` were taken out of sight before. ``duplicates`` are records
    with the id and content of an earlier record, ``conflicts`` those with its id and other content: both were stored
    after the window had forgotten the first. ``by`` counts records by a column (those without are under an empty name),
    ``hours`` by the hour in which they were stored. ``findings`` say what is not whole.
    """

    records: int
    ids: int
    duplicates: int
    conflicts: int
    first_position: int
    next_position: int
    bytes: int
    segments: int
    by: Mapping[str, Share]
    hours: Mapping[str, Share]
    sample: tuple[Repeat, ...]
    findings: tuple[Finding, ...]
    purged: int = 0

    @property
    def ok(self) -> bool:
        """Whether each id is there once, and all is whole."""
        return not self.duplicates and not self.conflicts and not self.findings


def audit(
    home: LogHome,
    manifests: Manifests,
    manifest: Manifest,
    clock: Clock,
    hands: Hands,
    *,
    by: By = "producer",
    progress: Progress | None = None,
) -> Audit:
    """Read everything that is closed; count, and look for ids that are there again and for what is missing.

    A file that is damaged is a finding, and its records are not counted. ``NotFound`` when something was sealed, merged
    or truncated meanwhile: look again by a newer manifest.
    """
    walk = Walk(home, manifests, manifest, clock, hands)
    found = find(walk, _Count(by), progress, tolerant=True)
    damage = [Finding("error", "records", what) for what in found.unreadable]
    some = list(concerned(walk, found.repeats.positions))
    again = [one for counts in walk.each(_CountSome(by), some) for one in counts]
    repeats = found.repeats
    return Audit(
        records=sum(one.records for one in found.seen),
        ids=sum(one.ids for one in found.seen),
        duplicates=int(repeats.same.sum()),
        conflicts=int((~repeats.same).sum()),
        first_position=manifest.first_position,
        next_position=manifest.next_position,
        bytes=size(walk.segments),
        segments=len(walk.segments),
        by=_kinds(found.seen, again),
        hours=_hours(found.seen, again),
        sample=tuple(
            Repeat(int(p), int(f), bool(s)) for p, f, s in zip(*(part[:SAMPLE] for part in repeats[:3]), strict=True)
        ),
        findings=(*gaps(walk.segments, manifest.first_position), *damage),
        purged=sum(one.purged for one in found.seen),
    )


def gaps(segments: list[Segment], first: int) -> list[Finding]:
    """Return where positions are missing between segments."""
    found = []
    position = first
    for segment in segments:
        if segment.first_position > position:
            what = f"positions {position} to {segment.first_position - 1} are missing"
            found.append(Finding("error", f"segment {segment.number}", what))
        position = segment.next_position
    return found


class AuditCounts(msgspec.Struct, frozen=True):
    """How many records there are in some rows, how many with an id, by kind, by hour, and how many were purged."""

    records: int
    ids: int
    kinds: dict[str, int]
    hours: dict[int, int]
    purged: int


class _Count(msgspec.Struct, frozen=True):
    """Counts rows, those that were purged apart."""

    by: By

    def __call__(self, rows: Rows) -> AuditCounts:
        gone = 0 if rows.purged is None else len(rows.purged.rows)
        return _counted(self.by, rows, rows.present() if gone else None, gone)


class _CountSome(msgspec.Struct, frozen=True):
    """The work of counting the records at some positions."""

    by: By

    def __call__(self, desk: JobContext, part: tuple[Unit, NDArray[np.int64]]) -> list[AuditCounts]:
        unit, wanted = part
        found = []
        for rows in desk.rows(unit, (self.by,)):
            low, high = np.searchsorted(wanted, (rows.first_position, rows.next_position))
            if low < high:
                chosen = np.zeros(rows.count, np.bool_)
                chosen[wanted[low:high] - rows.first_position] = True
                found.append(_counted(self.by, rows, chosen, 0))
        return found


def _counted(by: By, rows: Rows, chosen: NDArray[np.bool_] | None, purged: int) -> AuditCounts:
    """Count rows: all of them, or those that are chosen."""
    payload = rows.payload if chosen is None else rows.payload.filter(booleans(chosen))
    names = payload.schema.names
    count = payload.num_rows
    kinds = {"": count} if count else {}
    if by in names:
        kinds = {one["values"]: one["counts"] for one in payload.column(by).fill_null("").value_counts().to_pylist()}
    return AuditCounts(
        records=count,
        ids=count - payload.column("id").null_count if "id" in names else 0,
        kinds=kinds,
        hours=_by_hour(rows, chosen, count),
        purged=purged,
    )


def _by_hour(rows: Rows, chosen: NDArray[np.bool_] | None, count: int) -> dict[int, int]:
    if isinstance(rows.timestamp_us, int):
        return {rows.timestamp_us // _HOUR_US: count} if count else {}
    hours = (rows.timestamp_us if chosen is None else rows.timestamp_us[chosen]) // _HOUR_US
    found, counts = np.unique(hours, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _kinds(seen: Iterable[AuditCounts], again: Iterable[AuditCounts]) -> dict[str, Share]:
    """Return records and repeats by kind, most records first."""
    records, repeats = _summed(one.kinds for one in seen), _summed(one.kinds for one in again)
    return {kind: Share(count, repeats[kind]) for kind, count in records.most_common()}


def _hours(seen: Iterable[AuditCounts], again: Iterable[AuditCounts]) -> dict[str, Share]:
    """Return records and repeats by the hour in which they were stored."""
    records, repeats = _summed(one.hours for one in seen), _summed(one.hours for one in again)
    return {
        f"{moment(hour * _HOUR_US):%Y-%m-%dT%H:00Z}": Share(records[hour], repeats[hour]) for hour in sorted(records)
    }


def _summed(counts: Iterable[Mapping[_Key, int]]) -> Counter[_Key]:
    total: Counter[_Key] = Counter()
    for one in counts:
        total.update(one)
    return total
