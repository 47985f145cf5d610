"""Which files of a source Spark has taken, by its own notes.

Spark notes each file that it takes, with the time of its last change, in its checkpoint. So files that were not taken
are known, files that were replaced under the same name since: Spark does not read those again; and which files a batch
has: Spark leaves out files that are gone, without an error. The plan of a batch tells which files Spark left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

import msgspec

from oncelog.errors import CorruptionError
from oncelog.shapes import UNREADABLE
from oncelog.spark.pipeline import spec
from oncelog.spark.pipeline.rows import source_files, vanished_files
from oncelog.spark.pipeline.spec import FILE_FORMATS, Spec
from oncelog.spark.reading import bytes_of
from oncelog.storage.bucket.paths import plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_TAKEN, _OFFSETS, _QUERY = "into-log/sources/0", "into-log/offsets", "into-log/metadata"
_VERSION = re.compile(rb"v\d+")


class TakenFiles(msgspec.Struct, frozen=True):
    """Files of a source: how many were taken, which wait, and which were replaced after they were taken.

    ``passed_over`` are files that Spark does not list: those in a folder inside of the source that is no partition, and
    those whose name is not UTF-8. ``vanished`` are files that Spark took, and that were gone when they were to be read.
    """

    taken: int
    waiting: tuple[str, ...]
    replaced: tuple[str, ...]
    passed_over: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()


class _Taken(msgspec.Struct):
    path: str
    timestamp: int
    batchId: int  # noqa: N815 (Spark's)


class _Offset(msgspec.Struct):
    logOffset: int  # noqa: N815 (Spark's)


class _Query(msgspec.Struct):
    id: str


def files(given: Spec) -> TakenFiles | None:
    """Return which files of a source were taken, wait, or were replaced; ``None`` where that cannot be told."""
    source, checkpoint = given.source, spec.local_path(given.checkpoint)
    path = spec.local_path(source.path) if source.path is not None else None
    if path is None or checkpoint is None or not source.is_streaming or source.format.lower() not in FILE_FORMATS:
        return None
    vanished = vanished_files.known(given)
    taken: dict[str, int | None] = {**_taken(checkpoint / _TAKEN), **vanished}
    waiting, replaced, passed_over = [], [], []
    for found in source_files.listed(path, source_files.option(given, "pathGlobFilter")):
        known = taken.get(found)
        if known is None and _is_passed_over(given, path, found):
            passed_over.append(os.fsencode(found).decode(errors="backslashreplace"))
        elif known is None:
            waiting.append(found)
        elif known != os.stat(found).st_mtime_ns // 1_000_000:  # noqa: PTH116 (a text is what is compared)
            replaced.append(found)
    away = set(vanished_files.away(given)).difference(waiting)
    return TakenFiles(len(taken), *(tuple(sorted(names)) for names in (waiting, replaced, passed_over, away)))


def of_batch(given: Spec, batch: int, spark: SparkSession) -> set[str]:
    """Return the files that Spark took for a batch; nothing if they are not known."""
    if given.source.path is None or given.source.format.lower() not in FILE_FORMATS:
        return set()
    first = _offset(given, batch - 1, spark) + 1 if batch else 0
    wanted = range(first, _offset(given, batch, spark) + 1)
    checkpoint = spec.local_path(given.checkpoint)
    if checkpoint is None:
        place = f"{given.checkpoint}/{_TAKEN}"
        names = map(Path, spark.read.text(f"{place}/[0-9]*").inputFiles())
        noted = _decoded(place, _elsewhere(spark, *(f"{place}/{one.name}" for one in names if _number(one) >= first)))
    else:
        notes = [note for note in (checkpoint / _TAKEN).glob("[0-9]*") if _number(note) >= first]
        noted = [one for note in notes for one in _noted(note)]
    return {name(one.path) for one in noted if one.batchId in wanted}


def listed(query: StreamingQuery, spark: SparkSession, given: Spec) -> set[str]:
    """Return the files that Spark has found, and reads, of those that it took for the batch which a query is at.

    Spark lists the files of a batch once more when it plans the batch, and leaves out those that are gone. Where a
    source has folders such as ``day=1``, Spark takes a file that is in none of them, and does not read it; it fails for
    a batch of such files alone.
    """
    asked, jvm = cast("Any", query)._jsq, cast("Any", spark)._jvm  # noqa: SLF001 (Spark has no other way)
    leaves = asked.streamingQuery().lastExecution().logical().collectLeaves()
    found = [leaf for leaf in map(leaves.apply, range(leaves.size())) if leaf.isStreaming() and _is_files(leaf)]
    arrays = [leaf.relation().location().inputFiles() for leaf in found]
    texts = [jvm.scala.collection.mutable.ArraySeq.make(array).mkString("\n") for array in arrays]  # one call for all
    names = {name(url) for text in texts for url in text.split("\n") if url}
    if not any(leaf.relation().partitionSchema().nonEmpty() for leaf in found):
        return names
    root = source_files.root(given)
    return {one for one in names if "=" in os.path.dirname(one.removeprefix(root))}  # noqa: PTH120 (a text is given)


def _is_files(leaf: Any) -> bool:
    return bool(leaf.getClass().getSimpleName() == "LogicalRelation")


def missing(files: Iterable[str]) -> set[str]:
    """Return which files of this machine are not there now."""
    return {file for file in files if file.startswith("/") and not Path(file).exists()}


def is_empty(given: Spec, file: str, spark: SparkSession) -> bool:
    """Tell whether a file is there and has no bytes. Spark takes such a file, and never reads it."""
    if not file.startswith("/"):
        scheme = (given.source.path or "").partition("://")[0]
        return _is_empty_elsewhere(re.sub("^s3(?=:)", scheme, file) if scheme in {"s3a", "s3n"} else file, spark)
    try:
        return os.stat(file).st_size == 0  # noqa: PTH116 (a text is what is given)
    except OSError:
        return False


def _is_empty_elsewhere(url: str, spark: Any) -> bool:
    """Ask Spark's file systems about a file. The file is not empty if they cannot tell: it is missed then."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415 (as in session)

    try:
        path = spark._jvm.org.apache.hadoop.fs.Path(url)  # noqa: SLF001 (Spark has no other way)
        status = path.getFileSystem(spark._jsc.hadoopConfiguration()).getFileStatus(path)  # noqa: SLF001 (as above)
        return bool(status.getLen() == 0)
    except Py4JJavaError:
        return False


def query_of(given: Spec) -> str:
    """Return the id of the query that Spark's notes are of."""
    checkpoint = spec.local_path(given.checkpoint)
    assert checkpoint is not None
    try:
        return msgspec.json.decode((checkpoint / _QUERY).read_bytes(), type=_Query).id
    except (*UNREADABLE, FileNotFoundError) as error:
        message = f"{checkpoint / _QUERY}: Spark's note on its query cannot be understood: {error}"
        raise CorruptionError(message) from error


def _offset(given: Spec, batch: int, spark: SparkSession) -> int:
    """Return up to which of its notes of files Spark went with a batch."""
    path = f"{given.checkpoint}/{_OFFSETS}/{batch}"
    local = spec.local_path(path)
    try:
        lines = _elsewhere(spark, path) if local is None else local.read_bytes().split(b"\n")
        return msgspec.json.decode(lines[2], type=_Offset).logOffset
    except (*UNREADABLE, IndexError) as error:
        message = f"{path}: cannot be understood, so that it is not known which files batch {batch} has: {error}"
        raise CorruptionError(message) from error


def _is_passed_over(given: Spec, path: Path, file: str) -> bool:
    """Tell whether Spark does not list a file."""
    if not _is_utf8(file):
        return True
    inner = Path(file).parts[len(path.parts) : -1]
    everywhere = source_files.is_set(given, "recursiveFileLookup") or "**" in path.parts
    return bool(inner) and "=" not in inner[0] and not everywhere


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _taken(folder: Path) -> dict[str, int]:
    """Return the files that Spark took, with their times in milliseconds; the newest note of a file counts."""
    notes = sorted(folder.glob("[0-9]*"), key=_number)
    return {name(one.path): one.timestamp for note in notes for one in _noted(note)}


def _number(note: Path) -> int:
    """Return the number of a note; one with those of many batches has the number of the last of them."""
    number = note.name.partition(".")[0]
    if not number.isascii() or not number.isdecimal():
        message = f"{note}: not a note of Spark's on files that it took: remove it"
        raise CorruptionError(message)
    return int(number)


def _noted(note: Path) -> list[_Taken]:
    return _decoded(str(note), note.read_bytes().split(b"\n"))


def _decoded(place: str, lines: Iterable[bytes]) -> list[_Taken]:
    """Return what is noted in lines. Some of them are empty, or say the version of the notes."""
    try:
        return [msgspec.json.decode(line, type=_Taken) for line in lines if line and not _VERSION.fullmatch(line)]
    except UNREADABLE as error:
        message = f"{place}: not a note of Spark's on files that it took ({error})"
        raise CorruptionError(message) from error


def _elsewhere(spark: SparkSession, *paths: str) -> list[bytes]:
    """Return the lines of files that only Spark may reach."""
    lines = spark.read.text(list(paths)).selectExpr("CAST(value AS BINARY) AS line")
    return [bytes(row.line) for row in lines.collect()]


def name(url: str) -> str:
    """Return the name of a file by its URL, in which Spark escapes names: of one on this machine, its path.

    >>> name("file:///in/100%2541.json"), name("s3a://shop/a%20b.json")
    ('/in/100%41.json', 's3://shop/a b.json')
    """
    path = unquote(urlsplit(url).path)
    return path if urlsplit(url).scheme in {"", "file"} else plain(unquote(url))


def local_name(path: str) -> str:
    """Return the name of a file by its path in a row of Spark's, in which nothing is escaped."""
    return str(bytes_of.local(path)) if path.startswith("file:") else path
