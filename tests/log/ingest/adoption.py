"""Adoption by hand, for tests: files that are new as a whole, without the marks and conflicts of ``Writer.ingest``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oncelog.errors import InvalidArgument, PartialOverlap
from oncelog.log.ingest import staging
from oncelog.log.stored.staged import Staged
from oncelog.log.takeover.adoption import Adoption
from oncelog.log.writer import Writer


def adopt(writer: Writer, staged: Sequence[Staged], deadline_us: int | None = None) -> list[int]:
    """Adopt files whose identities are all new, by one manifest version; return the first position of each."""
    adopter = writer._adopter
    if not staged:
        message = "there is nothing to adopt"
        raise InvalidArgument(message)
    staging.check(staged)
    while True:
        judged = adopter.judge(staged, deadline_us)
        count = sum(int(np.count_nonzero(flags)) for flags in judged.known)
        if count:
            message = f"{count} of the records to be adopted are there already, or twice: nothing was adopted"
            raise PartialOverlap(message, known=(), new=())
        segments = adopter.commit(judged, Adoption(staged=tuple(staged)), judged.identities, deadline_us)
        if segments is not None:
            return [segment.first_position for segment in segments]


def overlap(writer: Writer, staged: Sequence[Staged], deadline_us: int | None = None) -> list[NDArray[np.int64]]:
    """Return, for each file, the rows whose identity is in the log, or comes before them."""
    judged = writer._adopter.judge(staged, deadline_us)
    return [judged.rows(number, judged.known) for number in range(len(staged))]
