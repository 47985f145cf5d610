"""Adopting staged files, as the log's writer and with nothing pending."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oncelog.errors import InvalidArgument, NotFound, PartialOverlap, Unavailable
from oncelog.format.identities import Identities
from oncelog.format.manifest import Segment
from oncelog.log.append.committer import Committer
from oncelog.log.append.decisions import Seen
from oncelog.log.append.open_segment import Run
from oncelog.log.append.uptime import Uptime
from oncelog.log.ingest import staging
from oncelog.log.ingest.staging import Adoption, Staged
from oncelog.storage.base import LogHome

Flags = NDArray[np.bool_]
FILES_AT_ONCE = 8
"""In a bucket, what is asked of a file is waiting for the most part, and a whole cluster waits with it."""


class Judged(NamedTuple):
    """Staged files and what the log says of them: for each file its identities, which of them are known (or come
    earlier), and which of those have other content. It holds as long as the log ends at ``position``.
    """

    staged: tuple[Staged, ...]
    identities: list[Identities | None]
    known: list[Flags]
    conflicts: list[Flags]
    position: int

    def rows(self, number: int, flags: Sequence[Flags]) -> NDArray[np.int64]:
        """Return the rows of a file whose identities are flagged, sorted."""
        found = self.identities[number]
        return np.empty(0, np.int64) if found is None else np.sort(found.rows[flags[number]].astype(np.int64))


class Adopter:
    """Adopts for one writer: looks identities up, then makes files a part of the log, all under the committer's
    lock.
    """

    def __init__(self, *, home: LogHome, run: Run, committer: Committer, seen: Seen, uptime: Uptime) -> None:
        self._home = home
        self._run = run
        self._committer = committer
        self._seen = seen
        self._uptime = uptime

    def adopt(self, staged: Sequence[Staged], deadline_us: int | None) -> list[int]:
        """Adopt files whose identities are all new, by one manifest version; return the first position of each."""
        if not staged:
            message = "there is nothing to adopt"
            raise InvalidArgument(message)
        staging.check(staged)
        identities = self._identities(staged)
        with self._committer.changed:
            self._drain(deadline_us)
            known, _ = self._known(identities)
            count = sum(int(np.count_nonzero(flags)) for flags in known)
            if count:
                message = f"{count} of the records to be adopted are there already, or twice: nothing was adopted"
                raise PartialOverlap(message, known=(), new=())
            segments = self._commit(Adoption(staged=tuple(staged)), identities)
        return [segment.first_position for segment in segments]

    def _identities(self, staged: Sequence[Staged]) -> list[Identities | None]:
        def read(file: Staged) -> Identities | None:
            try:
                return None if file.identities is None else staging.read_identities(self._home, file.identities)
            except NotFound as error:
                raise _gone(file.key) from error

        return staging.at_once(read, staged, FILES_AT_ONCE, FILES_AT_ONCE)

    def _drain(self, deadline_us: int | None) -> None:
        """Return when nothing is pending. The committer's lock is held."""
        self._committer.check_open()
        self._committer.drain(deadline_us)
        self._committer.check_open()

    def judge(self, staged: Sequence[Staged], deadline_us: int | None) -> Judged:
        """Look the identities of files up, with nothing pending."""
        staging.check(staged)
        identities = self._identities(staged)
        with self._committer.changed:
            self._drain(deadline_us)
            known, conflicts = self._known(identities)
            return Judged(tuple(staged), identities, known, conflicts, self._committer.next_position)

    def commit(
        self, position: int, wanted: Adoption, identities: Sequence[Identities | None], deadline_us: int | None
    ) -> list[Segment] | None:
        """Adopt if the log still ends at ``position``, where it was judged what to adopt; ``None`` if it does not."""
        with self._committer.changed:
            self._drain(deadline_us)
            return self._commit(wanted, identities) if self._committer.next_position == position else None

    def _commit(self, wanted: Adoption, identities: Sequence[Identities | None]) -> list[Segment]:
        """Adopt what was judged to be new. The committer's lock is held, nothing is pending."""
        self._check_adoptable((*wanted.staged, *wanted.conflicts))
        try:
            segments = self._run.adopt(wanted, self._uptime.now_us())
        except Unavailable as error:
            # Whether the open segment was closed is not known, so nothing may be written to it.
            unknown = Unavailable(f"an adoption was not answered: {error}", outcome="unknown")
            self._committer.stop(unknown)
            raise unknown from error
        self._committer.adopted(sum(segment.entries for segment in segments))
        for segment, found in zip(segments, identities, strict=True):
            if found is not None and self._seen.window is not None:
                self._seen.adopted.add(segment, found)
        self._home.wake()
        return segments

    def _check_adoptable(self, staged: Sequence[Staged]) -> None:
        """Raise for a file that is not there, or is in the log: once adopted, it could not be read, or be lost."""
        if not staged:
            return
        taken = self._run.holds(staged)
        if taken is not None:
            message = f"{taken}: was adopted before, and a staged file can be adopted once: nothing was adopted"
            raise InvalidArgument(message)
        there = staging.at_once(self._home.exists, [file.key for file in staged], FILES_AT_ONCE, FILES_AT_ONCE)
        if not all(there):
            raise _gone(staged[there.index(False)].key)

    def overlap(self, staged: Sequence[Staged], deadline_us: int | None) -> list[NDArray[np.int64]]:
        """Return, for each file, the rows whose identity is in the log, or comes before them."""
        judged = self.judge(staged, deadline_us)
        return [judged.rows(number, judged.known) for number in range(len(staged))]

    def _known(self, identities: Sequence[Identities | None]) -> tuple[list[Flags], list[Flags]]:
        """Return, for each file, which of its identities are known, or occur before, and which of those clash."""
        self._seen.evict(self._uptime.now_us())
        known = [np.zeros(0 if found is None else len(found.high), np.bool_) for found in identities]
        conflicts = [flags.copy() for flags in known]
        window, adopted = self._seen
        if window is None:
            return known, conflicts
        for number, found in enumerate(identities):
            if found is not None and (window.count or adopted):
                stored, fingerprints = self._stored(found.keys)
                known[number] |= stored
                conflicts[number] |= stored & (fingerprints != found.fingerprints)
        for number, place, fingerprint in staging.repeats(identities):
            found = identities[number]
            assert found is not None
            conflicts[number][place] |= ~known[number][place] & (found.fingerprints[place] != fingerprint)
            known[number][place] = True
        return known, conflicts

    def _stored(self, keys: NDArray[np.uint64]) -> tuple[Flags, NDArray[np.uint64]]:
        """Return which identities the log knows, and the fingerprints that it has for them."""
        window, adopted = self._seen
        assert window is not None
        known = np.zeros(len(keys), np.bool_)
        fingerprints = np.zeros(len(keys), np.uint64)
        if window.count:
            handles = window.find(keys)
            known = handles >= 0
            fingerprints[known] = window.fingerprints(handles[known])
        if adopted:
            elsewhere = adopted.find(keys)
            chosen = (elsewhere.positions >= 0) & ~known
            fingerprints[chosen] = elsewhere.fingerprints[chosen]
            known |= chosen
        return known, fingerprints


def _gone(key: str) -> NotFound:
    return NotFound(f"{key} is not there, perhaps because it was staged too long ago: stage its records again")
