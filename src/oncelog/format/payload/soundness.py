"""Whether a payload is what it claims to be, before anybody follows its offsets.

A checksum shows that bytes did not change. It does not show that an honest writer made them. Arrow follows offsets
without looking: an offset outside of its buffer is memory of the process, or the end of the process.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

from oncelog.errors import CorruptionError
from oncelog.format.payload.schema import HEADERS, START, VALUE, schema_of

_SMALL_ROWS_MAX = 512
"""Up to so many rows the check of the text costs less than reading the payload a second time without it."""

_LARGE_ROWS_MIN = 4096
"""From so many rows on, checking the offsets of each column costs less than Arrow's own check after a second read."""


def check_sound(payload: pa.RecordBatch, mask: int, what: str) -> None:
    """Raise ``CorruptionError`` if a payload could make a reader leave its buffers, has nulls where none may be, or has
    text that is not UTF-8. ``mask`` has its columns.
    """
    try:
        payload.validate(full=True)
        check_nulls(payload, mask)
    except pa.ArrowException as error:
        message = f"{what}: its checksum holds and its columns do not make sense: {error}"
        raise CorruptionError(message) from error


def check_message(message: pa.Buffer, payload: pa.RecordBatch, mask: int, *, full: bool) -> None:
    """Raise ``pa.ArrowInvalid`` if the payload of a message could make a reader leave its buffers.

    ``full`` checks that text is UTF-8, too; else, in a large payload, those who decode the text find out.
    """
    if full or payload.num_rows <= _SMALL_ROWS_MAX:
        payload.validate(full=True)
    elif payload.num_rows < _LARGE_ROWS_MIN or mask & HEADERS or not _check_offsets(payload, mask):
        pa.ipc.read_record_batch(message, _without_text(mask)).validate(full=True)


def _check_offsets(payload: pa.RecordBatch, mask: int) -> bool:
    """Raise ``pa.ArrowInvalid`` for offsets that go back; Arrow checks that the first and the last are in the buffer.

    The payload has no maps. ``False``: it has nulls, so there is more that could be wrong, and nothing was checked.
    """
    columns = payload.columns
    if any(column.null_count for column in columns):
        return False
    payload.validate()
    for number in _with_offsets(mask):
        column = columns[number]
        offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
        if np.count_nonzero(offsets[1:] < offsets[:-1]):
            message = "an offset is before the one that it follows"
            raise pa.ArrowInvalid(message)
    return True


@cache
def _with_offsets(mask: int) -> list[int]:
    """Return the numbers of the columns whose rows differ in length."""
    kinds = enumerate(schema_of(mask).types)
    return [number for number, kind in kinds if pa.types.is_binary(kind) or pa.types.is_string(kind)]


@cache
def _without_text(mask: int) -> pa.Schema:
    """Return the schema of a payload whose text is taken for bytes: those are laid out alike, and not looked at."""
    kinds = {pa.string(): pa.binary(), schema_of(HEADERS).field(0).type: pa.map_(pa.binary(), pa.binary())}
    return pa.schema([field.with_type(kinds.get(field.type, field.type)) for field in schema_of(mask)])


def check_nulls(payload: pa.RecordBatch, mask: int) -> None:
    """Raise ``pa.ArrowInvalid`` if anything is null in a value, in the start of a batch, or in a header."""
    found = payload.column(0).null_count if mask & VALUE else 0
    if mask & START:
        found += payload.column(payload.num_columns - 1).null_count
    if mask & HEADERS:
        headers = payload.column((mask & (HEADERS - 1)).bit_count())
        found += headers.keys.null_count + headers.items.null_count
    if found:
        message = "a value, the start of a batch, or a header is null"
        raise pa.ArrowInvalid(message)
