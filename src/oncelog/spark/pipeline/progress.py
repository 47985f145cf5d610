"""The progress of a pipeline, without Spark: its history, the process that runs it, and the files that wait."""

from __future__ import annotations

from pathlib import Path

import msgspec

import oncelog
from oncelog.errors import NotFound
from oncelog.log.log import Log
from oncelog.spark.pipeline import history, lease
from oncelog.spark.pipeline.history import BatchDone, Event, Started
from oncelog.spark.pipeline.lease import Holder
from oncelog.spark.pipeline.rows import taken_files
from oncelog.spark.pipeline.rows.taken_files import TakenFiles
from oncelog.spark.pipeline.spec import Spec


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline as it is now. Times are microseconds since 1970, ``None`` if there was no run.

    ``behind`` is how many records the sink has yet to get, ``None`` without a sink; ``files`` is ``None`` where the
    source is not a folder of this machine. ``killed``: the last run did not come to its end, and runs no more.
    """

    pipeline: str
    log: str
    running: Holder | None
    killed: bool
    runs: int
    last_started_us: int | None
    last_batch_us: int | None
    attempts: int
    stored: int
    duplicates: int
    conflicts: int
    rejected: int
    rescued: int
    left_out: int
    missing: int
    exported: int | None
    behind: int | None
    files: TakenFiles | None


def status(given: Spec, folder: Path) -> Status:
    """Return how far a pipeline is. Nothing is written."""
    events = list(history.of(given, folder))
    done = history.summed(events)
    running = lease.holder(given)
    exported = (done.exported or 0) if given.sink is not None else None
    return Status(
        pipeline=given.name,
        log=given.log.name,
        running=running,
        killed=running is None and bool(events) and not done.ended,
        runs=done.runs,
        last_started_us=_last(events, Started),
        last_batch_us=_last(events, BatchDone),
        attempts=done.attempts,
        stored=done.settled,
        duplicates=done.duplicates,
        conflicts=done.aside,
        rejected=done.rejected,
        rescued=done.rescued,
        left_out=done.left_out,
        missing=done.missing,
        exported=exported,
        behind=None if exported is None else max(0, _end(given) - exported),
        files=taken_files.files(given),
    )


def _last(events: list[Event], kind: type[Started | BatchDone]) -> int | None:
    return max((event.at_us for event in events if isinstance(event, kind)), default=None)


def _end(given: Spec) -> int:
    with oncelog.connect(given.log.url) as db:
        try:
            log: Log = db.log(given.log.name)
        except NotFound:
            return 0
        return log.info().last_position + 1
