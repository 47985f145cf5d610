"""Whether a payload is what it claims to be, before anybody follows its offsets.

A checksum shows that bytes did not change. It does not show that an honest writer made them. Arrow follows offsets
without looking: an offset outside of its buffer is memory of the process, or the end of the process.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from oncelog.errors import CorruptionError
from oncelog.format.arrays import present
from oncelog.format.schema import HEADERS, START, VALUE

_WITH_OFFSETS = (pa.BinaryArray, pa.StringArray, pa.MapArray)
_NONE = np.empty(0, np.int32)
_SMALL_ROWS_MAX = 512
"""Up to so many rows Arrow's full check, which looks at the text too, costs less than ours of offsets alone."""


def check_sound(payload: pa.RecordBatch, mask: int, what: str, *, full: bool = False) -> None:
    """Raise ``CorruptionError`` if a payload could make a reader leave its buffers, or has nulls where none may be.

    ``mask`` has its columns. ``full`` checks that text is UTF-8, too; else those who decode the text find out.
    """
    try:
        if full or payload.num_rows <= _SMALL_ROWS_MAX:
            payload.validate(full=True)
        else:
            payload.validate()
            for column in payload.columns:
                _check_offsets(column)
        _check_nulls(payload, mask)
    except pa.ArrowException as error:
        message = f"{what}: its checksum holds and its columns do not make sense: {error}"
        raise CorruptionError(message) from error


def _check_offsets(column: pa.Array) -> None:
    """Check that offsets never go back: Arrow has checked the first and the last of them."""
    for part in _parts(column):
        bitmap, *rest = part.buffers()
        if isinstance(part, _WITH_OFFSETS):
            offsets = np.frombuffer(rest[0], np.int32, len(part) + 1, part.offset * 4) if len(part) else _NONE
            if (offsets[1:] < offsets[:-1]).any():
                message = "an offset is before the one that it follows"
                raise pa.ArrowInvalid(message)
        if bitmap is not None and part.null_count != len(part) - int(present(part).sum()):
            message = "the count of nulls is wrong"
            raise pa.ArrowInvalid(message)


def _parts(column: pa.Array) -> tuple[pa.Array, ...]:
    return (column, column.keys, column.items) if isinstance(column, pa.MapArray) else (column,)


def _check_nulls(payload: pa.RecordBatch, mask: int) -> None:
    """Check that nothing is null in a value, in the start of a batch, and in a header."""
    found = payload.column(0).null_count if mask & VALUE else 0
    if mask & START:
        found += payload.column(payload.num_columns - 1).null_count
    if mask & HEADERS:
        headers = payload.column((mask & (HEADERS - 1)).bit_count())
        found += headers.keys.null_count + headers.items.null_count
    if found:
        message = "a value, the start of a batch, or a header is null"
        raise pa.ArrowInvalid(message)
