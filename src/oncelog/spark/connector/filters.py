"""Filters as hints: what need not be read. Spark applies every filter again, so too much is never wrong."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from oncelog.log.log import Log

_TEXTS = ("id", "stream")
_TICK = timedelta(microseconds=1)
_LAST = datetime.max.replace(tzinfo=UTC)


class Narrowed(msgspec.Struct, frozen=True):
    """What filters leave: positions from ``start`` to before ``end``, moments likewise, and values of columns."""

    start: int = 0
    end: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    values: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def columns(self) -> list[str]:
        """The columns whose values are asked for."""
        return [name for name, _ in self.values]

    def positions(self, log: Log, start: int, end: int) -> tuple[int, int]:
        """Return the positions that are left of a range."""
        low, high = max(start, self.start), end if self.end is None else min(end, self.end)
        if self.since is not None:
            low = max(low, log.position_at(self.since))
        if self.until is not None:
            high = min(high, log.position_at(self.until))
        return min(low, max(high, start)), max(high, start)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that have the values asked for."""
        for name, wanted in self.values:
            batch = batch.filter(pc.is_in(batch.column(name), value_set=pa.array(wanted, pa.string())))
        return batch


def narrowed(filters: Sequence[Filter]) -> Narrowed:
    """Return what a conjunction of filters leaves to be read, as far as they are of a kind that helps."""
    found = Narrowed()
    for each in filters:
        name = ".".join(getattr(each, "attribute", ()))
        value = getattr(each, "value", None)
        if name == "position" and isinstance(value, int):
            found = _by_position(found, each, value)
        elif name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            found = _by_time(found, each, value)
        elif name in _TEXTS:
            wanted = _texts(each, value)
            if wanted is not None:
                found = msgspec.structs.replace(found, values=(*found.values, (name, wanted)))
    return found


def _by_position(found: Narrowed, each: Filter, value: int) -> Narrowed:
    start, end = found.start, found.end
    if isinstance(each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        start = max(start, value + isinstance(each, GreaterThan))
    if isinstance(each, EqualTo | EqualNullSafe | LessThan | LessThanOrEqual):
        behind = value + (not isinstance(each, LessThan))
        end = behind if end is None else min(end, behind)
    return msgspec.structs.replace(found, start=max(start, 0), end=end if end is None else max(end, 0))


def _by_time(found: Narrowed, each: Filter, value: datetime) -> Narrowed:
    """Timestamps never go back within a log, so moments are positions."""
    since, until = found.since, found.until
    if value > _LAST - _TICK:
        return found  # there is no moment behind it to compare with
    if isinstance(each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        after = value + _TICK if isinstance(each, GreaterThan) else value
        since = after if since is None else max(since, after)
    if isinstance(each, EqualTo | EqualNullSafe | LessThan | LessThanOrEqual):
        behind = value if isinstance(each, LessThan) else value + _TICK
        until = behind if until is None else min(until, behind)
    return msgspec.structs.replace(found, since=since, until=until)


def _texts(each: Filter, value: object) -> tuple[str, ...] | None:
    if isinstance(each, EqualTo) and isinstance(value, str):
        return (value,)
    if isinstance(each, In) and isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(value)
    return None
