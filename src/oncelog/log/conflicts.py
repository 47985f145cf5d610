"""``conflicts.<log>``: rows that were put aside because their id is taken by other content, read as a log.

They are kept in the home of the log they were meant for, and the manifest version that adopted their batch refers to
them: so every row is in exactly one of the two. Nobody writes this log but who ingests into that one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog.errors import CorruptionError, NotFound, Unsupported
from oncelog.format.identities import Identities
from oncelog.format.manifest import Manifest
from oncelog.log.adoption import read_identities, search_exact
from oncelog.log.manifests import Change, Known, Manifests
from oncelog.log.names import CONFLICTS
from oncelog.storage.base import LogHome


class ConflictManifests(Manifests):
    """The manifests of a log as those of its conflicts: nothing else of it is seen, and nothing can be changed."""

    def newest(self, known: Known | None = None) -> Known | None:
        """Return the newest manifest there is, as one of the conflicts alone."""
        found = super().newest(known)
        return found if found is None or found is known else Known(found.version, view(found.manifest), found.nonce)

    def update(self, change: Change, known: Known | None = None) -> Known:  # noqa: ARG002
        """Refuse."""
        message = "a log of conflicts is written by whoever ingests batches, and by nobody else: read it"
        raise Unsupported(message)


def view(manifest: Manifest) -> Manifest:
    """Return the manifest that a log's conflicts would have if they were a log of their own."""
    segments, pages = manifest.conflicts, manifest.conflict_pages
    return msgspec.structs.replace(
        manifest,
        name=CONFLICTS + manifest.name,
        settings=msgspec.structs.replace(manifest.settings, idempotence="off", retention_s=None, retention_bytes=None),
        writer_window=None,
        window_since=segments[-1].next_position if segments else 0,
        open_segment=None,
        next_segment=segments[-1].number + 1 if segments else 0,
        first_position=0,
        next_position=segments[-1].next_position if segments else 0,
        last_timestamp_us=segments[-1].last_timestamp_us if segments else 0,
        segments=segments,
        pages=pages,
        doomed=(),
        marks=(),
        conflicts=(),
        conflict_pages=(),
        truncating=0,
    )


def recent(home: LogHome, manifests: Manifests, manifest: Manifest) -> list[Identities]:
    """Return the identities of conflicts that are within the window's duration."""
    duration_us = int(manifest.settings.window.duration_s * 1e6)
    found = []
    for segment in manifests.closed_back(view(manifest)):
        if segment.last_uptime_us + duration_us <= manifest.uptime_us:
            break
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
