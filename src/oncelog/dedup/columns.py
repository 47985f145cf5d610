"""What the hashes read: a column as bytes, offsets and validity, straight from Arrow's buffers.

Everything that is hashed is brought to this one form, so that one loop serves strings, numbers and headers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.format.payload import arrays
from oncelog.format.payload.arrays import booleans, numbers

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.signedinteger[Any]]


class Column(NamedTuple):
    """Row ``i`` is ``data[offsets[i]:offsets[i + 1]]``, or null where ``valid`` is false (None: no nulls)."""

    data: Bytes
    offsets: Offsets
    valid: NDArray[np.bool_] | None

    def rows(self, low: int, high: int) -> Column:
        """Return the rows from ``low`` to before ``high``, without a copy."""
        valid = None if self.valid is None else self.valid[low:high]
        return Column(self.data, self.offsets[low : high + 1], valid)


def validity(array: pa.Array) -> NDArray[np.bool_] | None:
    """Return which rows are not null, or None when all are there."""
    if array.null_count == 0:
        return None
    return arrays.present(array)


def buffer_of(array: pa.Array, index: int, dtype: Any) -> NDArray[Any]:
    """Return one of the array's buffers from its beginning, empty where Arrow left it out."""
    buffer = array.buffers()[index]
    return np.zeros(0, dtype=dtype) if buffer is None else np.frombuffer(buffer, dtype=dtype)


def from_strings(array: pa.Array) -> Column:
    """Read a column of string or binary, large or not; any other kind of string is cast first."""
    kind = array.type
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        width: type[np.signedinteger[Any]] = np.int64
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        width = np.int32
    else:
        return from_strings(array.cast(pa.large_binary()))
    offsets = buffer_of(array, 1, width)[array.offset : array.offset + len(array) + 1]
    if len(array) == 0:
        offsets = np.zeros(1, dtype=width)
    return Column(buffer_of(array, 2, np.uint8), offsets, validity(array))


def from_integers(array: pa.Array) -> Column:
    """Read a column of int64: each row is its eight bytes, little-endian."""
    values = array.fill_null(0) if array.null_count else array
    whole = np.ascontiguousarray(numbers(values), dtype="<i8")
    return from_items(whole.view(np.uint8).reshape(-1), np.arange(len(array) + 1), 8, validity(array))


def from_items(data: Bytes, counts: NDArray[Any], item_bytes: int, valid: NDArray[np.bool_] | None) -> Column:
    """Read rows made of whole items: row ``i`` holds items ``counts[i]`` to before ``counts[i + 1]``."""
    return Column(data, counts.astype(np.int64) * item_bytes, valid)


def map_entries(array: pa.MapArray) -> tuple[NDArray[np.int64], pa.StructArray]:
    """Return the entries of all rows, and where each row's begin among them; a null row has none."""
    offsets = buffer_of(array, 1, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    if len(array) == 0:
        offsets = np.zeros(1, dtype=np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    keys, items = array.keys, array.items
    entries = pa.StructArray.from_arrays([keys[first:last], items[first:last]], names=["key", "value"])
    valid = validity(array)
    if valid is None or not np.diff(offsets)[~valid].any():
        return offsets - first, entries
    counts = np.where(valid, np.diff(offsets), 0)
    kept = np.repeat(valid, np.diff(offsets))
    return np.concatenate(([0], np.cumsum(counts))), entries.filter(booleans(kept))
