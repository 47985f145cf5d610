"""The answers to records that are stored: acks, or the errors of those that were refused."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oncelog.errors import OncelogError
from oncelog.log.append.admitted import RECALLED_US, Admitted, id_conflict, recalled_times
from oncelog.log.append.groups import Ticket
from oncelog.log.append.open_segment import SegmentRun
from oncelog.log.memory.recall import Recall
from oncelog.settings import LogSettings
from oncelog.types import Ack, moment


class Answers:
    """Makes the answers of one writer. No lock is needed: what is stored does not move."""

    def __init__(self, run: SegmentRun, recall: Recall, settings: LogSettings) -> None:
        self._run = run
        self._recall = recall
        self._refuses = settings.on_conflict == "error"

    def one(self, ticket: Ticket, id: str | None) -> Ack:
        """Return the ack for a record whose group, if it has one, is stored; or raise ``IdConflict``."""
        position, group, timestamp_us, duplicate, conflict, error = ticket
        if error is not None:
            raise error
        if position < 0:
            return Ack(None, None, None, None, duplicate=True)  # a sequence that is known, from long ago
        if conflict and self._refuses:
            raise id_conflict(id, position)
        if group is not None:
            place: tuple[int | None, int | None] = group.segment, group.first_entry + position - group.first_position
            timestamp_us = group.timestamp_us
        else:
            place = self._run.place_of(position)
            if timestamp_us == RECALLED_US:
                timestamp_us = self._recalled_time(position)
        return Ack(position, *place, moment(timestamp_us) if timestamp_us >= 0 else None, duplicate, conflict)

    def _recalled_time(self, position: int) -> int:
        """Return when a record that is known from a run was stored."""
        positions = np.array([position])
        places = self._run.places_of(positions)
        return int(recalled_times(places, positions, np.zeros(1, np.int64), self._recall.timestamps_of)[0])

    def rows(self, admitted: Admitted, rows: NDArray[np.int64] | None = None) -> list[Ack | OncelogError]:
        """Return the acks, or the errors, of rows that are stored or refused: all of them, or these."""
        return admitted.answers(self._run.places_of, self._recall.timestamps_of, refuse=self._refuses, rows=rows)
