"""What an Arrow message says of itself: that it is compressed, and how large it becomes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from oncelog.format.payload import columns, ipc
from oncelog.types import Record

ROWS = 2_000
BATCH = columns.from_records([Record(b"v" * 100, id=f"id-{row}", headers={"a": b"1"}) for row in range(ROWS)])


def message(batch: pa.RecordBatch = BATCH, **options: Any) -> pa.Buffer:
    """Return a batch as an encapsulated message."""
    return batch.serialize() if not options else _written(batch, **options)


def _written(batch: pa.RecordBatch, **options: Any) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    return messages[-1].serialize()


def view(buffer: pa.Buffer) -> memoryview:
    """Return memory in the form in which a block is looked at."""
    return memoryview(buffer).cast("B")


def inflated(buffer: pa.Buffer) -> int:
    """Return how large a message says that it becomes."""
    found = pa.ipc.read_message(buffer)
    return ipc.inflated_bytes(memoryview(found.metadata), memoryview(found.body))


@pytest.mark.parametrize("rows", [0, 1, 2, ROWS])
def test_what_oncelog_writes_is_plain(rows: int) -> None:
    """Every message of a block, however small, is recognised as not compressed."""
    assert ipc.is_plain(view(message(BATCH.slice(0, rows))))
    assert ipc.is_plain(view(message(BATCH.slice(0, rows).select(["value"]))))


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_message_is_not_plain_and_says_how_large_it_becomes(codec: str) -> None:
    """The sizes are read before Arrow allocates anything: they come to what the plain message has."""
    compressed = message(compression=codec)
    assert compressed.size < message().size / 4
    assert not ipc.is_plain(view(compressed))
    assert abs(inflated(compressed) - inflated(message())) < 64


def test_messages_of_the_version_that_hid_compression_are_not_plain() -> None:
    """Version 4 of the metadata could name a codec among its notes, where Arrow still finds it."""
    old = message(metadata_version=pa.ipc.MetadataVersion.V4)
    assert not ipc.is_plain(view(old))
    with pytest.raises(ipc.Malformed, match="old version"):
        inflated(old)


def test_metadata_cut_short_anywhere_is_no_plain_message() -> None:
    """Whatever the bytes, the answer is no, or an error that has a name: never one of Python's own."""
    data = view(message(BATCH.slice(0, 3)))
    length = int.from_bytes(data[4:8], "little")
    for end in range(length):
        assert ipc.is_plain(data[: 8 + end]) in {True, False}
        assert not ipc.is_plain(data[1 : 8 + end])
        with pytest.raises(ipc.Malformed):
            ipc.inflated_bytes(data[8 : 8 + min(end, 24)], data[8 + length :])


def test_only_a_stream_without_compression_is_plain() -> None:
    """A compressed batch is found wherever it stands in a stream; what is cut short or older is not taken for plain."""

    def stream(**options: Any) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, BATCH.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write(BATCH)
            writer.write(BATCH)
        return bytes(sink.getvalue())

    plain, compressed = stream(), stream(compression="zstd")
    assert ipc.is_plain_stream(memoryview(plain))
    assert ipc.is_plain_stream(memoryview(b""))
    assert not ipc.is_plain_stream(memoryview(compressed))
    assert not ipc.is_plain_stream(memoryview(stream(use_legacy_format=True)))
    first = message(BATCH).size
    second = len(plain) - 8 - first
    assert not ipc.is_plain_stream(memoryview(plain[:second] + message(BATCH, compression="lz4").to_pybytes()))
    assert not ipc.is_plain_stream(memoryview(plain[: second + 20]))
