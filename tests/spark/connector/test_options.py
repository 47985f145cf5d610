"""What users get wrong with the source and the sink, told before anything is read or written. No Spark is needed to see
it: it hands over options, columns and rows, and passes on what is said.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, MapType, StringType, StructField, StructType

from oncelog.connect import connect
from oncelog.errors import InvalidArgument, OncelogError
from oncelog.log.log import Log
from oncelog.spark.connector.options import WriteOptions
from oncelog.spark.connector.sink import Message, check_rows
from oncelog.spark.connector.staging import Stager
from pyspark_oncelog import DefaultSource

ROW = {"id": StringType(), "value": BinaryType()}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return an empty log of orders."""
    return connect(tmp_path.as_uri()).log("orders", create=True)


def columns(**kinds: DataType) -> StructType:
    """Return columns as Spark hands them over."""
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def source(folder: Path, options: dict[str, str]) -> DefaultSource:
    """Return the data source as Spark makes it of options."""
    return DefaultSource({"url": folder.as_uri(), "log": "orders"} | options)


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, "option startingoffset: unknown option; did you mean startingOffsets"),
        ({"startingOffsets": "first"}, "must be earliest, latest or a position"),
        ({"endingOffsets": "earliest"}, "must be latest or a position"),
        ({"minPartitions": "0"}, "must be a whole number from 1 on"),
        ({"columns": "id,nothing"}, "no column 'nothing'"),
        ({"url": ""}, "option url: missing"),
        ({"startingTimestamp": "yesterday"}, "must be milliseconds since 1970, or ISO 8601"),
        ({"startingTimestamp": "0", "startingOffsets": "0"}, "must not be given together"),
        ({"failOnDataLoss": "no"}, "must be true or false"),
    ],
)
def test_options_of_a_read(tmp_path: Path, options: dict[str, str], message: str) -> None:
    """Each is refused by name, with what it must be."""
    with pytest.raises(InvalidArgument, match=message):
        source(tmp_path, options).schema()


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"onConflict": "ignore"}, "must be quarantine, error or original"),
        ({"onReplay": "maybe"}, "must be error, skip or ids"),
        ({"on_conflict": "error"}, "did you mean onConflict"),
        ({"idColumn": "nothing"}, "nothing is missing, and idColumn names it"),
        ({"idColumn": "id", "ids": "content"}, "must not be given with ids=content"),
        ({"log": "nothing"}, "there is no log 'nothing'"),
        ({"writerWaitSeconds": "soon"}, "must be a number of seconds"),
        ({"producer": "nightly"}, "producer and batchId"),
    ],
)
def test_options_of_a_write(tmp_path: Path, options: dict[str, str], message: str) -> None:
    """Each is refused by name, with what it must be."""
    with pytest.raises(OncelogError, match=message):
        source(tmp_path, options).writer(columns(**ROW), overwrite=False)


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (columns(id=StringType()), "value is missing, must be binary or string"),
        (columns(value=IntegerType()), "value is int, must be binary or string"),
        (columns(value=BinaryType(), id=IntegerType()), "id is int, must be string"),
        (
            columns(value=BinaryType(), colour=StringType(), position=LongType()),
            r"colour is unknown: .*; position is assigned by the log",
        ),
        (
            columns(value=BinaryType(), headers=MapType(StringType(), StringType())),
            "headers is map<string,string>, must be map<string,binary>",
        ),
        (StructType([StructField("value", BinaryType())] * 2), "value is there twice"),
    ],
)
def test_columns_of_a_write(tmp_path: Path, given: StructType, message: str) -> None:
    """Missing, extra and wrong columns: one clear error, before a task has run."""
    for make in (source(tmp_path, {}).writer, source(tmp_path, {}).streamWriter):
        with pytest.raises(InvalidArgument, match=message):
            make(given, False)


@pytest.mark.parametrize(
    ("id", "value", "message"),
    [
        (None, b"v", "column id: is null, must have an id"),
        ("x" * 256, b"v", r"column id: has 256 bytes, must have 1 to 255; the row: id='xxx"),
        ("", b"v", "column id: has 0 bytes, must have 1 to 255"),
        ("id-7", None, r"column value: is null, must have a value; the row: id='id-7'"),
        ("id-7", b"x" * 16_777_217, "column value: has 16777217 bytes"),
    ],
)
def test_rows_of_a_write(log: Log, id: str | None, value: bytes | None, message: str) -> None:
    """One error that names column, rule and a sample, wherever among the batches of a task the row is."""
    good = pa.record_batch({"id": ["a", "b"], "value": pa.array([b"", b""], pa.binary())})
    bad = pa.record_batch({"id": pa.array(["c", id]), "value": pa.array([b"", value], pa.binary())})
    taken = Stager(log, WriteOptions(url="", log="orders")).stage(iter([good, good.slice(0, 0), bad, good]))
    with pytest.raises(
        InvalidArgument, match=rf"rows cannot be written, and nothing was: partition 1, row 3, {message}"
    ):
        check_rows([Message(1, "", taken)])
