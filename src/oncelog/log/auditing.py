"""Auditing a log: how many records, which ids are there more than once, whether all is whole, by kind and by time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog.errors import CorruptionError, Unsupported
from oncelog.format.manifest import Manifest, Segment
from oncelog.log.judging import Finding
from oncelog.log.manifests import Manifests
from oncelog.log.repeats import Progress, Repeats, Walk, find
from oncelog.log.rows import Rows
from oncelog.log.sealing import size
from oncelog.storage.base import LogHome
from oncelog.types import moment

By = Literal["producer", "type", "stream", "tenant"]
SAMPLE = 20
_HOUR_US = 3600 * 1_000_000


class Share(msgspec.Struct, frozen=True):
    """What there is of one kind, or in one hour: records, and of them those that were there before."""

    records: int
    repeats: int


class Repeat(msgspec.Struct, frozen=True):
    """A record whose id was there before: where, and whether with the same content."""

    position: int
    first: int
    same: bool


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit found in the closed segments of a log.

    ``duplicates`` are records whose id and content were there before, ``conflicts`` those whose id was there with other
    content: both came in when the window had forgotten the first. ``by`` counts records by a column (those without are
    under an empty name), ``hours`` by the hour in which they were stored. ``findings`` say what is not whole.
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

    @property
    def ok(self) -> bool:
        """Whether each id is there once, and all is whole."""
        return not self.duplicates and not self.conflicts and not self.findings


def audit(
    home: LogHome, manifests: Manifests, manifest: Manifest, by: By = "producer", progress: Progress | None = None
) -> Audit:
    """Read everything that is closed; count, and look for ids that are there again and for what is missing.

    ``NotFound`` when something was sealed, merged or truncated meanwhile: look again by a newer manifest.
    """
    walk = Walk(home, manifests, manifest)
    findings = gaps(walk.segments, manifest.first_position)
    tally = _Tally(by)
    try:
        repeats = find(walk, tally.add, progress)
    except (CorruptionError, Unsupported) as error:
        nothing = np.empty(0, np.int64)
        repeats = Repeats(nothing, nothing, np.empty(0, np.bool_))
        findings.append(Finding("error", "records", str(error)))
    return Audit(
        records=tally.records,
        ids=tally.ids,
        duplicates=int(repeats.same.sum()),
        conflicts=int((~repeats.same).sum()),
        first_position=manifest.first_position,
        next_position=manifest.next_position,
        bytes=size(walk.segments),
        segments=len(walk.segments),
        by=tally.kinds(repeats.positions),
        hours=tally.hours(repeats.positions),
        sample=tuple(
            Repeat(int(p), int(f), bool(s)) for p, f, s in zip(*(part[:SAMPLE] for part in repeats), strict=True)
        ),
        findings=tuple(findings),
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


class _Tally:
    """Counts records as they come by, from several threads; remembers of which kind and hour each run of them is."""

    def __init__(self, by: By) -> None:
        self._by = by
        self._lock = threading.Lock()
        self.records = self.ids = 0
        self._kinds: Counter[str] = Counter()
        self._hours: Counter[int] = Counter()
        self._codes: list[tuple[int, int, list[str], NDArray[np.int32]]] = []
        self._times: list[tuple[int, int, NDArray[np.int64] | int]] = []

    def add(self, rows: Rows) -> None:
        """Count records."""
        names, codes = self._column(rows)
        counts = np.bincount(codes, minlength=len(names)) if len(names) > 1 else np.array([rows.count])
        hours = rows.timestamp_us // _HOUR_US
        found, at = (
            (np.array([hours]), np.array([rows.count]))
            if isinstance(hours, int)
            else np.unique(hours, return_counts=True)
        )
        ids = rows.count - rows.payload.column("id").null_count if "id" in rows.payload.schema.names else 0
        if len(found) == 1:
            hours = int(found[0])
        with self._lock:
            self.records += rows.count
            self.ids += ids
            self._kinds.update(dict(zip(names, counts.tolist(), strict=True)))
            self._hours.update(dict(zip(found.tolist(), at.tolist(), strict=True)))
            self._codes.append((rows.first_position, rows.next_position, names, codes))
            self._times.append((rows.first_position, rows.next_position, hours))

    def _column(self, rows: Rows) -> tuple[list[str], NDArray[np.int32]]:
        """Return the kinds there are among rows, and which each is; none for rows that are all of one kind."""
        if self._by not in rows.payload.schema.names:
            return [""], np.empty(0, np.int32)
        encoded = rows.payload.column(self._by).fill_null("").dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32)

    def kinds(self, repeats: NDArray[np.int64]) -> dict[str, Share]:
        """Return records and repeats by kind, most records first."""
        again: Counter[str] = Counter()
        for first, end, names, codes in self._codes:
            mine = _within(repeats, first, end) - first
            if len(mine):
                counts = np.bincount(codes[mine], minlength=len(names)) if len(names) > 1 else [len(mine)]
                again.update({name: int(count) for name, count in zip(names, counts, strict=True)})
        return {kind: Share(count, again[kind]) for kind, count in self._kinds.most_common()}

    def hours(self, repeats: NDArray[np.int64]) -> dict[str, Share]:
        """Return records and repeats by the hour in which they were stored."""
        again: Counter[int] = Counter()
        for first, end, hours in self._times:
            mine = _within(repeats, first, end) - first
            if len(mine):
                again.update([hours] * len(mine) if isinstance(hours, int) else hours[mine].tolist())
        return {
            f"{moment(hour * _HOUR_US):%Y-%m-%dT%H:00Z}": Share(self._hours[hour], again[hour])
            for hour in sorted(self._hours)
        }


def _within(positions: NDArray[np.int64], first: int, end: int) -> NDArray[np.int64]:
    low, high = np.searchsorted(positions, (first, end))
    return positions[low:high]
