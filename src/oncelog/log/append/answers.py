"""What was decided for the rows of a payload, and the answers that follow from it: acks, or errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.errors import IdConflict, OncelogError
from oncelog.log.append.groups import Group, Ticket
from oncelog.log.stored.segment_index import Places
from oncelog.settings import LogSettings
from oncelog.types import Ack, AckRun, moment

if TYPE_CHECKING:
    from oncelog.log.append.open_segment import SegmentRun
    from oncelog.log.memory.recall import Recall

PlacesOf: TypeAlias = Callable[[NDArray[np.int64]], Places]
"""Tells where stored positions are."""


TimesOf: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Tells when stored positions were stored, as the runs know it."""


RECALLED_US = -2
"""Instead of a time: the record is known from a run, and its time has to be asked for."""


class Admitted:
    """What was decided for each row of a payload.

    ``positions`` is where the row's record is or will be; ``new`` rows are to be written, ``duplicates`` were there (or
    come earlier in the same payload), ``conflicts`` are duplicates with other content. ``times`` is the original's time
    where it was stored before, ``handles`` are the window's for those; ``groups`` are what must be stored
    before this may be answered. ``refused`` are the errors of rows whose sequence is out of order, or of whose id
    nobody can tell, because a part of the memory is damaged.
    """

    def __init__(self, payload: pa.RecordBatch) -> None:
        count = payload.num_rows
        self.payload = payload
        self.positions: NDArray[np.int64] = np.empty(count, np.int64)
        self.new: NDArray[np.bool_] = np.ones(count, np.bool_)
        self.duplicates: NDArray[np.bool_] = np.zeros(count, np.bool_)
        self.conflicts: NDArray[np.bool_] = np.zeros(count, np.bool_)
        self.times: NDArray[np.int64] = np.full(count, -1, np.int64)
        self.handles: NDArray[np.int64] = np.empty(0, np.int64)
        self.groups: list[Group] = []
        self.refused: dict[int, OncelogError] = {}

    @classmethod
    def joined(cls, parts: Sequence[Admitted], payload: pa.RecordBatch) -> Admitted:
        """Return the decisions for the pieces of a payload as those for the whole."""
        if len(parts) == 1:
            return parts[0]
        whole = cls(payload.slice(0, 0))
        whole.payload = payload
        if parts:
            for name in ("positions", "new", "duplicates", "conflicts", "times"):
                setattr(whole, name, np.concatenate([getattr(part, name) for part in parts]))
        rows = 0
        for part in parts:
            whole.groups += [group for group in part.groups if group not in whole.groups]
            whole.refused |= {rows + row: error for row, error in part.refused.items()}
            rows += len(part.positions)
        return whole

    @property
    def newest(self) -> Group | None:
        """The group that is stored last of those that must be stored."""
        return max(self.groups, key=lambda group: group.first_position, default=None)

    def number(self, next_position: int) -> None:
        """Give the new rows their positions."""
        positions = np.arange(next_position, next_position + np.count_nonzero(self.new))
        if len(positions) == len(self.new):
            self.positions = positions
        else:
            self.positions[self.new] = positions

    def answers(
        self, places_of: PlacesOf, times_of: TimesOf, *, refuse: bool, rows: NDArray[np.int64] | None = None
    ) -> list[Ack | OncelogError]:
        """Return the acks of these rows (all, if none are named), which are stored; or the errors of the refused.

        ``refuse``: whether a conflict is an error.
        """
        if rows is None and (run := self.run()) is not None:
            return list(run)
        chosen = slice(None) if rows is None else rows
        positions, times = self.positions[chosen], self.times[chosen].copy()
        duplicates, conflicts = self.duplicates[chosen], self.conflicts[chosen]
        for group in self.groups:
            times[(positions >= group.first_position) & (positions < group.next_position)] = group.timestamp_us
        places = places_of(positions)
        segments, entries = places.segments, places.entries
        recalled = np.flatnonzero(times == RECALLED_US)
        if recalled.size:
            times[recalled] = recalled_times(places, positions, recalled, times_of)
        moments = {time_us: moment(time_us) if time_us >= 0 else None for time_us in set(times.tolist())}
        columns = positions.tolist(), segments.tolist(), entries.tolist(), map(moments.__getitem__, times.tolist())
        answers: list[Ack | OncelogError] = list(map(Ack, *columns, duplicates.tolist(), conflicts.tolist()))
        for row in np.flatnonzero(segments < 0).tolist():
            answers[row] = self._from_long_ago(cast("Ack", answers[row]))
        if refuse and conflicts.any():
            ids = self.ids()
            for row in np.flatnonzero(conflicts).tolist():
                answers[row] = id_conflict(ids[row if rows is None else rows[row]], int(positions[row]))
        for row, error in self.refused.items():
            at = row if rows is None else int(np.searchsorted(rows, row))
            if rows is None or (at < len(rows) and rows[at] == row):
                answers[at] = error
        return answers

    def run(self) -> AckRun | None:
        """Return the acks if all rows are new and in one group: they follow each other there. Else ``None``."""
        if len(self.groups) != 1 or self.refused or not self.new.all():
            return None
        group, first = self.groups[0], int(self.positions[0])
        entry = group.first_entry + first - group.first_position
        return AckRun(first, group.segment, entry, group.timestamp_us, len(self.positions))

    @staticmethod
    def _from_long_ago(ack: Ack) -> Ack:
        """Return the ack of a record whose segment is gone; a sequence may be known without its position."""
        if ack.position is None or ack.position < 0:
            return Ack(None, None, None, None, duplicate=True)
        return Ack(ack.position, None, None, ack.timestamp, ack.duplicate, ack.conflict)

    def ids(self) -> list[str | None]:
        """Return the rows' ids."""
        at = self.payload.schema.get_field_index("id")
        return self.payload.column(at).to_pylist() if at >= 0 else [None] * self.payload.num_rows


def recalled_times(
    places: Places, positions: NDArray[np.int64], rows: NDArray[np.int64], times_of: TimesOf
) -> NDArray[np.int64]:
    """Return when these of the positions were stored: as their segments say if all in one is of one time."""
    times = places.first_us[rows]
    asked = np.flatnonzero((times != places.last_us[rows]) | (times < 0))
    if asked.size:
        times[asked] = times_of(positions[rows[asked]])
    return times


def id_conflict(id: str | None, position: int) -> IdConflict:
    """Return the error for an id that is taken by other content."""
    message = (
        f"id {id!r} is taken by other content, stored at position {position}: "
        "give this record an id of its own, or set on_conflict='original' to get the first one's ack"
    )
    return IdConflict(message, position=position)


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
