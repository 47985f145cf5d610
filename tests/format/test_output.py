"""Memory that a file is put together in."""

from __future__ import annotations

import mmap
import os
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.format.output import COLUMN_MIN, PIECE_BYTES, bounded_output, column, output, piece


@given(st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 1 << 19)), max_size=12))
def test_it_says_what_was_written(parts: list[tuple[bytes, int]]) -> None:
    """However much it grew on the way, and at the start of a page."""
    sink = output()
    written = [part * times for part, times in parts]
    for part in written:
        sink.write(part)
    whole = b"".join(written)
    assert sink.tell() == len(whole)
    data = sink.getvalue()
    assert data.to_pybytes() == whole
    assert isinstance(sink, pa.BufferOutputStream) or data.address % mmap.PAGESIZE == 0


@pytest.mark.parametrize("rows", [0, 1, 500_000])
def test_a_table_written_into_it(rows: int) -> None:
    """Parquet finds in it what it expects of a file."""
    table = pa.table({"value": pa.array(range(rows), pa.int64())})
    sink = output()
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    data = sink.getvalue()
    assert isinstance(sink, pa.BufferOutputStream) or data.address % mmap.PAGESIZE == 0
    assert pq.read_table(pa.BufferReader(data)).equals(table)


def made(content: bytes, times: int = 5 << 20) -> pa.Buffer:
    """Return a file of one byte over and over."""
    sink = output()
    sink.write(content * times)
    return sink.getvalue()


def test_what_was_told_outlives_it() -> None:
    """The memory is not used again as long as anybody looks at a part of it, however it was come by."""
    looks = [
        made(b"a").slice(3 << 20),
        memoryview(made(b"b"))[7:],
        np.frombuffer(made(b"c"), np.uint8)[: 1 << 20],
        pa.BufferReader(made(b"d")).read_buffer(1 << 20),
    ]
    others = [made(b"x") for _ in range(4)]
    assert [set(bytes(memoryview(look))) for look in looks] == [{ord(letter)} for letter in "abcd"]
    del others


@pytest.mark.skipif(sys.platform != "linux", reason="Arrow's own memory")
def test_memory_is_used_again() -> None:
    """What nobody looks at any more is where the next file is put, also a shorter one."""
    address = made(b"a").address
    assert made(b"b").address == address
    again = made(b"c", 10)
    assert (again.address, again.to_pybytes()) == (address, b"c" * 10)


@pytest.mark.skipif(sys.platform != "linux", reason="Arrow's own memory")
def test_memory_that_was_handed_over_is_not_written_to() -> None:
    """Neither a second look nor a late write can come to somebody else's file."""
    sink = output()
    sink.write(b"a")
    kept = sink.getvalue()
    with pytest.raises(AttributeError):
        sink.getvalue()
    with pytest.raises(AttributeError):
        sink.write(b"b")
    assert kept.to_pybytes() == b"a"


@pytest.mark.parametrize("advice", ["MADV_FREE", "MADV_HUGEPAGE"])
def test_a_python_that_does_not_know_an_advice(monkeypatch: pytest.MonkeyPatch, advice: str) -> None:
    """It does without."""
    monkeypatch.delattr(mmap, advice, raising=False)
    assert made(b"a").to_pybytes() == b"a" * (5 << 20)
    assert made(b"b").to_pybytes() == b"b" * (5 << 20)


def test_a_piece_is_used_again_when_nobody_looks_at_it() -> None:
    """Not before: a look may be an array of another shape, or bytes that are being stored."""
    first = piece()
    first[:] = 1
    address, looks = first.ctypes.data, [first.view("<u8").reshape(-1, 8)[3:], first.data[5:7]]
    del first
    while looks:
        assert all(np.asarray(look).min() > 0 for look in looks)
        other = piece()
        assert other.ctypes.data != address
        other[:] = 0
        looks.pop()
    pieces = [piece() for _ in range(3)]
    assert address in [each.ctypes.data for each in pieces]
    assert all(len(each) == PIECE_BYTES for each in pieces)


def test_a_forked_child_does_not_write_into_a_piece_of_its_parent() -> None:
    """Both have the same spare pieces, and go on to build runs in them: of one piece they would make one of both."""
    held = piece()
    held[:] = 1
    child = os.fork()
    if child == 0:
        held[:] = 2
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert set(held.tobytes()) == {1}


@pytest.mark.parametrize("rows", [0, 1, 300_000])
def test_a_table_of_known_size_is_written_without_the_interpreter(rows: int) -> None:
    """A writer of Parquet asked for the interpreter at each of hundreds of writes, and waited for busy threads."""
    table = pa.table({"value": pa.array(range(rows), pa.int64())})
    for _ in range(3):  # in memory that held something else before, too
        sink, written = bounded_output(9 * rows + 4096)
        assert isinstance(sink, pa.NativeFile if sys.platform == "linux" else pa.BufferOutputStream)
        assert not isinstance(sink, pa.PythonFile)
        pq.write_table(table, sink, compression="none", use_dictionary=False)
        data = written()
        assert pq.read_table(pa.BufferReader(data)).equals(table)
        assert sys.platform != "linux" or data.address % mmap.PAGESIZE == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it grows")
def test_more_than_was_said_is_an_error() -> None:
    """Nothing is written behind the memory."""
    sink, written = bounded_output(5000)
    sink.write(bytes(5000))
    with pytest.raises(OSError, match="out of bounds"):
        sink.write(b"!")
    assert written().size == 5000


@pytest.mark.parametrize("count", [0, 1, COLUMN_MIN - 1, COLUMN_MIN, PIECE_BYTES // 8, PIECE_BYTES // 8 + 1])
def test_columns_that_are_in_use_share_no_memory(count: int) -> None:
    """A part of a column keeps all of it."""
    columns = [column(count)[: count // 2 + 1] for _ in range(3)]
    for number, each in enumerate(columns):
        each[:] = number
    others = [column(count) for _ in range(3)]
    for each in others:
        each[:] = 7
    assert [set(each.tolist()) for each in columns] == [{number} if count else set() for number in range(3)]
    assert [len(each) for each in others] == [count] * 3
