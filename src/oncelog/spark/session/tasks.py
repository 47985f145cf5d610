"""Spark's tasks as the hands of a job over a whole log: the same work, on as many machines as there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from oncelog.errors import CorruptionError, NotFound, Unsupported
from oncelog.log import inner
from oncelog.log.jobs.workers import JobContext, Work
from oncelog.spark.connector import connections
from oncelog.spark.session import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")
_AT_ONCE = 2
"""How many parts there are for each core of the cluster at a time: their results are what the driver has to hold."""


class Tasks:
    """The tasks of a Spark session, which open the log by its URL: it must be one that all machines reach."""

    def __init__(self, spark: SparkSession, url: str, log: str) -> None:
        self._context: Any = spark.sparkContext
        self._url = url
        self._log = log

    def each(self, desk: JobContext, work: Work[_Part, _Result], parts: Sequence[_Part]) -> Iterator[_Result]:
        """Yield what ``work`` returns for each part, in their order."""
        task = _Task(self._url, self._log, desk.first_position, work)
        size = _AT_ONCE * int(self._context.defaultParallelism)
        for start in range(0, len(parts), size):
            some = parts[start : start + size]
            with spark_errors.told():
                found = self._context.parallelize(some, len(some)).map(task).collect()
            for result in found:
                if isinstance(result, Exception):
                    raise result
                yield result


class _Task(msgspec.Struct, frozen=True):
    """Work, sent to where it is done. What will be no better if it is tried again is returned, not raised: raised in a
    task, Spark would try it again, and wrap it into text.
    """

    url: str
    log: str
    first_position: int
    work: Callable[[JobContext, Any], Any]

    def __call__(self, part: Any) -> Any:
        try:
            return self.work(inner.desk(connections.log(self.url, self.log), self.first_position), part)
        except (CorruptionError, NotFound, Unsupported) as error:
            return error
