"""Files of others: a crafted one is refused before anything looks into it, and no small one fills the memory."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog import Database
from oncelog.cli.records import sources
from oncelog.cli.records.sources import Fields, batches
from oncelog.errors import InvalidArgument
from oncelog.limits import INPUT_BATCH_BYTES_MAX, VALUE_BYTES_MAX
from tests.cli.conftest import Call
from tests.cli.shell import shell

ROWS = 1_000
VALUES = [f"value-{row:04d}".encode() for row in range(ROWS)]
FAR = 1 << 30


def table(**columns: Any) -> pa.RecordBatch:
    """Return a batch of rows that a log takes."""
    return pa.record_batch({"value": pa.array(VALUES, pa.binary()), **columns})


def arrow_file(batch: pa.RecordBatch, *, as_file: bool = True, **options: Any) -> bytes:
    """Return a batch as an Arrow file, or stream."""
    sink = io.BytesIO()
    make = pa.ipc.new_file if as_file else pa.ipc.new_stream
    with make(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def crafted(data: bytes, width: int = len(VALUES[0])) -> bytes:
    """Return a file in which one offset of the values lies far outside of them, and the others are as they were."""
    marks = struct.pack("<3i", 10 * width, 11 * width, 12 * width)
    assert data.count(marks) == 1, "the offsets are there once"
    return data.replace(marks, struct.pack("<3i", 10 * width, FAR, 12 * width))


@pytest.mark.parametrize("name", ["crafted.arrow", "crafted.arrows"])
def test_a_crafted_arrow_file_is_refused_and_leaves_no_memory_in_the_log(
    name: str, tmp_path: Path, url: str, db: Database
) -> None:
    """Offsets outside of the values made ``append`` store memory of the process, or end in a crash."""
    log = db.log("orders", create=True)
    path = tmp_path / name
    path.write_bytes(crafted(arrow_file(table(), as_file=name.endswith("arrow"))))
    found = shell("log", "append", "orders", str(path), "--json", url=url)
    assert found.code == 2, (found.code, found.err)
    assert found.errors[-1]["error"] == "InvalidArgument"
    assert str(path) in found.errors[-1]["message"]
    assert not list(log.read())


def test_a_crafted_file_is_refused_wherever_its_columns_are_renamed(tmp_path: Path) -> None:
    """The columns that ``--value-field`` names are converted: also that looks into them."""
    path = tmp_path / "crafted.arrow"
    path.write_bytes(crafted(arrow_file(table().rename_columns(["body"]))))
    with pytest.raises(InvalidArgument, match=r"crafted.arrow: cannot be read as arrow, from row 0 on"):
        list(batches(path, "arrow", Fields(value="body")))


@pytest.mark.parametrize("as_file", [True, False])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_an_honest_arrow_file_is_read_whole(
    tmp_path: Path, compression: str | None, monkeypatch: pytest.MonkeyPatch, *, as_file: bool
) -> None:
    """Files and streams, compressed or not, in one batch or cut, come to the same rows, and to their size in bytes."""
    monkeypatch.setattr(sources, "BATCH_RECORDS", 300)
    ids = pa.array([f"id-{row % 7}" for row in range(ROWS)]).dictionary_encode()
    path = tmp_path / "honest.arrow"
    path.write_bytes(arrow_file(table(id=ids), as_file=as_file, compression=compression))
    found = list(batches(path, "arrow", Fields()))
    assert [batch.records.num_rows for batch in found] == [300, 300, 300, 100]
    assert [value for batch in found for value in batch.records.column("value").to_pylist()] == VALUES
    assert 0 < sum(batch.size_bytes for batch in found) <= path.stat().st_size


def test_a_small_file_that_asks_for_gigabytes_is_refused(tmp_path: Path) -> None:
    """A compressed batch says how large it becomes; beyond the limit nothing of it is decompressed."""
    zeros = pa.array([bytes(VALUE_BYTES_MAX)] * (INPUT_BATCH_BYTES_MAX // VALUE_BYTES_MAX + 1), pa.binary())
    path = tmp_path / "bomb.arrow"
    path.write_bytes(arrow_file(pa.record_batch({"value": zeros}), compression="zstd"))
    assert path.stat().st_size < 1 << 20
    del zeros
    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidArgument, match="more than the 268,435,456 that a compressed batch may"):
        list(batches(path, "arrow", Fields()))
    assert pa.total_allocated_bytes() - before < INPUT_BATCH_BYTES_MAX


def test_a_dictionary_that_asks_for_gigabytes_is_refused(tmp_path: Path) -> None:
    """The dictionary of a column is a message of its own, and is looked at as well."""
    words = pa.array(["x" * (INPUT_BATCH_BYTES_MAX + 1)])
    ids = pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), words)
    path = tmp_path / "bomb.arrow"
    path.write_bytes(arrow_file(table(id=ids), compression="zstd"))
    with pytest.raises(InvalidArgument, match="a batch of"):
        list(batches(path, "arrow", Fields()))


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.binary()), pa.binary_view()])
def test_a_value_that_is_named_many_times_is_refused(tmp_path: Path, kind: pa.DataType) -> None:
    """A small file whose rows all name one long value fills no memory when its rows are taken one by one."""
    long = pa.array([bytes(1 << 20)])
    rows = INPUT_BATCH_BYTES_MAX // (1 << 20) + 1
    named = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), long)
    if not pa.types.is_dictionary(kind):
        seen = long.cast(kind).buffers()
        named = pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(seen[1].to_pybytes() * rows), *seen[2:]])
    path = tmp_path / "named.arrow"
    path.write_bytes(arrow_file(pa.record_batch({"value": named})))
    assert path.stat().st_size < 1 << 21
    with pytest.raises(InvalidArgument, match="spelled out"):
        list(batches(path, "arrow", Fields()))


def test_a_size_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """A body of more bytes than there are, or than fit into memory, is an error of the file, not of the process."""
    data = arrow_file(table(), as_file=False)
    body_bytes = next(
        message.body.size for message in pa.ipc.MessageReader.open_stream(data) if message.type == "record batch"
    )
    for claimed in (1 << 20, 1 << 60, -8):
        path = tmp_path / "claims.arrows"
        path.write_bytes(data.replace(struct.pack("<q", body_bytes), struct.pack("<q", claimed), 1))
        with pytest.raises(InvalidArgument, match="cannot be read as arrow"):
            list(batches(path, "arrow", Fields()))


def test_a_parquet_file_is_read_in_pieces_that_fit(tmp_path: Path) -> None:
    """One long value in a dictionary, named by many rows, is spelled out a few rows at a time."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array([bytes(1 << 20)]))
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({"value": values}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 1 << 16
    sizes = [batch.records.nbytes for batch in batches(path, "parquet", Fields())]
    assert len(sizes) == 8
    assert max(sizes) < 2 * sources.BATCH_BYTES


def test_a_parquet_file_of_large_values_is_read_in_pieces_that_fit(tmp_path: Path) -> None:
    """So many rows are read at once as the file says that they have bytes."""
    values = [bytes([row]) * (1 << 20) for row in range(40)]
    path = tmp_path / "large.parquet"
    pq.write_table(pa.table({"value": values}), path, use_dictionary=False)
    found = [batch.records for batch in batches(path, "parquet", Fields())]
    assert [value for batch in found for value in batch.column("value").to_pylist()] == values
    assert max(batch.nbytes for batch in found) < 2 * sources.BATCH_BYTES


def test_text_that_is_not_utf8_is_refused(tmp_path: Path, call: Call, db: Database) -> None:
    """Text is checked with the offsets: an id that is no text never gets to a reader."""
    log = db.log("orders", create=True)
    path = tmp_path / "text.arrow"
    path.write_bytes(arrow_file(table(id=pa.array(["order-é"] * ROWS))).replace("é".encode(), b"\xff\xfe"))
    assert call("log", "append", "orders", str(path)).code == 2
    assert not list(log.read())


@pytest.mark.parametrize("fields", [Fields(), Fields(id="id")])
def test_a_column_that_is_there_twice_is_refused(tmp_path: Path, fields: Fields) -> None:
    """Which of the two has the ids is a guess: with the wrong one a record would be a duplicate of another."""
    columns = [pa.array(["1"]), pa.array(["2"]), pa.array([b"v"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["id", "id", "value"]), tmp_path / "twice.parquet")
    with pytest.raises(InvalidArgument, match="2 columns of this name"):
        list(batches(tmp_path / "twice.parquet", "parquet", fields))
