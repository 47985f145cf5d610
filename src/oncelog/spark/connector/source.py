"""Reading a log as a table: Arrow batches from blocks and sealed files to Spark, without a row in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from oncelog.errors import NotFound
from oncelog.log import inner
from oncelog.log.log import Log
from oncelog.spark.connector import connections, planning, schema
from oncelog.spark.connector.filters import Narrowed, narrowed
from oncelog.spark.connector.options import ReadOptions

BATCH_ROWS_MAX = 10_000
"""What Spark itself puts into an Arrow batch: larger ones are no faster, and take more of its memory."""


class Range(InputPartition):
    """The positions that one task reads, from ``start`` to before ``end``, of the log with this permanent id."""

    def __init__(self, start: int, end: int, log_id: str) -> None:
        super().__init__((start, end, log_id))
        self.start = start
        self.end = end
        self.log_id = log_id


class RangeReader:
    """Reads ranges of a log, in a task: all it knows is a URL, a name and columns."""

    def __init__(self, options: ReadOptions, wanted: StructType) -> None:
        self._options = options
        self._columns = schema.check_read(wanted)

    def open(self) -> Log:
        """Return the log."""
        return connections.log(self._options.url, self._options.log, self._options.storage)

    def ranges(self, log: Log, start: int, end: int) -> list[Range]:
        """Return what each task is to read of the positions from ``start`` to ``end``."""
        options = self._options
        first = log.first_position()
        if start < first and start < end:
            if options.fail_on_data_loss:
                raise lost(self._options.log, start, first)
            start = first
        parts = planning.cut(
            inner.extents(log, start, end),
            start,
            end,
            partitions_min=options.partitions_min,
            records_max=options.records_per_partition,
        )
        return [Range(*part, log.log_id) for part in parts]

    def read(self, part: Range, narrowed: Narrowed | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range, in Spark's schema."""
        wanted = schema.arrow(self._columns)
        extra = [] if narrowed is None else [name for name in narrowed.columns if name not in self._columns]
        for batch in self._batches(part, [*self._columns, *extra]):
            found = batch if narrowed is None else narrowed.rows(batch)
            arrays = found.columns[: len(self._columns)]
            whole = pa.RecordBatch.from_arrays(arrays, schema=wanted) if arrays else found.select([])
            for row in range(0, whole.num_rows, BATCH_ROWS_MAX):
                yield whole.slice(row, BATCH_ROWS_MAX)
        connections.spare_what_is_loaded("read")

    def _batches(self, part: Range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        log = self.open()
        if log.log_id != part.log_id:
            message = f"log {log.name!r} was deleted and made again since this read was planned: load it again"
            raise NotFound(message)
        start, end = part.start, part.end
        while start < end:
            try:
                for batch in log.read_arrow(start, limit=end - start, columns=columns):
                    yield batch
                    start += batch.num_rows
            except NotFound as error:
                if error.first is None or error.first <= start:
                    raise
                if self._options.fail_on_data_loss:
                    raise lost(self._options.log, start, error.first) from error
                start = error.first
                continue
            return


def lost(name: str, start: int, first: int) -> NotFound:
    """Return the error for records that were truncated before they were read."""
    message = (
        f"log {name!r} begins at position {first}: what lies between {start} and there was truncated before it was "
        "read; with failOnDataLoss=false reading goes on behind it"
    )
    return NotFound(message, first=first)


class BatchReader(DataSourceReader):
    """Reads a log as it is when the query is planned."""

    def __init__(self, options: ReadOptions, wanted: StructType) -> None:
        self._options = options
        self._rows = RangeReader(options, wanted)
        self._narrowed: Narrowed | None = None
        # Spark fails every read by a class that defines pushFilters unless its configuration switches them on, and asks
        # what it is by this attribute. An object that answers as the default one, and still takes filters, does both.
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def narrow(self, filters: Sequence[Filter]) -> None:
        """Take filters as hints of what need not be read, if that is asked for.

        Spark keeps what it planned for one query of a table, and uses it again for the next that has no filters: so it
        is not asked for by default.
        """
        self._narrowed = narrowed(filters) if self._options.push_filters else None

    def partitions(self) -> list[Range]:
        """Return what each task is to read."""
        log = self._rows.open()
        start = starting(log, self._options)
        end = ending(log, self._options)
        if self._narrowed is not None:
            start, end = self._narrowed.positions(log, start, end)
        return self._rows.ranges(log, start, end) or [Range(end, end, log.log_id)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        assert isinstance(partition, Range)
        return self._rows.read(partition, self._narrowed)


class _PushFilters:
    """``BatchReader.pushFilters`` in disguise. Filters are hints: all are handed back, and Spark applies them again."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._reader.narrow(filters)
        return filters


def ending(log: Log, options: ReadOptions) -> int:
    """Return the position behind the last to read: that of the first record at or after a moment, or the log's end."""
    wanted, visible = options.ending, log.end_position()
    if isinstance(wanted, datetime):
        return min(log.position_at(wanted), visible)
    return min(wanted, visible) if isinstance(wanted, int) else visible


def starting(log: Log, options: ReadOptions) -> int:
    """Return the first position to read: the log's first, unless told otherwise."""
    wanted = options.starting if options.starting is not None else "earliest"
    if isinstance(wanted, int):
        end = log.end_position()
        if wanted > end:
            message = f"option startingOffsets: position {wanted} of log {log.name!r} is behind its end, {end}"
            raise NotFound(message)
        return wanted
    return log.position_at(wanted)
