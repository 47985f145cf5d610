"""Memory that a file is put together in."""

from __future__ import annotations

import mmap

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.format.output import output


@given(st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 1 << 19)), max_size=12))
def test_it_says_what_was_written(parts: list[tuple[bytes, int]]) -> None:
    """However much it grew on the way, and at the start of a page."""
    sink = output()
    pieces = [piece * times for piece, times in parts]
    for piece in pieces:
        sink.write(piece)
    whole = b"".join(pieces)
    assert sink.tell() == len(whole)
    assert sink.getvalue().to_pybytes() == whole


@pytest.mark.parametrize("rows", [0, 1, 500_000])
def test_a_table_written_into_it(rows: int) -> None:
    """Parquet finds in it what it expects of a file."""
    table = pa.table({"value": pa.array(range(rows), pa.int64())})
    sink = output()
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    data = sink.getvalue()
    assert isinstance(sink, pa.BufferOutputStream) or data.address % mmap.PAGESIZE == 0
    assert pq.read_table(pa.BufferReader(data)).equals(table)


def test_what_was_told_outlives_it() -> None:
    """The memory lives as long as anybody looks at it."""
    sink = output()
    sink.write(b"x" * (5 << 20))
    part = sink.getvalue().slice(3 << 20)
    del sink
    assert part.to_pybytes() == b"x" * (2 << 20)
