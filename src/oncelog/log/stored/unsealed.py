"""Which segments of a log are not sealed: the records of all others are in files, and need no blocks."""

from __future__ import annotations

from functools import partial

from oncelog.clock import Clock
from oncelog.format.manifest import Manifest
from oncelog.log.stored.manifests import Manifests
from oncelog.storage.base import LogHome, Unsealed


def unsealed(home: LogHome, clock: Clock) -> Unsealed:
    """Return which segments of a log are not sealed; all of them, if the log has no manifest."""
    manifests = Manifests(home, clock)
    known = manifests.newest()
    if known is None:
        return Unsealed()
    return manifests.look(known, partial(_unsealed, manifests))[1]


def _unsealed(manifests: Manifests, manifest: Manifest) -> Unsealed:
    closed = manifests.closed_from(manifest, manifest.first_position)
    return Unsealed(
        closed={segment.number: segment.end for segment in closed if segment.file is None},
        first_open=manifest.next_segment if manifest.open_segment is None else manifest.open_segment,
    )
