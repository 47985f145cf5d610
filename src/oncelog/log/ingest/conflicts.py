"""``conflicts.<log>``: rows that were put aside because their id is taken by other content, read as a log.

They are kept in the home of the log they were meant for, and the manifest version that adopted their batch refers to
them: so every row is in exactly one of the two. Only an ingest into that log writes to this one. Its upkeep is
that of any log: small files are put together, and what is old goes, by whole files, as that log's retention says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog.clock import Clock
from oncelog.errors import CorruptionError, NotFound, Unsupported
from oncelog.format.identities import Identities
from oncelog.format.manifest import Manifest, Segment
from oncelog.log.ingest.staging import search_exact
from oncelog.log.stored.manifests import Change, Known, Manifests
from oncelog.log.stored.staged import read_identities
from oncelog.log.upkeep import retention, sealing
from oncelog.log.upkeep.retention import Truncation
from oncelog.names import CONFLICTS
from oncelog.settings import DURATION_S
from oncelog.storage.base import LogHome


class ConflictManifests(Manifests):
    """The manifests of a log as those of its conflicts: nothing else of it is seen, and nothing else can be changed."""

    def __init__(self, home: LogHome, clock: Clock) -> None:
        super().__init__(home, clock)
        self._whole = Manifests(home, clock)

    @property
    def whole(self) -> Manifests:
        """The manifests of the log that the conflicts are with."""
        return self._whole

    def newest(self, known: Known | None = None) -> Known | None:
        """Return the newest manifest there is, as one of the conflicts alone."""
        found = super().newest(known)
        return found if found is None or found is known else _seen(found)

    def update(self, change: Change, known: Known | None = None) -> Known:
        """Replace the entries of files, as sealing does. ``Unsupported`` for any other change."""
        current = self.newest(known)
        log_id = current.manifest.log_id if current is not None else None

        def changed(manifest: Manifest) -> Manifest:
            if manifest.log_id != log_id:
                message = "the log that these conflicts are with was deleted, and made again"
                raise NotFound(message)
            return _with(manifest, change(view(manifest)))

        return _seen(self._whole.update(changed))


def unwritable() -> Unsupported:
    """Return the error for who wants to write a log of conflicts."""
    return Unsupported("a log of conflicts is written only by a writer that ingests batches: read it")


def _seen(known: Known) -> Known:
    return Known(known.version, view(known.manifest), known.nonce)


def _with(manifest: Manifest, wanted: Manifest) -> Manifest:
    """Return a log's manifest with its conflicts as they are wanted."""
    seen = view(manifest)
    kept = msgspec.structs.replace(wanted, segments=seen.segments, pages=seen.pages, doomed=seen.doomed)
    if kept != seen:
        raise unwritable()
    if wanted == seen:
        return manifest
    return msgspec.structs.replace(
        manifest, conflicts=wanted.segments, conflict_pages=wanted.pages, doomed=wanted.doomed
    )


def view(manifest: Manifest) -> Manifest:
    """Return the manifest that a log's conflicts would have if they were a log of their own."""
    segments, pages = manifest.conflicts, manifest.conflict_pages
    first = next((part.first_position for parts in (pages, segments) for part in parts), 0)
    return msgspec.structs.replace(
        manifest,
        name=CONFLICTS + manifest.name,
        settings=msgspec.structs.replace(manifest.settings, idempotence="off", retention_s=None, retention_bytes=None),
        writer_window=None,
        window_since=segments[-1].next_position if segments else 0,
        open_segment=None,
        next_segment=segments[-1].number + 1 if segments else 0,
        first_position=first,
        next_position=segments[-1].next_position if segments else 0,
        last_timestamp_us=segments[-1].last_timestamp_us if segments else 0,
        segments=segments,
        pages=pages,
        base=None,
        marks=(),
        conflicts=(),
        conflict_pages=(),
        truncating=0,
    )


def tidy(home: LogHome, clock: Clock, segment_bytes: int) -> None:
    """Put small neighbours among a log's conflicts together."""
    aside = ConflictManifests(home, clock)
    known = aside.newest()
    if known is not None and len(known.manifest.segments) > 1:
        for _ in sealing.seal_worthwhile(home, aside, clock, known, segment_bytes):
            continue


def retain(home: LogHome, manifests: Manifests, clock: Clock) -> Truncation:
    """Remove those of a log's conflicts that its retention settings do not want kept."""
    known = manifests.newest()
    assert known is not None
    settings = known.manifest.settings
    _, before = manifests.look(
        known,
        lambda manifest: retention.wanted(
            manifests, msgspec.structs.replace(view(manifest), settings=settings), clock.now_us()
        ),
    )
    return truncate(home, manifests, before)


def truncate(home: LogHome, manifests: Manifests, before: int) -> Truncation:
    """Remove conflicts before a position by whole files, or by whole pages of files where there are hundreds.

    The newest stays, from which the next is numbered, and so do those that the window tells from ones that come again.
    """
    known = manifests.update(lambda manifest: _without(manifests, manifest, before))
    sealing.collect(home, manifests)
    first = view(known.manifest).first_position
    return Truncation(first_position=first, held_by=None if first >= before else _held_by(manifests, known, before))


def _held_by(manifests: Manifests, known: Known, before: int) -> Literal["window", "open segment"]:
    _, kept = manifests.look(known, lambda manifest: _window_from(manifests, manifest))
    return "window" if kept is not None and kept < before else "open segment"


def _without(manifests: Manifests, manifest: Manifest, before: int) -> Manifest:
    """Return a log's manifest without its conflicts before a position, as far as that can be."""
    seen = view(manifest)
    kept = _window_from(manifests, manifest)
    cut = before if kept is None else min(before, kept)
    pages = tuple(page for page in seen.pages if page.next_position > cut)
    segments = tuple(segment for segment in seen.segments if pages or segment.next_position > cut) or seen.segments[-1:]
    left = view(msgspec.structs.replace(manifest, conflict_pages=pages, conflicts=segments))
    if left.first_position == seen.first_position:
        return manifest
    gone = []
    for segment in manifests.closed_from(seen, seen.first_position):
        if segment.first_position >= left.first_position:
            break
        gone.append(segment)
    still = next(manifests.closed_from(left, left.first_position))
    dropped = [page.key for page in seen.pages if page not in pages]
    doomed = (*manifest.doomed, *dict.fromkeys([*_files(gone, still), *dropped]))
    return msgspec.structs.replace(manifest, conflict_pages=pages, conflicts=segments, doomed=doomed)


def _files(gone: Sequence[Segment], still: Segment) -> list[str]:
    """Return the objects of segments, but for a file that the first one that is kept shares."""
    assert still.file is not None
    keys = [segment.file.key for segment in gone if segment.file is not None and segment.file.key != still.file.key]
    return keys + [segment.identities for segment in gone if segment.identities is not None]


def _window_from(manifests: Manifests, manifest: Manifest) -> int | None:
    """Return the position of the oldest conflict that truncation must leave, if there is one."""
    window = manifest.settings.window
    duration_us = int(DURATION_S * 1e6) if window.unbounded else window.duration_us
    first = None
    for segment in _within(manifests, manifest, duration_us):
        first = segment.first_position
    return first


def _within(manifests: Manifests, manifest: Manifest, duration_us: int) -> Iterator[Segment]:
    """Yield the segments of conflicts that are not older than this, newest first."""
    for segment in manifests.closed_back(view(manifest)):
        if segment.last_uptime_us + duration_us <= manifest.uptime_us:
            return
        yield segment


def recent(home: LogHome, manifests: Manifests, manifest: Manifest) -> list[Identities]:
    """Return the identities of conflicts that are within the window's duration."""
    found = []
    for segment in _within(manifests, manifest, manifest.settings.window.duration_us):
        if segment.identities is not None:
            try:
                found.append(read_identities(home, segment.identities))
            except (CorruptionError, NotFound):
                continue  # at worst a row is put aside twice
    return found


def holds(before: Sequence[Identities], found: Identities) -> NDArray[np.bool_]:
    """Tell which identities are among those before, with the very same content."""
    known = np.zeros(len(found.high), np.bool_)
    for identities in before:
        known |= search_exact(identities, found)
    return known


def once(found: Identities, flags: NDArray[np.bool_]) -> Identities:
    """Return the flagged identities: of those that are the same, with the very same content, the first."""
    chosen = np.flatnonzero(flags)
    said = np.stack([found.high[chosen], found.low[chosen], found.fingerprints[chosen]], axis=1)
    chosen = chosen[np.sort(np.unique(said, axis=0, return_index=True)[1])]
    return Identities(found.high[chosen], found.low[chosen], found.fingerprints[chosen], found.rows[chosen])
