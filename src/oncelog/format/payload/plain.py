"""Many records at once: checked as columns, without a look at each of them, as long as there is nothing to refuse."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog import limits
from oncelog.format.payload import arrays
from oncelog.format.payload.schema import ID, STREAM, TENANT, TYPE, VALUE, schema_of
from oncelog.types import Record


def payload(records: Sequence[Record]) -> pa.RecordBatch | None:
    """Return records as a payload, each as good as ``intake.check_record`` finds it and plain: no headers, no producer.

    ``None`` when there is one that is not, or none at all: then they are to be looked at one by one, and there is
    somebody to tell which it was. A bytearray for a value, which may change, counts as not plain.
    """
    values = [record.value for record in records]
    is_bare = _is_bare(records)
    if not _are_bytes(values) or not (is_bare or _is_plain(records)):
        return None
    mask, columns = VALUE, [arrays.binaries(values)]
    if _sizes_bytes(columns[0]).max() > limits.VALUE_BYTES_MAX:
        return None
    named = [(ID, [record.id for record in records], 1, limits.ID_BYTES_MAX)]
    if not is_bare:
        named += [
            (STREAM, [record.stream for record in records], 0, limits.LABEL_BYTES_MAX),
            (TYPE, [record.type for record in records], 0, limits.LABEL_BYTES_MAX),
            (TENANT, [record.tenant for record in records], 0, limits.LABEL_BYTES_MAX),
        ]
    for bit, texts, bytes_min, bytes_max in named:
        missing = _missing(texts)
        if missing == len(texts):
            continue
        column = None if missing is None else _texts(texts, bytes_min, bytes_max)
        if column is None:
            return None
        mask |= bit
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(mask))


def columns(values: Sequence[bytes], ids: Sequence[str | None]) -> pa.RecordBatch:
    """Return values and ids that were checked before as a payload."""
    mask, arranged = VALUE, [arrays.binaries(values)]
    if any(ids):  # none is empty
        mask |= ID
        arranged.append(arrays.texts(ids))
    return pa.RecordBatch.from_arrays(arranged, schema=schema_of(mask))


def payload_of_values(values: Sequence[bytes]) -> pa.RecordBatch | None:
    """Return records that are only values as a payload; ``None`` if one cannot be stored, or there are none."""
    if not _are_bytes(values):
        return None
    column = arrays.binaries(values)
    if _sizes_bytes(column).max() > limits.VALUE_BYTES_MAX:
        return None
    return pa.RecordBatch.from_arrays([column], schema=schema_of(VALUE))


def _are_bytes(values: Sequence[object]) -> bool:
    """Tell whether there are values, and all of them are bytes. A list that counts takes less time than a set."""
    return bool(values) and list(map(type, values)).count(bytes) == len(values)


def _missing(texts: Sequence[object]) -> int | None:
    """Return how many of the texts are missing; ``None`` if there is something else among them."""
    kinds = list(map(type, texts))
    missing = len(kinds) - kinds.count(str)
    return missing if not missing or kinds.count(NoneType) == missing else None


def _is_bare(records: Sequence[Record]) -> bool:
    """Tell in one pass whether all records have a value, perhaps an id, and nothing else: most are so."""
    labelled = [
        record
        for record in records
        if record.stream is not None
        or record.type is not None
        or record.headers is not None
        or record.producer is not None
        or record.sequence is not None
        or record.tenant is not None
    ]
    return not labelled


def _is_plain(records: Sequence[Record]) -> bool:
    columns = (
        [record.headers for record in records],
        [record.producer for record in records],
        [record.sequence for record in records],
    )
    return all(list(map(type, column)).count(NoneType) == len(column) for column in columns)


def _texts(texts: Sequence[str | None], bytes_min: int, bytes_max: int) -> pa.Array | None:
    try:
        column = arrays.texts(texts)
    except UnicodeEncodeError:
        return None
    sizes_bytes = _sizes_bytes(column)
    if column.null_count:
        sizes_bytes = sizes_bytes[arrays.present(column)]
    return column if sizes_bytes.min() >= bytes_min and sizes_bytes.max() <= bytes_max else None


def _sizes_bytes(array: pa.Array) -> NDArray[np.int32]:
    marks = np.frombuffer(array.buffers()[1], np.int32)
    return marks[1:] - marks[:-1]
