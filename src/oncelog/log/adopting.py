"""Adopting staged files, as the log's writer and with nothing pending."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oncelog.errors import InvalidArgument, NotFound, PartialOverlap, Unavailable
from oncelog.format.identities import Identities
from oncelog.log import adoption
from oncelog.log.admission import Seen
from oncelog.log.adoption import Staged
from oncelog.log.committer import Committer
from oncelog.log.run import Run
from oncelog.log.uptime import Uptime
from oncelog.storage.base import LogHome


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
        adoption.check(staged)
        identities = self._identities(staged)
        with self._committer.changed:
            self._committer.check()
            self._committer.drain(deadline_us)
            self._committer.check_open()
            known = sum(int(np.count_nonzero(flags)) for flags in self._known(identities))
            if known:
                message = f"{known} of the records to be adopted are there already, or twice: nothing was adopted"
                raise PartialOverlap(message, known=(), new=())
            self._check_adoptable(staged)
            try:
                segments = self._run.adopt(staged, self._uptime.now_us())
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
        return [segment.first_position for segment in segments]

    def _check_adoptable(self, staged: Sequence[Staged]) -> None:
        """Raise for a file that is not there, or is in the log: once adopted, it could not be read, or be lost."""
        taken = self._run.holds(staged)
        if taken is not None:
            message = f"{taken}: was adopted before, and a staged file can be adopted once: nothing was adopted"
            raise InvalidArgument(message)
        missing = next((file.key for file in staged if not self._home.exists(file.key)), None)
        if missing is not None:
            message = f"{missing} is not there: stage its records again"
            raise NotFound(message)

    def overlap(self, staged: Sequence[Staged]) -> list[NDArray[np.int64]]:
        """Return, for each file, the rows whose identity is in the log, or comes before them."""
        adoption.check(staged)
        identities = self._identities(staged)
        with self._committer.changed:
            flags = self._known(identities)
        return [
            np.sort(found.rows[known].astype(np.int64)) if found is not None else np.empty(0, np.int64)
            for found, known in zip(identities, flags, strict=True)
        ]

    def _identities(self, staged: Sequence[Staged]) -> list[Identities | None]:
        return [
            adoption.read_identities(self._home, file.identities) if file.identities is not None else None
            for file in staged
        ]

    def _known(self, identities: Sequence[Identities | None]) -> list[NDArray[np.bool_]]:
        """Return, for each file, which of its identities are known, or occur before."""
        window, adopted = self._seen
        self._seen.evict(self._uptime.now_us())
        flags = []
        for number, found in enumerate(identities):
            if found is None or window is None:
                flags.append(np.zeros(0 if found is None else len(found.high), np.bool_))
                continue
            keys = found.keys
            known = window.find(keys) >= 0
            if adopted:
                known |= adopted.find(keys).positions >= 0
            known[1:] |= (keys[1:] == keys[:-1]).all(axis=1)
            for earlier in identities[:number]:
                if earlier is not None:
                    known |= adoption.search(earlier, keys) >= 0
            flags.append(known)
        return flags
