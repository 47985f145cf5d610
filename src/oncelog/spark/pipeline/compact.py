"""Putting the small files of a pipeline's sink together, while no run of the pipeline adds to them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyarrow import orc

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument, Unsupported
from oncelog.spark.pipeline import lease, spec
from oncelog.spark.pipeline.rows import frames
from oncelog.spark.pipeline.spec import FILE_FORMATS, SinkSpec, Spec
from oncelog.spark.session import session
from oncelog.spark.sinks import compaction
from oncelog.spark.sinks.compaction import TARGET_BYTES, Alike, Compacted, Merge
from oncelog.spark.sinks.folder import Folder, cleaned, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LINES = ("csv", "json", "text")
"""Formats whose files are one behind the other."""


def compact(
    given: Spec,
    clock: Clock,
    spark: SparkSession | None = None,
    *,
    target_bytes: int = TARGET_BYTES,
    wait_s: float = 0.0,
) -> Compacted:
    """Put small files of the sink together. ``LogBusy``, which says who runs, if a run does not end in ``wait_s``."""
    sink = given.sink
    if sink is None or sink.path is None or sink.format.lower() not in FILE_FORMATS:
        message = (
            "only a sink of files (parquet, orc, json, csv, text) is compacted here; Delta and Iceberg do so themselves"
        )
        raise InvalidArgument(message)
    found = table(sink.path, spec.local_path(sink.path), clock)
    with lease.held(given, clock, wait_s), tempfile.TemporaryDirectory(prefix="oncelog-compact-") as scratch:
        Folder(found, clock).finish()
        place = compaction.place_of(found, clock)
        if sink.format.lower() in _LINES:
            alike, merge = _of_lines(sink)
            return compaction.compact(place, clock, Path(scratch), alike, merge, target_bytes)
        with _session(given, spark) as running:
            merge = partial(_merged, running, sink)
            return compaction.compact(place, clock, Path(scratch), _columns(sink), merge, target_bytes)


def _of_lines(sink: SinkSpec) -> tuple[Alike, Merge]:
    """Return how files of lines are put together: as they are, but for the headers of CSV."""
    options = {name.lower(): str(value).lower() for name, value in sink.options.items()}
    if sink.format.lower() != "csv" or options.get("header") != "true":
        return (lambda _: None), compaction.concatenated
    if options.get("compression", "none") not in {"none", "uncompressed"}:
        message = "files of CSV that are compressed, and have headers, cannot be put together: leave one of the two out"
        raise Unsupported(message)
    return compaction.first_line, partial(compaction.concatenated, header=True)


def _columns(sink: SinkSpec) -> Alike:
    """Return a key for the columns of a file. Files with other columns are not merged: Spark would drop a column."""
    if sink.format.lower() == "parquet":
        return lambda path: str(pq.read_schema(path))
    return lambda path: str(orc.ORCFile(path).schema)


def _merged(spark: SparkSession, sink: SinkSpec, files: Sequence[Path], target: Path) -> None:
    """Have Spark write the rows of files into one, in the form that it wrote them in."""
    reader: Any = spark.read.format(sink.format).option("recursiveFileLookup", "true")
    rows = reader.load([str(file) for file in files])
    folder = target.with_name(f"{target.name}.parts")
    rows.coalesce(1).write.options(**frames.options(sink.options)).format(sink.format).save(str(folder))
    (name,) = cleaned(folder)
    (folder / name).rename(target)


@contextmanager
def _session(given: Spec, spark: SparkSession | None) -> Iterator[SparkSession]:
    """Yield the session that was given, or one of this machine: the files are on this machine."""
    quiet = Path(os.devnull)
    running = spark or session.start(given.name, "local[*]", given.run.conf, given.run.packages, log_file=quiet)
    try:
        yield running
    finally:
        if spark is None:
            running.stop()
