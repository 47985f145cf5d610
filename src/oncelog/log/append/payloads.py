"""Records and tables of users as payloads: checked columns, cut to blocks, with the identities of their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog import limits
from oncelog.dedup.content import content_ids
from oncelog.dedup.identity import Hasher
from oncelog.dedup.window import DedupWindow
from oncelog.errors import InvalidArgument
from oncelog.format import compute as pc
from oncelog.format.payload import arrays, columns, intake, plain
from oncelog.format.payload.tables import Tabular
from oncelog.settings import LogSettings
from oncelog.types import Record


class Keys:
    """The identities and fingerprints of a payload's rows; ``rows`` are those that carry an id (``None``: all).

    A row that is new is decided by its identity alone, so fingerprints are hashed when they are first asked for.
    """

    __slots__ = ("_hash", "_hashed", "identities", "rows")

    def __init__(
        self,
        rows: NDArray[np.int64] | None,
        identities: NDArray[np.uint64],
        fingerprints: Callable[[], NDArray[np.uint64]],
    ) -> None:
        self.rows = rows
        self.identities = identities
        self._hash = fingerprints
        self._hashed: NDArray[np.uint64] | None = None

    def hashed(self) -> NDArray[np.uint64]:
        """Return the fingerprints. Should two threads ask first, both hash: the results are the same."""
        if self._hashed is None:
            self._hashed = self._hash()
        return self._hashed

    @property
    def fingerprints(self) -> NDArray[np.uint64]:
        """The fingerprints."""
        return self.hashed()


def replace(record: Record, **changes: object) -> Record:
    """Return a record with some fields changed."""
    return msgspec.structs.replace(record, **changes)


def payload_of(records: Sequence[Record]) -> pa.RecordBatch:
    """Return checked records in columns, each a batch of its own."""
    found = plain.payload(records)
    return columns.from_records(records) if found is None else found


def batch_payload(records: Sequence[Record], settings: LogSettings) -> pa.RecordBatch:
    """Return checked records in columns, as one atomic batch; ``InvalidArgument`` if they cannot be one."""
    ids = [record.id for record in records if record.id is not None]
    if ids and len(ids) != len(records):
        message = f"{len(ids)} of {len(records)} records of the batch carry an id: all must, or none"
        raise InvalidArgument(message)
    if len(set(ids)) != len(ids):
        message = f"id {Counter(ids).most_common(1)[0][0]!r} occurs more than once in one batch"
        raise InvalidArgument(message)
    if len(ids) > settings.window.keys_max:
        message = f"a batch of {len(ids)} ids could not be retried in a window of {settings.window.keys_max} keys"
        raise InvalidArgument(message)
    payload = columns.from_records(records, [True] + [False] * (len(records) - 1) if len(records) > 1 else None)
    if payload.num_rows > limits.BLOCK_RECORDS_MAX or payload.nbytes > limits.BLOCK_BYTES_MAX:
        message = (
            f"a batch of {payload.num_rows} records and {payload.nbytes} bytes does not fit a block "
            f"of {limits.BLOCK_RECORDS_MAX} records and {limits.BLOCK_BYTES_MAX} bytes"
        )
        raise InvalidArgument(message)
    return payload


def check_columns(payload: pa.RecordBatch, settings: LogSettings, log_id: str) -> pa.RecordBatch:
    """Return a user's payload as it will be stored, with content ids where those are asked for."""
    names = payload.schema.names
    if settings.idempotence == "off" and "id" in names:
        message = "column id: this log has idempotence off, so it cannot keep the promise an id asks for"
        raise InvalidArgument(message)
    if settings.idempotence != "content" or payload.num_rows == 0:
        return payload
    ids = content_ids(log_id, payload)
    if "producer" in names:  # a sequence is as good as an id
        ids = pc.if_else(payload.column(names.index("producer")).is_null(), ids, None)
    if "id" in names:
        at = names.index("id")
        return payload.set_column(at, "id", pc.coalesce(payload.column(at), ids))
    return payload.add_column(1, "id", ids)


def intake_of(
    table: Tabular, settings: LogSettings, log_id: str, owned: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
) -> pa.RecordBatch:
    """Return a user's table as a payload, checked; ``InvalidArgument`` naming column, row and rule otherwise.

    ``owned`` gives rows with a sequence their producer; without it, there may be none.
    """
    payload = intake.normalise(table)
    intake.check_limits(payload)
    if owned is not None:
        payload = owned(payload)
    elif "producer" in payload.schema.names or "sequence" in payload.schema.names:
        message = "columns producer and sequence: only the log's writer can hold sequences against each other; use ids"
        raise InvalidArgument(message)
    return check_columns(payload, settings, log_id)


def check_named_once(payload: pa.RecordBatch) -> None:
    """Raise ``InvalidArgument`` for a row that has an id and a sequence, or a sequence and no producer."""
    present = dict(zip(payload.schema.names, payload.columns, strict=True))
    producer, sequence, id = present.get("producer"), present.get("sequence"), present.get("id")
    owned = np.zeros(payload.num_rows, np.bool_) if producer is None else arrays.present(producer)
    if sequence is not None and (arrays.present(sequence) & ~owned).any():
        row = int(np.argmax(arrays.present(sequence) & ~owned))
        message = f"sequence, row {row}: whose it is must be said in the column producer"
        raise InvalidArgument(message)
    if id is not None and (arrays.present(id) & owned).any():
        row = int(np.argmax(arrays.present(id) & owned))
        raise named_twice(row=row)


def named_twice(**which: object) -> InvalidArgument:
    """Return the error for a record that carries both an id and a sequence."""
    what = ", ".join(f"{name} {value!r}" for name, value in which.items())
    message = f"{what}: has an id and a producer: a record is recognised by its id or by its sequence, not by both"
    return InvalidArgument(message)


def pieces(payload: pa.RecordBatch, settings: LogSettings) -> list[pa.RecordBatch]:
    """Cut a payload into pieces that each fit a block."""
    count = payload.num_rows
    if count <= settings.block_records and payload.nbytes <= settings.block_bytes:
        return [payload] if count else []
    sizes = arrays.numbers(pc.binary_length(payload.column(0)).cast(pa.int64()))
    overhead_bytes = max(0, payload.nbytes - int(sizes.sum())) // count + 1
    ends = np.cumsum(sizes + overhead_bytes)
    cut: list[pa.RecordBatch] = []
    start = 0
    while start < count:
        before = int(ends[start - 1]) if start else 0
        fit = int(np.searchsorted(ends, before + settings.block_bytes, side="right"))
        end = min(max(fit, start + 1), start + settings.block_records, count)
        cut.append(payload.slice(start, end - start))
        start = end
    return cut


def keys_of(
    payload: pa.RecordBatch, hasher: Hasher, window: DedupWindow | None, *, in_full: bool = False
) -> Keys | None:
    """Return the identities of the rows that carry an id, or ``None`` when there are none to look up.

    ``in_full``: hash the fingerprints now, without the writer's lock, because they will be asked for with it. So they
    will if not all rows carry an id.
    """
    at = payload.schema.get_field_index("id")
    if window is None or at < 0:
        return None
    ids, rows = payload.column(at), None
    if ids.null_count:
        rows = np.flatnonzero(arrays.present(ids))
        payload = payload.filter(ids.is_valid())
    keys = Keys(rows, hasher.keys(payload), partial(hasher.fingerprints, payload))
    if in_full or rows is not None:
        keys.hashed()
    return keys
