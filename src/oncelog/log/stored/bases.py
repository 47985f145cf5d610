"""The state of producers and streams: folded from the base and the records behind it. A segment says which of these
labels its records carry, so a segment without them is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from oncelog.clock import Clock
from oncelog.dedup.producers import ProducerMark, Producers
from oncelog.errors import CorruptionError
from oncelog.format import base as base_format
from oncelog.format.base import Base
from oncelog.format.manifest import ANY_LABELS, PRODUCERS, Manifest, Segment
from oncelog.format.snapshot import Snapshot
from oncelog.log.stored.files import SealedFiles, rows_of
from oncelog.log.stored.manifests import Manifests
from oncelog.log.stored.object_keys import new_key
from oncelog.log.stored.rows import Rows, each
from oncelog.settings import ProducerPolicy, resolve
from oncelog.storage.base import LogHome

SUFFIX = ".base"


def load(home: LogHome, manifest: Manifest) -> Base:
    """Return what the manifest says was folded into the base; an empty one where nothing was.

    ``NotFound`` when it is gone, because there is a newer one: call this in ``Manifests.look``.
    """
    if manifest.base is None:
        return Base(log_id=manifest.log_id, position=0)
    found = base_format.decode(home.read(manifest.base), manifest.base)
    if found.log_id != manifest.log_id or found.position > manifest.first_position:
        message = f"{manifest.base} is the base of log {found.log_id} up to position {found.position}, not of this one"
        raise CorruptionError(message)
    return found


def labelled(
    home: LogHome, manifests: Manifests, manifest: Manifest, start: int, end: int, *, labels: int
) -> Iterator[Rows]:
    """Yield the records from ``start`` to before ``end`` of closed segments that may carry one of these labels."""
    files = SealedFiles(home)
    for segment in manifests.closed_from(manifest, start):
        if segment.first_position >= end:
            return
        if segment.labels & labels:
            for rows in rows_of(home, files, segment, start):
                yield rows.cut(0, end - rows.first_position)


def recover_producers(home: LogHome, manifests: Manifests, manifest: Manifest, taken: Snapshot | None) -> Producers:
    """Return how far every producer got, as base, snapshot and log say: all that is closed is folded in."""
    producers = begin_producers(home, manifest, taken)
    start = producers_since(manifest, taken)
    if manifest.labels & PRODUCERS:
        for rows in labelled(home, manifests, manifest, start, manifest.next_position, labels=PRODUCERS):
            fold_producers(producers, rows)
    return producers


def producers_since(manifest: Manifest, taken: Snapshot | None) -> int:
    """Return the position from which on records are to be folded into the producers that a snapshot has."""
    return max(manifest.first_position, taken.watermark if taken is not None else 0)


def segments_of_producers(manifests: Manifests, manifest: Manifest, start: int) -> list[Segment]:
    """Return the closed segments from a position on whose records may carry a producer, oldest first."""
    if not manifest.labels & PRODUCERS:
        return []
    return [segment for segment in manifests.closed_from(manifest, start) if segment.labels & PRODUCERS]


def begin_producers(home: LogHome, manifest: Manifest, taken: Snapshot | None) -> Producers:
    """Return the producers as the snapshot has them, or the base, whichever knows more of the log.

    A writer that knows its window may truncate past the newest snapshot: then only the base tells of what lay between.
    """
    base = load(home, manifest)
    return Producers(taken.producers if taken is not None and taken.watermark >= base.position else base.producers)


def tapped(parts: Iterator[Rows], producers: Producers) -> Iterator[Rows]:
    """Yield records as they come, and take them in on the way."""
    for rows in parts:
        fold_producers(producers, rows)
        yield rows


def fold_producers(producers: Producers, rows: Rows) -> None:
    """Take stored records in."""
    if rows.count and "producer" in rows.payload.schema.names:
        producers.fold(rows.payload, rows.first_position, each(rows.uptime_us, rows.count))


def remembered(marks: dict[str, ProducerMark], manifest: Manifest) -> dict[str, ProducerMark]:
    """Return the marks without those of producers that a user has had forgotten since."""
    since = dict(manifest.forgotten)
    return {name: mark for name, mark in marks.items() if mark.last_position >= since.get(name, 0)}


class Remembering(NamedTuple):
    """Whom a base keeps: the producers that the next writer would, by the policy, and by when each was last active.

    ``active`` tells that as the writer, or its newest snapshot, knows it: a producer that sent what is known was active
    without leaving a record.
    """

    policy: ProducerPolicy
    active: Callable[[Manifest], Mapping[str, ProducerMark]]

    def kept(self, marks: Mapping[str, ProducerMark], manifest: Manifest) -> dict[str, ProducerMark]:
        """Return the marks of those who are not to be forgotten.

        Up-time only grows, and a later producer only evicts others. So a producer that is dropped here would also be
        forgotten by a writer that begins with this base.
        """
        known = self.active(manifest)
        policy = resolve(self.policy)
        assert policy.inactive_s is not None
        assert policy.max_producers is not None
        producers = Producers({name: _latest(mark, known.get(name)) for name, mark in marks.items()})
        producers.evict(
            manifest.uptime_us,
            inactive_us=int(policy.inactive_s * 1e6),
            max_producers=policy.max_producers,
            stored_position=manifest.next_position,
        )
        return remembered(producers.marks(), manifest)


def _latest(mark: ProducerMark, other: ProducerMark | None) -> ProducerMark:
    if other is None or other.active_us <= mark.active_us:
        return mark
    return msgspec.structs.replace(mark, active_us=other.active_us)


def write(
    home: LogHome, manifests: Manifests, manifest: Manifest, clock: Clock, target: int, *, remembering: Remembering
) -> str | None:
    """Store the base that truncation to ``target`` needs; return its key (that of the one before if that will do)."""
    if not manifest.labels & ANY_LABELS or not _is_labelled(manifests, manifest, target):
        return manifest.base
    before = load(home, manifest)
    producers, streams = Producers(before.producers), dict(before.streams)
    for rows in labelled(home, manifests, manifest, manifest.first_position, target, labels=ANY_LABELS):
        fold_producers(producers, rows)
        fold_streams(streams, rows.payload)
    folded = producers.marks()
    marks = remembering.kept(folded, manifest)
    if folded == before.producers and (marks, streams) == (before.producers, before.streams):
        return manifest.base
    after = Base(log_id=manifest.log_id, position=target, producers=marks, streams=streams)
    key = new_key(clock, manifest.staging_floor_us).removesuffix(".parquet") + SUFFIX
    home.create(key, [base_format.encode(after)])
    return key


def _is_labelled(manifests: Manifests, manifest: Manifest, target: int) -> bool:
    for segment in manifests.closed_from(manifest, manifest.first_position):
        if segment.first_position >= target:
            return False
        if segment.labels & ANY_LABELS:
            return True
    return False


def fold_streams(streams: dict[str, int], payload: pa.RecordBatch) -> None:
    """Count the events of each stream, in the order of first events."""
    at = payload.schema.get_field_index("stream")
    if at < 0:
        return
    encoded = payload.column(at).dictionary_encode()
    codes = np.asarray(encoded.indices.drop_null())
    counts = np.bincount(codes, minlength=len(encoded.dictionary))
    for name, count in zip(encoded.dictionary.to_pylist(), counts.tolist(), strict=True):
        streams[name] = streams.get(name, 0) + count


def forget(manifest: Manifest, name: str, position: int) -> Manifest:
    """Return the manifest with a producer forgotten: what it stored before a position no longer counts."""
    if (name, position) in manifest.forgotten:
        return manifest
    others: Sequence[tuple[str, int]] = [item for item in manifest.forgotten if item[0] != name]
    return msgspec.structs.replace(manifest, forgotten=(*others, (name, position)))
