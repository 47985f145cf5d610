"""CSV that Python's own writer makes, with any cells, comes out as it went in, each record with its line."""

from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from oncelog.spark.reading import bytes_of
from oncelog.spark.reading.csv_text import CsvParser, Dialect
from oncelog.spark.reading.rows import Rejected, TextRow

CELLS = st.text(st.sampled_from('ab",\n\r; \u00e4'), min_size=1, max_size=6)


@given(rows=st.lists(st.tuples(CELLS, CELLS), max_size=6), ends=st.sampled_from(["\n", "\r\n"]))
def test_cells_come_out_as_they_went_in(rows: list[tuple[str, str]], ends: str) -> None:
    """Quotes, commas and line breaks of any kind in cells make neither other records nor other text."""
    made = io.StringIO(newline="")
    writer = csv.writer(made, lineterminator=ends, quoting=csv.QUOTE_ALL)
    writer.writerow(["b", "a"])
    writer.writerows(rows)
    data = made.getvalue().encode()
    parser = CsvParser(["a", "b"], Dialect(header=True))
    found = [piece for pieces in parser.pieces(bytes_of.lines(io.BytesIO(data))) for piece in pieces]
    assert [piece.cells for piece in found if isinstance(piece, TextRow)] == [(second, first) for first, second in rows]
    breaks = [sum(cell.count("\n") for cell in row) + 1 for row in rows]
    assert [piece.line for piece in found] == [2 + sum(breaks[:number]) for number in range(len(rows))]


def test_unclosed_quote_invents_no_rows() -> None:
    """What follows a quote that is never closed is one piece: its lines may be parts of a cell."""
    data = b'a,b\n1,2\n3,"x\n4,5\n6,7\n'
    parser = CsvParser(["a", "b"], Dialect(header=True))
    found = [piece for pieces in parser.pieces(bytes_of.lines(io.BytesIO(data))) for piece in pieces]
    assert [type(piece) for piece in found] == [TextRow, Rejected]
    last = found[-1]
    assert isinstance(last, Rejected)
    assert (last.line, last.raw) == (3, b'3,"x\n4,5\n6,7\n')


def test_other_dialects() -> None:
    """Separators, escapes and texts for null are as they are said to be."""
    data = b"a\tb\n1\\\t2\tNULL\n"
    parser = CsvParser(["a", "b"], Dialect(header=True, sep="\t", escape="\\", null="NULL"))
    (row,) = [piece for pieces in parser.pieces(bytes_of.lines(io.BytesIO(data))) for piece in pieces]
    assert isinstance(row, TextRow)
    assert row.cells == ("1\t2", None)
