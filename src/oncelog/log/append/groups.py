"""Groups: what becomes one block, with the tokens to answer once the block is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from oncelog.dedup.fingerprint import NO_LABELS
from oncelog.dedup.producers import Pushed
from oncelog.errors import OncelogError
from oncelog.format import block
from oncelog.format.payload import columns
from oncelog.types import Record

RECORD_OVERHEAD_BYTES = 16
"""What a record is taken to cost beside its value and its id."""


def record_bytes(record: Record) -> int:
    """Return what a record is taken to cost."""
    return len(record.value) + len(record.id or "") + RECORD_OVERHEAD_BYTES


def is_plain(record: Record) -> bool:
    """Tell whether a record has a value, perhaps an id, and nothing else."""
    labels = (record.stream, record.type, record.headers, record.producer, record.sequence, record.tenant)
    return labels == NO_LABELS


class Ticket(NamedTuple):
    """The decision for one record: its position, now or once ``group`` is stored (-1: no longer known), or the error
    that refuses it.
    """

    position: int
    group: Group | None
    timestamp_us: int
    duplicate: bool = False
    conflict: bool = False
    error: OncelogError | None = None


Submitted: TypeAlias = bytes | Record
"""What was submitted and not looked at yet: a value, or the record if there is more to it than a value and an id."""


def submitted_as(record: Record) -> Submitted:
    """Return what stands for a record that is submitted."""
    return record.value if is_plain(record) else record


def record_of(submitted: Submitted, id: str | None) -> Record:
    """Return the record that was submitted."""
    return Record(submitted, id) if isinstance(submitted, bytes) else submitted


def submitted_bytes(submitted: Sequence[Submitted], ids: Sequence[str | None]) -> int:
    """Return what records that were submitted are taken to cost."""
    values = [one if isinstance(one, bytes) else one.value for one in submitted]
    return sum(map(len, values)) + sum(map(len, filter(None, ids))) + RECORD_OVERHEAD_BYTES * len(values)


class Crowd:
    """Tokens that are answered together: by what ``answers`` returns once their records are stored, or by ``error``.

    The core does not look into tokens and does not call ``answers``: the driver does both. ``busy``: a thread is
    answering them now. ``pieces``: in how many pieces rows were admitted that have one token. Then ``error`` tells of
    the last piece, and those before it may be stored.
    """

    __slots__ = ("answers", "busy", "error", "pieces", "tokens")

    def __init__(
        self,
        tokens: Sequence[Any],
        answers: Callable[[], Sequence[Any]] | None,
        error: OncelogError | None = None,
        *,
        pieces: int = 1,
    ) -> None:
        self.tokens = tokens
        self.answers = answers
        self.error = error
        self.pieces = pieces
        self.busy = False


class Group(msgspec.Struct, eq=False):
    """Records that will be, or are, one block.

    ``state`` only goes forward: *waiting* (more may join, nothing was offered), *offered* (its place is fixed; its
    ``block`` is ``None`` until the bytes are fixed, and then never changes), *landed* (storage has it, but perhaps
    not all before it: a crash could still take it back), *stored* (durable, visible, acknowledged), or *failed*
    (``error`` says how).
    """

    first_position: int
    next_position: int
    """Behind the last record."""
    count: int = 0
    ids: int = 0
    size_bytes: int = 0
    state: Literal["waiting", "offered", "landed", "stored", "failed"] = "waiting"
    block: block.Encoded | None = None
    number: int = -1
    segment: int = -1
    first_entry: int = -1
    timestamp_us: int = -1
    uptime_us: int = -1
    busy: bool = False
    attempts: int = 0
    retry_at_us: int = 0
    error: OncelogError | None = None
    parts: list[pa.RecordBatch] = []
    records: list[Record] = []
    crowds: list[Crowd] = []
    pushed: dict[str, Pushed] | None = None
    """The last sequences of the producers in it."""

    def __repr__(self) -> str:
        """Show no record: that is nobody's business."""
        return f"Group({self.first_position}, {self.next_position}, state={self.state!r})"

    def add_record(self, record: Record, size_bytes: int) -> None:
        """Add one record at the end."""
        self.records.append(record)
        self.count += 1
        self.next_position += 1
        self.ids += record.id is not None
        self.size_bytes += size_bytes

    def add_payload(self, payload: pa.RecordBatch, size_bytes: int, ids: int) -> None:
        """Add records in columns at the end."""
        self._gather()
        self.parts.append(payload)
        self.count += payload.num_rows
        self.next_position += payload.num_rows
        self.ids += ids
        self.size_bytes += size_bytes

    def _gather(self) -> None:
        if self.records:
            self.parts.append(columns.from_records(self.records, None))
            self.records = []

    def only_record(self) -> Record | None:
        """Return the group's record if it has one that is plain: a value, perhaps an id, and nothing else."""
        if self.count != 1 or not self.records:
            return None
        return self.records[0] if is_plain(self.records[0]) else None

    def payload(self) -> pa.RecordBatch:
        """Return all records as one batch of columns."""
        self._gather()
        return self.parts[0] if len(self.parts) == 1 else columns.concat(self.parts)
