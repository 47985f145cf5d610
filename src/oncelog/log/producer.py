"""A producer's handle on a log's writer: its records are recognised by their sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from oncelog.arguments import listed
from oncelog.concurrency.pending import Pending, failed
from oncelog.errors import InvalidArgument, OncelogError
from oncelog.format.payload.tables import Tabular
from oncelog.handle import Handle, closes_anywhere
from oncelog.log import inner
from oncelog.settings import TIMEOUT_S
from oncelog.types import Ack, ColumnAcks, Record

if TYPE_CHECKING:
    from oncelog.log.writer import Writer


class Producer(Handle):
    """One producer of a log, on its one writer. Made by ``Writer.as_producer``; safe to share between threads.

    Either every record carries its sequence, which must increase (gaps are allowed), or none does and they are
    counted. The name is this handle's until the handle is closed or dropped, or another handle takes the name by force:
    then this one raises ``WriterFenced``. Closing the producer leaves the writer as it is.
    """

    _what = "producer"

    def __init__(self, writer: Writer, name: str) -> None:
        super().__init__()
        self._writer = writer
        self.name = name

    @property
    def producer(self) -> str:
        """The producer's name, also if it was assigned."""
        return self.name

    @property
    def last_sequence(self) -> int | None:
        """The last sequence of this producer that is durable; ``None`` when there is none."""
        return self._writer.last_sequence_of(self.name)

    def append(
        self,
        value: bytes,
        *,
        sequence: int | None = None,
        stream: str | None = None,
        type: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        tenant: str | None = None,
        timeout_s: float | None = TIMEOUT_S,
    ) -> Ack:
        """Append one record; return where it is, or where it was (``None`` when that is too long ago).

        Raises as ``Writer.append`` does, and ``InvalidArgument`` for a sequence that is out of order.
        """
        self._check_usable()
        with inner.acting(self._writer, self):
            return self._writer.append(
                value,
                sequence=sequence,
                stream=stream,
                type=type,
                headers=headers,
                tenant=tenant,
                producer=self.name,
                timeout_s=timeout_s,
            )

    def submit(
        self,
        value: bytes,
        *,
        sequence: int | None = None,
        stream: str | None = None,
        type: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        tenant: str | None = None,
        timeout_s: float | None = TIMEOUT_S,
    ) -> Pending[Ack]:
        """Append one record without waiting for it, as ``Writer.submit`` does."""
        self._check_usable()
        with inner.acting(self._writer, self):
            return self._writer.submit(
                value,
                sequence=sequence,
                stream=stream,
                type=type,
                headers=headers,
                tenant=tenant,
                producer=self.name,
                timeout_s=timeout_s,
            )

    def append_many(self, records: Sequence[Record], *, timeout_s: float | None = TIMEOUT_S) -> list[Ack]:
        """Append records, each decided on its own, as ``Writer.append_many`` does."""
        mine = self._mine(records)
        with inner.acting(self._writer, self):
            return self._writer.append_many(mine, timeout_s=timeout_s)

    def append_batch(self, records: Sequence[Record], *, timeout_s: float | None = TIMEOUT_S) -> list[Ack]:
        """Append records all or none: all new, or all known. A mixture is ``PartialOverlap``."""
        mine = self._mine(records)
        with inner.acting(self._writer, self):
            return self._writer.append_batch(mine, timeout_s=timeout_s)

    def append_arrow(self, table: Tabular, *, timeout_s: float | None = TIMEOUT_S) -> ColumnAcks:
        """Append the rows of a table, with a column ``sequence`` or counted, as ``Writer.append_arrow`` does."""
        self._check_usable()
        with inner.acting(self._writer, self):
            return self._writer.append_arrow(table, producer=self.name, timeout_s=timeout_s)

    def submit_many(self, records: Sequence[Record], *, timeout_s: float | None = TIMEOUT_S) -> Pending[list[Ack]]:
        """Append records, each decided on its own, without waiting for them, as ``Writer.submit_many`` does."""
        try:
            mine = self._mine(records)
        except OncelogError as error:
            return failed(error)
        with inner.acting(self._writer, self):
            return self._writer.submit_many(mine, timeout_s=timeout_s)

    def submit_batch(self, records: Sequence[Record], *, timeout_s: float | None = TIMEOUT_S) -> Pending[list[Ack]]:
        """Append records all or none, without waiting for them, as ``Writer.submit_batch`` does."""
        try:
            mine = self._mine(records)
        except OncelogError as error:
            return failed(error)
        with inner.acting(self._writer, self):
            return self._writer.submit_batch(mine, timeout_s=timeout_s)

    def submit_arrow(self, table: Tabular, *, timeout_s: float | None = TIMEOUT_S) -> Pending[ColumnAcks]:
        """Append the rows of a table without waiting for them, as ``Writer.submit_arrow`` does."""
        try:
            self._check_usable()
        except OncelogError as error:
            return failed(error)
        with inner.acting(self._writer, self):
            return self._writer.submit_arrow(table, producer=self.name, timeout_s=timeout_s)

    def _append_rows(self, table: Tabular, timeout_s: float | None) -> Sequence[Ack | OncelogError]:
        """Append the rows of a table, each decided on its own; return the ack of each, or its error."""
        self._check_usable()
        with inner.acting(self._writer, self):
            return inner.append_rows(self._writer, table, timeout_s)

    def _mine(self, records: Sequence[Record]) -> list[Record]:
        self._check_usable()
        mine = []
        for record in listed(records):
            if record.producer not in (None, self.name):
                message = f"a record of producer {record.producer!r} cannot be appended by {self.name!r}"
                raise InvalidArgument(message)
            mine.append(msgspec.structs.replace(record, producer=self.name))
        return mine

    def flush(self, *, timeout_s: float | None = TIMEOUT_S) -> None:
        """Return when all that was submitted to the writer is durable."""
        self._check_usable()
        self._writer.flush(timeout_s=timeout_s)

    @closes_anywhere
    def close(self) -> None:
        """End this producer's session; the next one begins behind what is durable then. May be repeated."""
        if self._closes_now():
            inner.leave_producer(self._writer, self)
