"""The identities of stored records: hashed from their ids; for purged records, read from the columns that purging
leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup.identity import Hasher
from oncelog.format.identities import Identities
from oncelog.format.payload import arrays, columns
from oncelog.log.stored.rows import Rows


class Named:
    """The rows that have an identity: their numbers, in order, who they are, and which of them begin a batch."""

    def __init__(self, hasher: Hasher, payload: pa.RecordBatch, rows: NDArray[np.int64] | None) -> None:
        self._hasher = hasher
        self._payload = payload if rows is None else payload.take(arrays.integers(rows))
        self.rows: NDArray[np.int64] = np.arange(payload.num_rows) if rows is None else rows
        self.starts = _starts(self._payload)
        at = payload.schema.get_field_index("id")
        self.keys: NDArray[np.uint64] = hasher.keys(self._payload) if at >= 0 else np.empty((0, 2), np.uint64)

    def fingerprints(self) -> NDArray[np.uint64]:
        """Return the fingerprints of the rows that have an identity."""
        return self._hasher.fingerprints(self._payload)


class _WithPurged(Named):
    """The same, with those that were purged among them, each at its place."""

    def __init__(
        self, hasher: Hasher, payload: pa.RecordBatch, present: NDArray[np.int64], parts: Sequence[Rows]
    ) -> None:
        super().__init__(hasher, payload, present)
        begins = np.cumsum([0, *(part.count for part in parts)])
        marked = [(begin, part.purged) for begin, part in zip(begins, parts, strict=False) if part.purged is not None]
        gone = np.concatenate([purged.rows + begin for begin, purged in marked])
        self._purged = np.concatenate([purged.fingerprints for _, purged in marked])
        rows = np.concatenate([self.rows, gone])
        self._order = np.argsort(rows)
        self.rows = rows[self._order]
        self.keys = np.concatenate([self.keys, *(purged.keys for _, purged in marked)])[self._order]
        self.starts = _starts(payload)[self.rows]

    def fingerprints(self) -> NDArray[np.uint64]:
        """Return the fingerprints, those of purged rows as they were."""
        return np.concatenate([super().fingerprints(), self._purged])[self._order]


def named(hasher: Hasher, parts: Sequence[Rows]) -> Named:
    """Return who the records of neighbouring runs are; numbers count through all of them."""
    payload = columns.concat([rows.payload for rows in parts])
    at = payload.schema.get_field_index("id")
    present: NDArray[np.int64] | None = None
    if at < 0:
        present = np.empty(0, np.int64)
    elif payload.column(at).null_count:
        present = np.flatnonzero(arrays.present(payload.column(at)))
    if all(rows.purged is None for rows in parts):
        return Named(hasher, payload, present)
    return _WithPurged(hasher, payload, np.arange(payload.num_rows) if present is None else present, parts)


def identities_of(hasher: Hasher, parts: Iterable[Rows]) -> Identities:
    """Return the identities of a segment's records, with their entries, as they are kept beside an adopted file."""
    found = []
    for rows in parts:
        who = named(hasher, [rows])
        if len(who.rows):
            entries = (who.rows + rows.first_entry).astype(np.uint32)
            found.append(Identities.sorted(who.keys, who.fingerprints(), entries))
    return Identities.joined(found)


def _starts(payload: pa.RecordBatch) -> NDArray[np.bool_]:
    at = payload.schema.get_field_index("start")
    if at < 0:
        return np.ones(payload.num_rows, np.bool_)
    return arrays.flags(payload.column(at))
