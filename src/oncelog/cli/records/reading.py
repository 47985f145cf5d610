"""``oncelog log cat`` and ``tail``: from a log to files, pipes and eyes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

from oncelog import Entry, InvalidArgument
from oncelog.cli.records.sinks import (
    ArrowSink,
    JsonLines,
    ParquetSink,
    People,
    RawValues,
    RowSink,
    RowSpelling,
    Sink,
    Text,
    columns_of_entries,
    format_of,
    replacing,
)
from oncelog.cli.terminal.options import OutputFormat, RowFormat
from oncelog.cli.terminal.output import meter
from oncelog.cli.terminal.quantities import Start
from oncelog.log.log import Log

_FLUSH_RECORDS = 1000


def position_of(log: Log, start: Start) -> int:
    """Return the position of a place: of the first record there or, when there is none yet, of the next to come."""
    if isinstance(start, int):
        return start
    if start == "earliest":
        return log.info().first_position
    return log.position_at(start)


def columns_of(text: str | None) -> tuple[str, ...] | None:
    """Return the names in a comma-separated list; ``InvalidArgument`` if one is there twice."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if names.count(name) > 1:
            message = f"--columns: {name!r} is there {names.count(name)} times, name it once"
            raise InvalidArgument(message)
    return names


def cat(
    log: Log,
    begin: Start,
    end: Start | None,
    limit: int | None,
    *,
    format: OutputFormat | None,
    columns: Sequence[str] | None,
    output: Path | None,
) -> int:
    """Write records to stdout, or to a file that is there only when it is whole; return how many."""
    chosen = format or format_of(output)
    first = position_of(log, begin)
    last = log.info().last_position + 1
    until = last if end is None else min(last, position_of(log, end))
    count = max(0, until - first) if limit is None else min(limit, max(0, until - first))
    log.read_arrow(first, limit=0, columns=columns)  # a bad start or column is an error before a file is made
    with replacing(output) if output is not None else nullcontext(sys.stdout.buffer) as out:
        sink = _sink(out, chosen, columns, to_file=output is not None)
        return _copy(log, first, count, sink, hidden=output is None and sys.stdout.isatty())


def _sink(out: BinaryIO, format: OutputFormat, columns: Sequence[str] | None, *, to_file: bool) -> Sink:
    if format == "arrow" or format == "parquet":  # noqa: PLR1714 (a set would not narrow the type)
        if not to_file and sys.stdout.isatty():
            message = f"{format} is not for a terminal: name a file with --output, or pipe it on"
            raise InvalidArgument(message)
        return ArrowSink(out, columns, stream=not to_file) if format == "arrow" else ParquetSink(out, columns)
    return RowSink(out, rows_of(format, columns, to_file=to_file))


def rows_of(format: RowFormat, columns: Sequence[str] | None, *, to_file: bool = False) -> RowSpelling:
    """Return what spells rows out in a format."""
    if format == "jsonl":
        return JsonLines(columns)
    if format == "raw":
        if columns is not None:
            message = "--columns: raw is the values and nothing else"
            raise InvalidArgument(message)
        return RawValues(terminal=not to_file and sys.stdout.isatty())
    if to_file or not sys.stdout.isatty():
        return Text(columns)
    console = Console()
    return People(columns, colours=console.color_system is not None and not console.no_color)


def _copy(log: Log, first: int, count: int, sink: Sink, *, hidden: bool) -> int:
    """Copy the records at so many positions; return how many there are."""
    done = 0
    with meter("reading", total=count, hidden=hidden) as bar:
        if count:
            for batch in log.read_arrow(first, limit=count, columns=sink.names):
                sink.write(batch)
                done += batch.num_rows
                bar.to(done, done)
        sink.finish()
    return done


def tail(log: Log, begin: Start | None, last: int, limit: int | None, rows: RowSpelling, *, follow: bool) -> None:
    """Write the newest records, or those from a place on; with ``follow`` also those to come, as they come."""
    if begin is None:
        info = log.info()
        begin = max(info.first_position, info.last_position + 1 - last)
    if follow:
        _follow(log, begin, limit, rows)
        return
    entries = iter(log.read(begin, limit=limit))
    while some := list(islice(entries, _FLUSH_RECORDS)):
        _write(rows, some)


def _write(rows: RowSpelling, entries: Sequence[Entry]) -> None:
    sys.stdout.buffer.write(rows.spell(columns_of_entries(entries, rows.names)))
    sys.stdout.buffer.flush()


def _follow(log: Log, begin: Start, limit: int | None, rows: RowSpelling) -> None:
    left = limit
    with log.tail(begin) as entries:
        while left is None or left > 0:
            first = entries.poll(timeout_s=1.0)
            if first is None:
                continue
            ready = [first]
            while len(ready) < min(_FLUSH_RECORDS, left or _FLUSH_RECORDS) and (more := entries.poll()) is not None:
                ready.append(more)
            _write(rows, ready)
            left = None if left is None else left - len(ready)
