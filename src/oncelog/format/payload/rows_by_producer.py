"""The producers in a payload, each with its rows, at a cost that hardly grows with the number of producers."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_T = TypeVar("_T", bound=np.generic)

_NARROW_MAX = (1 << 16) - 1
"""Up to so many producers are sorted by their digits, which takes a tenth of the time."""


class Owners(NamedTuple):
    """The producers in a payload, and their rows.

    ``rows`` are those that have a producer, each producer's beside each other and in their order (``None``: all rows,
    as they are); from ``bounds[n]`` to before ``bounds[n + 1]`` they are those of ``names[n]``.
    """

    names: list[str]
    bounds: list[int]
    rows: NDArray[np.int64] | None

    def ordered(self, values: NDArray[_T]) -> NDArray[_T]:
        """Return what each row has, in the order of ``rows``."""
        return values if self.rows is None else values[self.rows]

    def rows_of(self, number: int) -> NDArray[np.int64]:
        """Return the rows of one producer."""
        start, end = self.bounds[number], self.bounds[number + 1]
        return np.arange(start, end) if self.rows is None else self.rows[start:end]

    def breaks(self, steps: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return where runs end, given which rows do not go on as the one before: there, and between producers."""
        if len(self.bounds) > 2:  # noqa: PLR2004
            steps[np.array(self.bounds[1:-1]) - 1] = True
        return np.flatnonzero(steps) + 1

    def falling(self, sequences: NDArray[np.int64]) -> set[int]:
        """Return the numbers of the producers whose sequences, in the order of ``rows``, do not always rise."""
        falls = sequences[1:] <= sequences[:-1]
        if not falls.any():
            return set()
        if len(self.bounds) > 2:  # noqa: PLR2004
            falls[np.array(self.bounds[1:-1]) - 1] = False
        found: list[int] = (np.searchsorted(self.bounds, np.flatnonzero(falls), "right") - 1).tolist()
        return set(found)


def owners_of(payload: pa.RecordBatch) -> Owners:
    """Return the producers in a payload that has the column."""
    column = payload.column(payload.schema.get_field_index("producer"))
    if _is_one(column):
        return Owners([column[0].as_py()], [0, len(column)], None)
    encoded = column.dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    codes = np.asarray(encoded.indices.fill_null(len(names)))  # rows without a producer come last
    if len(names) < _NARROW_MAX:
        codes = codes.astype(np.uint16)
    bounds: list[int] = [0, *np.cumsum(np.bincount(codes, minlength=len(names))[: len(names)]).tolist()]
    return Owners(names, bounds, np.argsort(codes, kind="stable")[: bounds[-1]])


def _is_one(column: pa.Array) -> bool:
    """Tell, at a fraction of the cost of looking for all, whether a string column has one value only."""
    if column.null_count or not len(column):
        return False
    ends = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    first, size = int(ends[0]), int(ends[1] - ends[0])
    if int(ends[-1]) - first != size * len(column) or (ends[1:] - ends[:-1] != size).any():
        return False
    data = column.buffers()[2].slice(first, size * len(column)).to_pybytes()
    return bool(data == data[:size] * len(column))
