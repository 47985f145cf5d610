"""Checking: a run is read whole, and every sum and rule that it must keep is tried."""

from __future__ import annotations

import numpy as np

from oncelog.dedup.runs.entries import Entries
from oncelog.errors import CorruptionError
from oncelog.format.runs.pages import PAGE_ENTRIES
from oncelog.format.runs.run import Digest, Run
from oncelog.log.memory.merging import pieces_of
from oncelog.log.memory.objects import OpenPart, RunObjects, may_have
from oncelog.log.memory.times import OpenTimes


def check_run(objects: RunObjects, run: Run, first_position: int = 0) -> Digest:
    """Return the digest of a run's entries from ``first_position`` on, with absolute positions.

    ``CorruptionError`` when a checksum does not hold, entries are out of order, a key does not pass its filter, an
    entry is outside the range, or the digest is not the one that the manifest names. Memory is that of a few pages.
    """
    total, kept = Digest(), Digest()
    for part in objects.open(run):
        digest = Digest()
        last = (0, 0, 0)
        part.check_filter()
        part.check_index()
        for first_page, entries in pieces_of(part):
            last = _check(part, run, entries, last, first_page)
            digest += entries.digest()
            kept += entries[entries.positions >= first_position - run.first_position].digest()
        if digest != part.head.digest:
            _refuse(part.key, "its entries do not add up to its digest")
        total += digest
    if total != run.digest or sum(part.ids for part in run.parts) != run.ids:
        _refuse(run.key, "its parts do not add up to what the manifest names")
    for times in OpenTimes.of(objects, run):
        for commits in times.commits():
            if (np.diff(commits.positions) <= 0).any() or commits.positions[-1] >= run.next_position:
                _refuse(run.key, "the positions of its commits are out of order")
    return kept.moved(run.first_position)


def _check(
    part: OpenPart, run: Run, entries: Entries, last: tuple[int, int, int], first_page: int
) -> tuple[int, int, int]:
    """Check some neighbouring entries, of which the first follows ``last``; return what follows the last of them."""
    first = int(entries.high[0]), int(entries.low[0]), _age(entries.places[0])
    if first < last or not entries.are_sorted():
        _refuse(part.key, "its entries are out of order")
    if int(entries.positions.max()) >= run.next_position - run.first_position:
        _refuse(part.key, "an entry is outside the range of the run")
    if not may_have([part], [len(entries)], entries.high, entries.low).all():
        _refuse(part.key, "a key does not pass the filter")
    if not np.array_equal(
        entries.high[::PAGE_ENTRIES], part.index[first_page : first_page + len(entries.high[::PAGE_ENTRIES])]
    ):
        _refuse(part.key, "its index does not fit its pages")
    return int(entries.high[-1]), int(entries.low[-1]), _age(entries.places[-1])


def _age(place: np.uint64) -> int:
    """Return a number that grows from newer to older entries."""
    return (1 << 64) - 1 - int(place)


def _refuse(what: str, why: str) -> None:
    message = f"{what}: {why}; `oncelog rebuild` makes the run again"
    raise CorruptionError(message)
