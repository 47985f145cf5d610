"""``oncelog log append``: from files and pipes into a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from oncelog import AppendErrors, IdConflict, InvalidArgument, Record
from oncelog.cli.records.sources import STDIN, Fields, Refusal, SourceBatch, batches, format_of
from oncelog.cli.terminal.options import InputFormat
from oncelog.cli.terminal.output import Meter, meter
from oncelog.clock import SYSTEM
from oncelog.log.append.counters import Counts
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.types import Ack, ColumnAcks


class AppendSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the input. ``attempts`` is the sum of the four after it, unless the command was cut short.

    ``forgotten`` are ids of what was stored that the log's bounded window has forgotten again: a second run would store
    them a second time.
    """

    log: str
    attempts: int
    stored: int
    duplicates: int
    conflicts: int
    refused: int
    forgotten: int
    last_position: int
    seconds: float
    records_per_second: int


class RefusedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line (of text, from 1) or a row (of columns, from 0) that is not in the log, and why."""

    source: str
    place: str
    number: int
    error: str
    reason: str


class _Tally:
    """What the answers say, for a writer whose own counters are those of a server, which writes for others, too."""

    def __init__(self) -> None:
        self.attempts = self.stored = self.duplicates = self.conflicts = self.forgotten = 0
        self.last_position = -1

    def add_columns(self, acks: ColumnAcks) -> None:
        """Count the answers to a table."""
        known, other = int((acks.duplicates & ~acks.conflicts).sum()), int(acks.conflicts.sum())
        self.attempts += len(acks.positions)
        self.duplicates += known
        self.conflicts += other
        self.stored += len(acks.positions) - known - other
        self.last_position = max(self.last_position, int(acks.positions.max(initial=-1)))

    def add_results(self, results: Sequence[Any]) -> None:
        """Count the answers to records: acks, and errors of those that were refused."""
        for result in results:
            self.attempts += 1
            if isinstance(result, Ack):
                self.conflicts += result.conflict
                self.duplicates += result.duplicate and not result.conflict
                self.stored += not result.duplicate
                self.last_position = max(self.last_position, -1 if result.position is None else result.position)
            else:
                self.conflicts += isinstance(result, IdConflict)


class Appending:
    """One run of the command: what it reads, what it counted."""

    def __init__(
        self, paths: Sequence[Path], format: InputFormat | None, fields: Fields, refused: Callable[[RefusedLine], None]
    ) -> None:
        self._inputs = [(path, format or format_of(path, fields)) for path in paths or [STDIN]]
        self._fields = fields
        self._tell = refused
        self._refused = self._conflicts = 0
        self._read_bytes = 0.0
        self._started_us = SYSTEM.elapsed_us()
        self._writer: Writer | None = None
        self._tally = _Tally()
        self._is_remote = False
        self._finished = False

    @property
    def clean(self) -> bool:
        """Whether every record got in, now or before."""
        return not self._refused and not self._conflicts

    def run(self, log: Log, wait_s: float) -> None:
        """Append everything; show refused records one by one."""
        if self._fields.id is not None and log.settings.idempotence == "off":
            message = f"--id-field: log {log.name!r} has idempotence off, and takes no ids"
            raise InvalidArgument(message)
        total = self._total()
        self._is_remote = type(log) is not Log
        with log.writer(wait_s=wait_s) as self._writer, meter("appending", unit="bytes", total=total) as bar:
            for path, format in self._inputs:
                self._append_all(self._writer, path, format, bar)
        self._finished = True

    def _total(self) -> int | None:
        """Return the bytes there are to read, if that can be known."""
        paths = [path for path, _ in self._inputs]
        return None if STDIN in paths else sum(path.stat().st_size for path in paths)

    def _append_all(self, writer: Writer, path: Path, format: InputFormat, bar: Meter) -> None:
        source = "stdin" if path == STDIN else str(path)
        place = "line" if format in {"lines", "jsonl"} else "row"
        checked = place == "line"
        for batch in batches(path, format, self._fields):
            if not checked:
                _check_columns(writer, batch.records, source)
                checked = True
            for refusal in batch.refusals:
                self._refuse(source, place, refusal, "InvalidArgument")
            if batch.records.num_rows:
                for row, error in _append(writer, batch, self._tally):
                    self._refuse(source, place, Refusal(batch.places[row], str(error)), type(error).__name__)
            self._read_bytes += batch.size_bytes
            bar.to(self._read_bytes, self._counts(writer).attempts)

    def _counts(self, writer: Writer) -> Counts | _Tally:
        return self._tally if self._is_remote else writer.counts()

    def _refuse(self, source: str, place: str, refusal: Refusal, error: str) -> None:
        if error == IdConflict.__name__:
            self._conflicts += 1
        else:
            self._refused += 1
        self._tell(
            RefusedLine(
                source=source, place=place, number=refusal.place, error=error, reason=" ".join(refusal.reason.split())
            )
        )

    def summary(self, name: str) -> AppendSummary | None:
        """Return what was done so far; ``None`` when the command failed before it did anything."""
        if self._writer is None:
            return None
        counts = self._counts(self._writer)
        if not self._finished and not counts.attempts and not self._refused:
            return None
        seconds = (SYSTEM.elapsed_us() - self._started_us) / 1e6
        return AppendSummary(
            log=name,
            attempts=counts.attempts + self._refused,
            stored=counts.stored,
            duplicates=counts.duplicates,
            conflicts=counts.conflicts,
            refused=self._refused,
            forgotten=counts.forgotten,
            last_position=self._tally.last_position if self._is_remote else self._writer.last_position,
            seconds=round(seconds, 3),
            records_per_second=round(counts.attempts / seconds) if seconds else 0,
        )


def _check_columns(writer: Writer, records: pa.RecordBatch, source: str) -> None:
    """Refuse a file whose columns are not a log's, instead of each of its rows."""
    try:
        writer.append_arrow(records.slice(0, 0))
    except InvalidArgument as error:
        message = f"{source}: {error}; --value-field and --id-field name the columns to take"
        raise InvalidArgument(message) from error


def _append(writer: Writer, batch: SourceBatch, tally: _Tally) -> list[tuple[int, Any]]:
    """Append a batch, and count the answers; return the rows that were refused, with the error of each."""
    try:
        try:
            tally.add_columns(writer.append_arrow(batch.records))
        except InvalidArgument:
            # One bad row refuses the whole table: the others get in one by one.
            tally.add_results(writer.append_many([_record(row) for row in batch.records.to_pylist()]))
    except AppendErrors as errors:
        tally.add_results(errors.results)
        return [(row, result) for row, result in enumerate(errors.results) if isinstance(result, Exception)]
    return []


def records_of(path: Path, format: InputFormat | None) -> list[Record]:
    """Return all records of a file, or raise ``InvalidArgument`` for the first that is none."""
    fields = Fields(None, None)
    found: list[Record] = []
    for batch in batches(path, format or format_of(path, fields), fields):
        for refusal in batch.refusals:
            message = f"line {refusal.place}: {refusal.reason}"
            raise InvalidArgument(message)
        found += [_record(row) for row in batch.records.to_pylist()]
    return found


def _record(row: dict[str, Any]) -> Record:
    headers = row.get("headers")
    return Record(**row | {"headers": None if headers is None else dict(headers)})
