"""Building: ids that are in memory become a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from oncelog.dedup.runs.builder import PartBytes, build_part
from oncelog.dedup.runs.entries import Entries
from oncelog.dedup.window import WindowState
from oncelog.errors import OncelogError
from oncelog.format.output import column
from oncelog.format.runs import times as times_format
from oncelog.format.runs.pages import END
from oncelog.format.runs.run import Digest, Run, RunPart, TimesPart, part_bounds
from oncelog.format.runs.times import Commits
from oncelog.storage.base import Chunk, LogHome

PART_IDS = 4_000_000
"""The most ids of a part, about: what is made in memory before it is stored, at 32 bytes an id."""

TIMES_COMMITS = 4_000_000
"""The most commits of one object with timestamps."""


class RunStore:
    """Stores the objects of one new run, one after the other. Where one fails, all are deleted, as far as that goes.

    Nothing refers to them yet: what stays behind is swept like a sealed file that nothing refers to.
    """

    def __init__(self, home: LogHome, log_id: str, key: str) -> None:
        self.digest = Digest()
        self._home = home
        self._log_id = log_id
        self._key = key
        self._created: list[str] = []
        self._parts: list[RunPart] = []
        self._times: list[TimesPart] = []

    def add_part(self, told: RunPart, digest: Digest, data: PartBytes) -> None:
        """Store the next part."""
        self._create(f"{self._key}.{len(self._parts)}.ids", data)
        self._parts.append(told)
        self.digest += digest

    def add_times(self, commits: Iterable[Commits]) -> None:
        """Store the timestamps of commits, in order, in as many objects as they need."""
        for some in _in_objects(commits):
            told, data = times_format.encode(self._log_id, some)
            self._create(f"{self._key}.{len(self._times)}.times", data)
            self._times.append(told)

    def _create(self, key: str, data: Iterable[Chunk]) -> None:
        self._created.append(key)  # first: an answer that is lost leaves an object all the same
        self._home.create(key, list(data))

    def finish(self, first_position: int, next_position: int) -> Run:
        """Return the run."""
        return Run(
            key=self._key,
            parts=tuple(self._parts),
            first_position=first_position,
            next_position=next_position,
            ids=sum(part.ids for part in self._parts),
            size_bytes=sum(part.size_bytes for part in self._parts) + sum(times.size_bytes for times in self._times),
            digest=self.digest,
            times=tuple(self._times),
        )

    def abandon(self) -> None:
        """Delete what was stored."""
        delete_quietly(self._home, self._created)


def store_run(  # noqa: PLR0917
    home: LogHome,
    log_id: str,
    key: str,
    entries: Entries,
    first_position: int,
    next_position: int,
    commits: Commits | None = None,
) -> Run:
    """Store entries, in any order, as a run of a range; their positions and those of commits are relative to its first.

    ``key`` is one that nobody else uses. Nothing refers to the run before a manifest names it.
    """
    store = RunStore(home, log_id, key)
    bits = part_bits(len(entries))
    try:
        ordered = entries if entries.are_sorted() else entries.sorted()
        cuts = [0, *np.searchsorted(ordered.high, part_bounds(bits)).tolist(), len(ordered)]
        for part, (start, end) in enumerate(itertools.pairwise(cuts)):
            store.add_part(*build_part(log_id, part, bits, ordered[start:end]))
        store.add_times([] if commits is None else [commits])
        return store.finish(first_position, next_position)
    except OncelogError:
        store.abandon()
        raise


def entries_of(ids: WindowState, first_position: int) -> Entries:
    """Return ids, in the order of their positions and complete, as the entries of a run that begins at a position.

    A record with an id is alone in its batch, or all others in the batch have one too. So the last of a batch is the
    one before the next that begins one.
    """
    ends = np.ones(len(ids.starts), np.bool_)
    ends[:-1] = ids.starts[1:]
    return Entries.of(ids.keys, ids.fingerprints, ids.positions - first_position, ids.starts, ends)


def gathered(pieces: Iterable[WindowState], first_position: int, count: int) -> tuple[Entries, Commits]:
    """Return the entries and commits of ids that come in pieces, one behind the other, ``count`` at most in all.

    The pieces are small, and what they are put together in is memory that is used again. The system clears each page
    that it gives out, and stops all threads for a moment for each that it takes back.
    """
    columns, end = [column(count) for _ in range(4)], 0
    commits = [Commits.none()]
    for ids in pieces:
        start, end = end, end + len(ids.positions)
        if start == end:
            continue
        for whole, some in zip(columns, entries_of(ids, first_position).columns, strict=True):
            whole[start:end] = some
        if start and not ids.starts[0]:
            columns[-1][start - 1] &= ~np.uint64(END)  # its batch goes on
        commits.append(commits_of(ids, first_position))
    positions = np.concatenate([some.positions for some in commits])
    times = np.concatenate([some.timestamps_us for some in commits])
    changes = np.diff(times, prepend=times[:1] - 1) != 0
    return Entries(*(whole[:end] for whole in columns)), Commits(positions[changes], times[changes])


def commits_of(ids: WindowState, first_position: int) -> Commits:
    """Return when ids were committed: one entry for each change of the time."""
    if not len(ids.times):
        return Commits.none()
    changes = np.concatenate([[True], np.diff(ids.times) != 0])
    return Commits(ids.positions[changes] - first_position, ids.times[changes])


def part_bits(ids: int) -> int:
    """Return how many leading bits of a key tell the part, in a run of so many ids.

    >>> [part_bits(count) for count in (0, 4_000_000, 4_000_001, 100_000_000)]
    [0, 0, 1, 5]
    """
    return (max(1, -(-ids // PART_IDS)) - 1).bit_length()


def _in_objects(pieces: Iterable[Commits]) -> Iterator[Commits]:
    """Yield commits in as many pieces as there are to be objects."""
    held: list[Commits] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        while count >= TIMES_COMMITS:
            joined = _joined(held)
            yield joined[:TIMES_COMMITS]
            held = [joined[TIMES_COMMITS:]]
            count = len(held[0])
    if count:
        yield _joined(held)


def _joined(pieces: list[Commits]) -> Commits:
    return Commits(
        np.concatenate([piece.positions for piece in pieces]), np.concatenate([piece.timestamps_us for piece in pieces])
    )


def delete_run(home: LogHome, run: Run) -> None:
    """Delete the objects of a run that nothing refers to, or leave them to the next sweep."""
    delete_quietly(home, run.keys())


def delete_quietly(home: LogHome, keys: Iterable[str]) -> None:
    """Delete objects; what cannot be deleted now is swept later."""
    for key in keys:
        try:
            home.delete(key)
        except OncelogError:
            continue
