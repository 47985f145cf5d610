"""What users get wrong with the source and the sink, told before anything is read or written. No Spark is needed to see
it: it hands over options, columns and rows, and passes on what is said.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from oncelog.connect import connect
from oncelog.errors import InvalidArgument, OncelogError
from oncelog.log.log import Log
from oncelog.spark.connector.options import WriteOptions
from oncelog.spark.connector.sink import TaskMessage, check_rows
from oncelog.spark.connector.staging import Stager
from pyspark_oncelog import DefaultSource
from tests.log.ingest.adoption import adopt

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
        ({"url": ""}, "option url: missing.*of CREATE TABLE Spark hands no options on: CREATE TEMPORARY VIEW does"),
        ({"startingTimestamp": "yesterday"}, "must be milliseconds since 1970, or ISO 8601"),
        ({"startingTimestamp": "0", "startingOffsets": "0"}, "must not be given together"),
        ({"failOnDataLoss": "no"}, "must be true or false"),
        ({"endingTimestamp": "0", "endingOffsets": "0"}, "must not be given together"),
        ({"maxBytesPerTrigger": "some"}, "must be a number of bytes"),
        ({"subscribe": "orders"}, "is of another format; a log takes log"),
        ({"kafka.group.id": "x"}, "is of another format; a log takes url and log"),
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
            columns(value=BinaryType(), headers=MapType(StringType(), LongType())),
            "headers is map<string,bigint>, must be map<string,binary>, map<string,string>, or Kafka's array",
        ),
        (columns(value=BinaryType(), Sequence=StringType()), "Sequence is string, must be bigint or int or smallint"),
        (columns(value=BinaryType(), ID=LongType()), r"ID is bigint, must be string: select CAST\(id AS STRING\)"),
        (columns(value=BinaryType(), VALUE=BinaryType()), "value is there twice"),
        (StructType([StructField("value", BinaryType())] * 2), "value is there twice"),
        *(
            (StructType([StructField("value", BinaryType()), StructField(name, kind, nullable=False)]), said)
            for name, kind, said in (
                ("sequence", LongType(), "sequence is never null, and rows from Spark are deduplicated by id: drop it"),
                ("Producer", StringType(), "Producer is never null, and rows from Spark are deduplicated by id"),
            )
        ),
    ],
)
def test_columns_of_a_write(tmp_path: Path, given: StructType, message: str) -> None:
    """Missing, extra and wrong columns: one clear error, before a task has run."""
    for make in (source(tmp_path, {}).writer, source(tmp_path, {}).streamWriter):
        with pytest.raises(InvalidArgument, match=message):
            make(given, False)


def pairs(kind: DataType) -> DataType:
    """Return the type of Kafka's headers."""
    return ArrayType(StructType([StructField("key", StringType()), StructField("value", kind)]))


def test_columns_in_any_case_and_headers_of_other_kinds(tmp_path: Path, log: Log) -> None:
    """Names in any case, Kafka's list of headers and headers of text become those of the log; null stays null."""
    for kind in (pairs(BinaryType()), pairs(StringType()), MapType(StringType(), StringType())):
        given = columns(order_id=StringType(), Value=BinaryType(), HEADERS=kind)
        source(tmp_path, {"idColumn": "Order_ID"}).writer(given, overwrite=False)
    rows: list[Any] = [[("a", "1"), ("b", "")], None, []]
    spelled = [pa.array(rows, pa.map_(pa.string(), pa.string()))]
    for kind in (pa.string(), pa.binary()):
        listed = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in rows]
        spelled.append(pa.array(listed, pa.list_(pa.struct([("key", pa.string()), ("value", kind)]))))
    for number, headers in enumerate(spelled):
        options = WriteOptions(url=tmp_path.as_uri(), log="orders", id_column="order_id")
        ids = pa.array([f"{number}-{row}" for row in range(3)])
        batch = pa.RecordBatch.from_arrays([ids, pa.array([b"v"] * 3), headers], names=["Order_ID", "VALUE", "Headers"])
        whole = pa.concat_batches([batch, batch]).slice(3)  # a slice, as Arrow may hand over
        taken = Stager(log, options).stage(iter([whole]))
        assert taken.bad is None
        with log.writer() as writer:
            adopt(writer, taken.staged)
    assert [entry.headers or None for entry in log.read()] == [{"a": b"1", "b": b""}, None, None] * 3


def test_log_by_path(tmp_path: Path, log: Log) -> None:
    """``.load(path)`` names database and log; ``log`` may be named beside it."""
    for options in ({"path": f"{tmp_path.as_uri()}/orders/"}, {"path": tmp_path.as_uri(), "log": "orders"}):
        reader = DefaultSource(options).reader(columns(position=LongType()))
        assert [(part.start, part.end) for part in reader.partitions()] == [(0, 0)]  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgument, match="must end with the log's name"):
        DefaultSource({"path": "orders"}).schema()
    assert log.name == "orders"


def test_headers_may_be_left_out(tmp_path: Path) -> None:
    """Kafka's word for it; a user who names columns has those."""
    assert "headers" in source(tmp_path, {}).schema().fieldNames()
    assert "headers" not in source(tmp_path, {"includeHeaders": "false"}).schema().fieldNames()


def test_end_by_time(tmp_path: Path, log: Log) -> None:
    """Records at or after the moment are not read; a stream has no end."""
    with log.writer() as writer:
        for number in range(3):
            writer.append(b"v", id=str(number))
    times = [entry.timestamp for entry in log.read()]
    moment = times[2].isoformat()
    reader = source(tmp_path, {"endingTimestamp": moment}).reader(columns(position=LongType()))
    before = sum(each < times[2] for each in times)
    assert [(part.start, part.end) for part in reader.partitions()] == [(0, before)]  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgument, match="option endingTimestamp: a stream has no end"):
        source(tmp_path, {"endingTimestamp": moment}).streamReader(columns(position=LongType()))


def test_option_that_is_not_known_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It does nothing, and a message says so; those of Spark's own are not worth a word."""
    source(tmp_path, {"colour": "red", "checkpointLocation": "x", "storage.region": "y"}).schema()
    assert [record.getMessage() for record in caplog.records] == ["option colour is not known here, and does nothing"]


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
        check_rows([TaskMessage(1, "", taken)])


NOT_TEXT = pa.array([b"\xffa"], pa.binary()).view(pa.string())
KAFKA = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": NOT_TEXT}, r"column id: not a valid string: .*; the row: value=b'v', id=b'\\xffa'"),
        ({"type": NOT_TEXT}, r"column type: not a valid string"),
        ({"headers": pa.array([[("k", b"1")]], pa.map_(pa.string(), pa.binary()))}, None),
        ({"headers": pa.MapArray.from_arrays([0, 1], NOT_TEXT, [b"1"])}, r"column headers: .*headers='not UTF-8'"),
        ({"headers": pa.array([[("k", b"1")]], KAFKA)}, None),
        ({"headers": pa.array([[("k", b"1"), (None, b"2")]], KAFKA)}, r"column headers: a header has no name"),
        ({"headers": pa.array([[None]], KAFKA)}, r"column headers: a header has no name"),
    ],
)
def test_texts_of_spark_that_are_none(log: Log, columns: dict[str, pa.Array], message: str | None) -> None:
    """A STRING of Spark's may hold any bytes, and Kafka's headers may lack a name: an error of Python's or of Arrow's
    named neither column nor row, and Spark tried the task again.
    """
    good = pa.record_batch(
        {"value": pa.array([b"u"] * 2, pa.binary())} | {k: pa.nulls(2, v.type) for k, v in columns.items()}
    )
    bad = pa.record_batch({"value": pa.array([b"v"], pa.binary())} | columns)
    batches = [bad] if "id" in columns else [good, bad]
    taken = Stager(log, WriteOptions(url="", log="orders")).stage(iter(batches))
    if message is None:
        assert taken.bad is None
        return
    with pytest.raises(InvalidArgument, match=rf"partition 1, row {2 * len(batches) - 2}, {message}"):
        check_rows([TaskMessage(1, "", taken)])


@pytest.mark.parametrize("name", ["sequence", "producer"])
def test_rows_of_a_producer(log: Log, name: str) -> None:
    """A column that may be null has a value in one row: only its task can see that, and nothing is written."""
    kind: pa.DataType = pa.int64() if name == "sequence" else pa.string()
    empty = pa.record_batch({"value": pa.array([b"a"], pa.binary()), name: pa.nulls(1, kind)})
    assert Stager(log, WriteOptions(url="", log="orders")).stage(iter([empty])).bad is None
    one = pa.array([7] if name == "sequence" else ["p"], kind)
    bad = pa.record_batch({"value": pa.array([b"b"], pa.binary()), name: one})
    taken = Stager(log, WriteOptions(url="", log="orders")).stage(iter([empty, bad]))
    with pytest.raises(
        InvalidArgument, match=r"and nothing was: partition 1.*only the log's writer can hold sequences"
    ):
        check_rows([TaskMessage(1, "", taken)])
