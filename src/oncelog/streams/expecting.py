"""Expected versions: the error when a stream is not as expected, unless the same events were stored before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oncelog.errors import OncelogError, PartialOverlap, WrongExpectedVersion
from oncelog.format.payload import arrays
from oncelog.log import inner
from oncelog.log.append.answers import id_conflict
from oncelog.log.log import Log
from oncelog.log.stored.rows import Rows
from oncelog.streams.events import NO_VERSION, EventAck, Expected
from oncelog.streams.index import Index
from oncelog.types import Entry, Record


class Earlier(OncelogError):
    """A stream is past the version that was expected: this may be a retry of what came then. Never leaves this room."""

    def __init__(self, stream: str, expected: Expected, exact: int, current: int) -> None:
        super().__init__(stream)
        self.stream = stream
        self.expected = expected
        self.exact = exact
        self.current = current


def wrong_version(stream: str, expected: Expected, current: int) -> WrongExpectedVersion:
    """Return the error for a stream that is not as expected."""
    actual = None if current == NO_VERSION else current
    what = "is not there" if actual is None else f"is at version {actual}"
    message = f"stream {stream!r} {what}, expected was {expected!r}: nothing was written; read it, and decide again"
    return WrongExpectedVersion(message, expected=expected, actual=actual)


def stored_already(index: Index, log: Log, records: Sequence[Record], earlier: Earlier) -> list[EventAck]:
    """Return the acks of a batch that stands in the stream exactly where it is expected; else raise what is wrong.

    Looked up in the stream itself, so it does not depend on any window. What stands there is durable.
    """
    index.catch_up()
    found = _entries(index, log, earlier, len(records))
    wanted, there = [record.id for record in records], [entry.id for entry, _ in found]
    if None in wanted or not any(id in there for id in wanted):
        raise wrong_version(earlier.stream, earlier.expected, earlier.current)
    if wanted != there or not _is_batch(log, found):
        known = [id for id in wanted if id in there and id is not None]
        new = [id for id in wanted if id not in there and id is not None]
        message = f"{len(known)} of {len(wanted)} ids are stored, but not as exactly this batch: nothing was written"
        raise PartialOverlap(message, known=known, new=new)
    conflicts = [_content(record) != _content(entry) for record, (entry, _) in zip(records, found, strict=True)]
    if any(conflicts) and log.settings.on_conflict == "error":
        at = conflicts.index(True)
        raise id_conflict(records[at].id, found[at][0].position)
    return [
        EventAck(version=version, position=entry.position, timestamp=entry.timestamp, duplicate=True, conflict=other)
        for (entry, version), other in zip(found, conflicts, strict=True)
    ]


def _entries(index: Index, log: Log, earlier: Earlier, count: int) -> list[tuple[Entry, int]]:
    """Return the events that stand at the versions which are asked for, as far as they were not truncated away."""
    if index.version(earlier.stream) == NO_VERSION:
        return []  # all there is of the stream is still on its way
    wanted: list[tuple[int, int]] = []
    for positions, versions in index.find(earlier.stream, earlier.exact + 1, backward=False):
        near = versions <= earlier.exact + count
        wanted += zip(positions[near].tolist(), versions[near].tolist(), strict=True)
        if not near.all():
            break
    found: list[tuple[Entry, int]] = []
    for run in _runs(wanted):
        entries = log.read(run[0][0], limit=len(run))
        found += [(entry, version) for entry, (_, version) in zip(entries, run, strict=False)]
    return found


def _runs(places: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    """Yield positions, with their versions, that stand beside each other together: they are read at once."""
    start = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end][0] != places[end - 1][0] + 1:
            yield places[start:end]
            start = end


def _is_batch(log: Log, found: Sequence[tuple[Entry, int]]) -> bool:
    """Tell whether records are exactly one batch, as it was stored."""
    first, last = found[0][0].position, found[-1][0].position
    if last - first != len(found) - 1:
        return False
    scan = inner.scan(log)
    scan.begin(first)
    starts: list[bool] = []
    while len(starts) < len(found) + 1 and (rows := scan.next_rows(last + 2)):
        starts += [start for part in rows for start in _starts(part)]
    return starts[0] and not any(starts[1 : len(found)]) and all(starts[len(found) :])


def _starts(rows: Rows) -> list[bool]:
    at = rows.payload.schema.get_field_index("start")
    return arrays.flags(rows.payload.column(at)).tolist() if at >= 0 else [True] * rows.count


def _content(of: Record | Entry) -> tuple[object, ...]:
    headers = None if of.headers is None else {name: bytes(value) for name, value in of.headers.items()}
    return bytes(of.value), of.type, headers, of.tenant
