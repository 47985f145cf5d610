"""What a task does: check its rows, stage them as files, and say so in one message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.dedup.content import content_ids
from oncelog.errors import InvalidArgument
from oncelog.format import intake
from oncelog.log.adoption import Staged
from oncelog.log.log import Log
from oncelog.spark.options import WriteOptions

FILE_BYTES = 48 << 20
"""How much of a task's rows go into one file. A file that is made and one that is gathered are held in memory."""

SAMPLE_CHARACTERS = 80


class BadRows(msgspec.Struct, frozen=True, kw_only=True):
    """The first row of a task that cannot be written: its number, what is wrong with which column, and what it says."""

    row: int
    rule: str
    sample: str


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What a task has staged, or why it has not."""

    staged: tuple[Staged, ...] = ()
    bad: BadRows | None = None


class Stager:
    """Stages the rows of one task: while a file is made and stored, the rows of the next are gathered."""

    def __init__(self, log: Log, options: WriteOptions) -> None:
        self._log = log
        self._log_id = log.log_id
        self._options = options

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Taken:
        """Stage all rows, in files of a bounded size. A bad row is no reason to try the task again: it is told."""
        staged: list[Staged] = []
        with ThreadPoolExecutor(1, "oncelog-staging") as thread:
            under_way: Future[Staged | BadRows] | None = None
            for first_row, part in _parts(batches, FILE_BYTES):
                next_one = thread.submit(self._stage, first_row, part)
                done = under_way.result() if under_way is not None else None
                under_way = next_one
                if isinstance(done, BadRows):
                    return Taken(bad=done)
                staged += [done] if done is not None else []
            last = under_way.result() if under_way is not None else None
        if isinstance(last, BadRows):
            return Taken(bad=last)
        return Taken(staged=(*staged, *([last] if last is not None else [])))

    def _stage(self, first_row: int, batches: Sequence[pa.RecordBatch]) -> Staged | BadRows:
        """Stage rows as one file, or say which of them is bad."""
        row, current = first_row, batches[0]

        def tables() -> Iterator[pa.RecordBatch]:
            nonlocal row, current
            for batch in batches:
                current = self._named(batch)
                self._check_ids(current)
                yield self._with_content_ids(current)
                row += batch.num_rows

        try:
            return self._log.stage(tables())
        except InvalidArgument as error:
            return _bad(current, row, error)

    def _with_content_ids(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._options.ids != "content":
            return batch
        payload = intake.normalise(batch)
        return payload.add_column(1, "id", content_ids(self._log_id, payload))

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return Spark's columns as those of a log."""
        columns, names = [], []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name == "value" and not pa.types.is_binary(column.type):
                column = column.cast(pa.binary())  # noqa: PLW2901
            columns.append(column)
            names.append("id" if name == self._options.id_column else name)
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _check_ids(self, named: pa.RecordBatch) -> None:
        """Refuse a null among ids: every replay that the mark does not catch would write that row again."""
        if self._options.ids == "content" or "id" not in named.schema.names:
            return
        ids = named.column("id")
        if ids.null_count:
            row = int(pc.index(ids.is_null(), pa.scalar(value=True)).as_py())
            rule = "is null, must have an id (leave the column out for rows without ids)"
            raise intake.refused("id", row, rule)  # noqa: EM101


def _parts(batches: Iterator[pa.RecordBatch], size_bytes: int) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Yield rows in parts of about so many bytes, with the number of each part's first row."""
    part: list[pa.RecordBatch] = []
    first_row = part_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        part.append(batch)
        part_bytes += batch.nbytes
        if part_bytes >= size_bytes:
            yield first_row, part
            first_row += sum(each.num_rows for each in part)
            part, part_bytes = [], 0
    if part:
        yield first_row, part


def _bad(batch: pa.RecordBatch, first_row: int, error: InvalidArgument) -> BadRows:
    rule = str(error) if error.column is None else f"column {error.column}: {error.rule}"
    if error.row is None:
        return BadRows(row=first_row, rule=rule, sample="")
    values = {name: batch.column(name)[error.row].as_py() for name in batch.schema.names}
    sample = ", ".join(f"{name}={_short(value)}" for name, value in values.items() if value is not None)
    return BadRows(row=first_row + error.row, rule=rule, sample=sample)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SAMPLE_CHARACTERS else f"{text[:SAMPLE_CHARACTERS]}…"
