"""Orders whose ids go from the table into runs: ways to append them, and to see that each is there once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import pyarrow as pa

from oncelog.limits import KIB
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings
from oncelog.types import Ack, Record

SETTINGS = LogSettings(segment_bytes=64 * KIB, seal="off", snapshot_interval_s=1e6)


def record(number: int) -> Record:
    """Return the record of a number."""
    return Record(f"order {number}".encode(), id=f"o-{number}")


def append(writer: Writer, numbers: Iterable[int]) -> list[Ack]:
    """Append records one by one."""
    return [writer.append(record(number).value, id=record(number).id) for number in numbers]


def many(writer: Writer, numbers: Iterable[int]) -> list[Ack]:
    """Append records, four at a time."""
    chosen = [record(number) for number in numbers]
    return [ack for at in range(0, len(chosen), 4) for ack in writer.append_many(chosen[at : at + 4])]


def submit(writer: Writer, numbers: Iterable[int]) -> list[Ack]:
    """Append records without waiting for each."""
    return [future.result() for future in [writer.submit(record(n).value, id=record(n).id) for n in numbers]]


def labelled(writer: Writer, numbers: Iterable[int]) -> list[Ack]:
    """Append records one by one, on the way of those that are not plain."""
    return [writer.append(bytearray(record(n).value), id=record(n).id) for n in numbers]  # type: ignore[arg-type]


WAYS: list[Callable[[Writer, Iterable[int]], list[Ack]]] = [append, many, submit]


def retried(acks: Sequence[Ack]) -> list[Ack]:
    """Return what retries are answered, given the acks of the first attempts."""
    return [msgspec.structs.replace(ack, duplicate=True) for ack in acks]


def remember(writer: Writer) -> None:
    """Have runs built and merged now."""
    writer._keeper._housekeeper.stop()
    writer._keeper._memory.work()


def runs(log: Log) -> list[tuple[int, int]]:
    """Return the ranges of the runs."""
    return [(run.first_position, run.next_position) for run in log._manifest().memory]


def ids(log: Log) -> list[str | None]:
    """Return all ids that can be read."""
    with log.read() as entries:
        return [entry.id for entry in entries]


def check(log: Log, count: int) -> None:
    """See that each id is there once, and that the log finds nothing wrong with itself."""
    assert ids(log) == [f"o-{number}" for number in range(count)]
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


def table(numbers: Iterable[int]) -> pa.Table:
    """Return the records of numbers in columns."""
    chosen = [record(number) for number in numbers]
    return pa.table({"id": [one.id for one in chosen], "value": pa.array([one.value for one in chosen], pa.binary())})
