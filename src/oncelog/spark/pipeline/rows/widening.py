"""A schema that widens: columns that later files add become columns, and each change is a version that is recorded.

Only changes under which a record that is sent again stays the same bytes: a new column, also inside of a struct, and a
larger type of integers. A number that becomes a fraction or a text would be written differently, and its retry would be
a conflict; such values stay in ``_rescued``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq

from oncelog.errors import InvalidArgument
from oncelog.spark.pipeline.rows import plain_types, source_files, taken_files
from oncelog.spark.pipeline.spec import Spec
from oncelog.spark.pipeline.whole_file import write_whole
from oncelog.spark.reading import bytes_of

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

    from oncelog.spark.reading.reader import Sums

SCHEMA_FILE, VERSIONS_FILE = "schema.json", "schemas.jsonl"
_WHOLE = ("tinyint", "smallint", "int", "bigint")


class SchemaVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a pipeline's schema: what changed against the one before, when, and the whole of it."""

    version: int
    at_us: int
    changes: tuple[str, ...]
    schema: dict[str, Any]


def merged(known: StructType, found: StructType, within: str = "") -> tuple[StructType, list[str]]:
    """Return a schema with what another one adds, and what that is, in words."""
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 (as in session)

    fields: list[StructField] = []
    changes: list[str] = []
    others = {field.name: field.dataType for field in found.fields}
    for field in known.fields:
        kind, more = _wider(field.dataType, others.get(field.name, field.dataType), f"{within}{field.name}")
        fields.append(StructField(field.name, kind, field.nullable))
        changes += more
    present = {field.name for field in known.fields}
    for field in found.fields:
        if field.name not in present:
            fields.append(StructField(field.name, field.dataType, nullable=True))
            changes.append(f"{within}{field.name} {field.dataType.simpleString()} is new")
    return StructType(fields), changes


def _wider(known: DataType, found: DataType, name: str) -> tuple[DataType, list[str]]:
    from pyspark.sql.types import ArrayType, StructType  # noqa: PLC0415 (as in session)

    if isinstance(known, StructType) and isinstance(found, StructType):
        return merged(known, found, f"{name}.")
    if isinstance(known, ArrayType) and isinstance(found, ArrayType):
        kind, changes = _wider(known.elementType, found.elementType, name)
        return ArrayType(kind, known.containsNull), changes
    before, after = known.simpleString(), found.simpleString()
    if before in _WHOLE and after in _WHOLE and _WHOLE.index(after) > _WHOLE.index(before):
        return found, [f"{name} {before} becomes {after}"]
    return known, []


def schema(spark: SparkSession, given: Spec, known: StructType | None, found: Accumulator[Sums]) -> StructType:
    """Return the schema to read with: the one that is known, with what files that were not read yet add to it."""
    files = taken_files.files(given)
    waiting = None if files is None else files.waiting
    new = None if waiting is not None and not waiting else _of_files(spark, given, waiting, found)
    if new is None and known is None:
        message = f"{given.source.path}: there are no files yet to take the columns from: write source.schema"
        raise InvalidArgument(message)
    if known is None or new is None:
        return known or new  # type: ignore[return-value]  # one of them is there
    return merged(known, new)[0]


def _of_files(spark: SparkSession, given: Spec, waiting: Sequence[str] | None, found: Accumulator[Sums]) -> StructType:
    """Return the columns of files; of all that there are if it is not known which were read."""
    kind = given.source.format.lower()
    own = {name: str(value) for name, value in given.source.options.items() if name not in source_files.LISTING}
    if kind == "json":
        lines: Any = source_files.texts(spark, given, found, waiting).rdd.map(_first)
        return spark.read.options(**own).json(lines).schema
    if kind == "parquet" and waiting is not None:
        return _footers(waiting)
    if kind == "csv" and waiting is not None:
        return _headers(given, waiting)
    reader: Any = spark.read.format(kind).options(**own)
    if kind == "parquet":
        reader = reader.option("mergeSchema", "true")
    return plain_types.plain(reader.load(given.source.path), given.source.path).schema


def _first(row: Any) -> Any:
    return row[0]


def _footers(files: Iterable[str]) -> StructType:
    """Return the columns of Parquet files. A file that cannot be read is rejected by the run, with its reason."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 (as in session)
    from pyspark.sql.types import StructType  # noqa: PLC0415 (as in session)

    whole = StructType([])
    for file in files:
        try:
            whole = merged(whole, from_arrow_schema(pq.read_schema(file)))[0]
        except (*bytes_of.DAMAGED, TypeError):
            continue
    return whole


def _headers(given: Spec, files: Iterable[str]) -> StructType:
    """Return the columns that the headers of CSV files name, all of them text."""
    from pyspark.sql.types import StringType, StructField, StructType  # noqa: PLC0415 (as in session)

    dialect = source_files.dialect(given)
    names: dict[str, None] = {}
    for file in files if dialect.header else ():
        try:
            with Path(file).open("rb") as opened:
                lines = bytes_of.lines(bytes_of.opened(opened), source_files.encoding(given))
                first = next(iter(lines), [b""])[0].decode()
            cells = next(csv.reader([first], delimiter=dialect.sep, quotechar=dialect.quote or None), [])
        except (*bytes_of.DAMAGED, UnicodeError, csv.Error):
            continue
        names |= dict.fromkeys(cell.strip() for cell in cells if cell.strip())
    return StructType([StructField(name, StringType()) for name in names])


def keep(folder: Path, known: StructType | None, now: StructType, at_us: int) -> list[str]:
    """Note a schema for the next run, with a version for what changed; return what that is."""
    changes = [] if known is None else merged(known, now)[1]
    if known is not None and not changes:
        return []
    path = folder / VERSIONS_FILE
    noted = path.read_bytes() if path.exists() else b""
    number = noted.count(b"\n") + 1
    version = SchemaVersion(version=number, at_us=at_us, changes=tuple(changes), schema=msgspec.json.decode(now.json()))
    write_whole(path, noted + msgspec.json.encode(version) + b"\n")
    write_whole(folder / SCHEMA_FILE, now.json().encode())
    return changes
