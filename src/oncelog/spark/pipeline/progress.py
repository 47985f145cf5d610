"""How far a pipeline is, without Spark: what its history says, who runs it, and which files wait.

Spark notes each file that it takes, with the time of its last change, in its checkpoint. So files that were not taken
are known, and files that were replaced under the same name since: Spark does not read those again.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

import oncelog
from oncelog.errors import NotFound
from oncelog.log.log import Log
from oncelog.spark.pipeline import history, lease, source_files, spec
from oncelog.spark.pipeline.history import Batch, Event, Started
from oncelog.spark.pipeline.lease import Holder
from oncelog.spark.pipeline.spec import FILE_FORMATS, Spec
from oncelog.spark.reading.bytes_of import local

_TAKEN = "into-log/sources/0"


class Files(msgspec.Struct, frozen=True):
    """Files of a source: how many were taken, which wait, and which were replaced after they were taken."""

    taken: int
    waiting: tuple[str, ...]
    replaced: tuple[str, ...]


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
    files: Files | None


class _Taken(msgspec.Struct):
    path: str
    timestamp: int


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
        last_batch_us=_last(events, Batch),
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
        files=files(given),
    )


def _last(events: list[Event], kind: type[Started | Batch]) -> int | None:
    return max((event.at_us for event in events if isinstance(event, kind)), default=None)


def _end(given: Spec) -> int:
    with oncelog.connect(given.log.url) as db:
        try:
            log: Log = db.log(given.log.name)
        except NotFound:
            return 0
        return log.info().last_position + 1


def files(given: Spec) -> Files | None:
    """Return which files of a source were taken, wait, or were replaced; ``None`` where that cannot be told."""
    source, checkpoint = given.source, spec.local_path(given.checkpoint)
    path = spec.local_path(source.path) if source.path is not None else None
    if path is None or checkpoint is None or not source.is_streaming or source.format.lower() not in FILE_FORMATS:
        return None
    taken = _taken(checkpoint / _TAKEN)
    waiting, replaced = [], []
    for found in _listed(path, source_files.option(given, "pathGlobFilter")):
        known = taken.get(found)
        if known is None:
            waiting.append(found)
        elif known != os.stat(found).st_mtime_ns // 1_000_000:  # noqa: PTH116 (a text is what is compared)
            replaced.append(found)
    return Files(len(taken), tuple(sorted(waiting)), tuple(sorted(replaced)))


def _taken(folder: Path) -> dict[str, int]:
    """Return the files that Spark took, with their times in milliseconds; the newest note of a file counts."""
    found: dict[str, int] = {}
    for note in sorted(folder.glob("[0-9]*"), key=lambda path: int(path.name.partition(".")[0])):
        for line in note.read_bytes().split(b"\n")[1:]:
            if line:
                one = msgspec.json.decode(line, type=_Taken)
                found[str(local(one.path))] = one.timestamp
    return found


def _listed(path: Path, pattern: str | None) -> Iterator[str]:
    """Yield the files of a source as Spark lists them: hidden ones are left out, at any depth."""
    for top in glob.glob(str(path)):  # noqa: PTH207 (an absolute pattern)
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if not name.startswith((".", "_")) or "=" in name]
            for name in names:
                if not name.startswith((".", "_")) and (pattern is None or fnmatch.fnmatch(name, pattern)):
                    yield os.path.join(folder, name)  # noqa: PTH118 (one of very many)
        if os.path.isfile(top):  # noqa: PTH113 (as above)
            yield top
