"""How a query is doing: how far behind it is, how fast, and how much of what it brings was there already.

Spark's own progress knows neither what lies ahead in a log nor what the sink did with its rows. The log knows both.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from oncelog.errors import OncelogError
from oncelog.format.manifest import Mark
from oncelog.spark.connector import connections

_logger = logging.getLogger("oncelog.spark")


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A query after a batch.

    ``lag`` is how many records of the logs it reads are still to come (``None``: it reads none). ``records``,
    ``duplicates`` and ``conflicts`` count what it brought into the log, since its first batch (``None``: the log is
    not known, or has no mark of it).
    """

    query: str
    name: str | None
    batch: int
    input_rows: int
    input_rows_per_s: float
    processed_rows_per_s: float
    batch_s: float
    lag: int | None = None
    records: int | None = None
    duplicates: int | None = None
    conflicts: int | None = None


class ProgressListener(StreamingQueryListener):
    """Tells of each batch of each query: ``spark.streams.addListener(ProgressListener(print, url=…, log=…))``.

    ``url`` and ``log`` name the log that a query writes, and ``producer`` the name that it writes under, if it was
    given one. The newest progress of each query is in ``latest``, by query id.
    """

    def __init__(
        self,
        tell: Callable[[Progress], object] | None = None,
        *,
        url: str | None = None,
        log: str | None = None,
        producer: str | None = None,
    ) -> None:
        self.latest: dict[str, Progress] = {}
        self._tell = tell
        self._sink = None if url is None or log is None else (url, log)
        self._producer = producer
        self._lock = threading.Lock()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing is known yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Keep the latest progress of each query."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Note and tell how a query is doing."""
        progress = self._progress(json.loads(event.progress.json))
        with self._lock:
            self.latest[progress.query] = progress
        if self._tell is not None:
            self._tell(progress)

    def _progress(self, told: dict[str, Any]) -> Progress:
        mark = self._mark(told["id"])
        return Progress(
            query=told["id"],
            name=told.get("name"),
            batch=told["batchId"],
            input_rows=told["numInputRows"],
            input_rows_per_s=_rate(told.get("inputRowsPerSecond")),
            processed_rows_per_s=_rate(told.get("processedRowsPerSecond")),
            batch_s=told.get("batchDuration", 0) / 1000,
            lag=lag(told["sources"]),
            records=None if mark is None else mark.records,
            duplicates=None if mark is None else mark.duplicates,
            conflicts=None if mark is None else mark.conflicts,
        )

    def _mark(self, query: str) -> Mark | None:
        if self._sink is None:
            return None
        wanted = query if self._producer is None else self._producer
        try:
            marks = connections.log(*self._sink).marks()
        except OncelogError as error:
            _logger.warning("the progress of query %s is reported without its log: %s", query, error)
            return None
        return next((mark for mark in marks if mark.producer == wanted and mark.owner == query), None)


def _rate(given: object) -> float:
    """Return a rate; Spark tells one that it does not know as a text, or not at all."""
    return float(given) if isinstance(given, int | float) else 0.0


def lag(sources: list[dict[str, Any]]) -> int | None:
    """Return how many records of logs are still to be read, as a query's progress tells of its sources."""
    behind = [found for source in sources if (found := _behind(source)) is not None]
    return sum(behind) if behind else None


def _behind(source: dict[str, Any]) -> int | None:
    end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
    if end is None or latest is None or end["log"] != latest["log"]:
        return None
    return max(0, int(latest["position"]) - int(end["position"]))


def _offset(given: object) -> dict[str, Any] | None:
    """Return an offset of a log, from whatever a source may call an offset."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return None
    return given if isinstance(given, dict) and {"log", "position"} <= given.keys() else None
