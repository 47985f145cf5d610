"""Reading a log as a stream: offsets are positions, and a batch never reaches beyond what is decided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from oncelog.errors import InvalidArgument, NotFound
from oncelog.log import inner
from oncelog.log.log import Log
from oncelog.spark.connector import planning
from oncelog.spark.connector.options import ReadOptions
from oncelog.spark.connector.source import Range, RangeReader, starting

Offset = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log as it grows. An offset names the log's permanent id too: one that was deleted and made again has
    other records at the same positions.
    """

    def __init__(self, options: ReadOptions, wanted: StructType) -> None:
        if options.ending != "latest":
            name = "endingOffsets" if isinstance(options.ending, int) else "endingTimestamp"
            message = f"option {name}: a stream has no end; read a batch, or use trigger(availableNow=True)"
            raise InvalidArgument(message)
        self._options = options
        self._rows = RangeReader(options, wanted)
        self._target: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return where a new query begins: at the start of the log, unless told otherwise."""
        log = self._rows.open()
        return _offset(log, starting(log, self._options))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a micro-batch may read."""
        limit = self._options.records_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return where the next micro-batch ends."""
        log = self._rows.open()
        begin, visible = self._begin(log, start), log.end_position()
        if begin > visible:  # to wait until it has grown to there would leave out what grew
            if self._options.fail_on_data_loss:
                raise _restored(log, visible, begin)
            return _offset(log, visible)
        end = visible if self._target is None else self._target
        if isinstance(limit, ReadMaxRows):
            end = min(end, max(begin, log.first_position()) + limit.max_rows)
        most = self._options.bytes_per_trigger
        if most is not None:
            start_at = max(begin, log.first_position())
            end = planning.within_bytes(inner.extents(log, start_at, end), start_at, end, most)
        return _offset(log, max(begin, end))

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return where the log ends, for the query's progress."""
        log = self._rows.open()
        return _offset(log, log.end_position())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the log ends now: what comes later is for the next run."""
        self._target = self._rows.open().end_position()

    def partitions(self, start: Offset, end: Offset) -> list[Range]:
        """Return what each task is to read."""
        log = self._rows.open()
        begin, stop = self._begin(log, start), int(end["position"])
        if end["log"] != log.log_id:
            return []  # it was planned for a log that is gone; the next batch begins where this one does
        visible = log.end_position()
        if stop > visible and self._options.fail_on_data_loss:
            raise _restored(log, visible, stop)
        return self._rows.ranges(log, begin, min(stop, visible))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        assert isinstance(partition, Range)
        return self._rows.read(partition)

    def _begin(self, log: Log, start: Offset) -> int:
        """Return the position of a stored offset, if it is one of this log."""
        if start["log"] == log.log_id:
            return int(start["position"])
        if self._options.fail_on_data_loss:
            message = (
                f"log {log.name!r} is not the one that this checkpoint was made with: it was deleted and made again; "
                "start with a new checkpoint, or with failOnDataLoss=false to begin at its start"
            )
            raise NotFound(message)
        return log.first_position()


def _restored(log: Log, visible: int, position: int) -> NotFound:
    message = (
        f"log {log.name!r} ends at position {visible}, and the checkpoint says that it was read to {position}: "
        "was it restored from an older copy?"
    )
    return NotFound(message)


def _offset(log: Log, position: int) -> Offset:
    """Return an offset. Spark compares them as text, so the order of keys is fixed."""
    return {"log": log.log_id, "position": position}
