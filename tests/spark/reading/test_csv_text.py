"""CSV that Python's own writer makes, with any cells, comes out as it went in, each record with its line."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.spark.reading import bytes_of
from oncelog.spark.reading.csv_text import CsvParser, Dialect
from oncelog.spark.reading.rows import Rejected, TextRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    data = b'a\tb\n"1\\"2"\tNULL\n'
    parser = CsvParser(["a", "b"], Dialect(header=True, sep="\t", escape="\\", null="NULL"))
    (row,) = [piece for pieces in parser.pieces(bytes_of.lines(io.BytesIO(data))) for piece in pieces]
    assert isinstance(row, TextRow)
    assert row.cells == ('1"2', None)


def rows_of(data: bytes, dialect: Dialect, kinds: dict[str, str] | None = None) -> list[TextRow | Rejected]:
    """Return what a file of the columns a and b holds."""
    parser = CsvParser(["a", "b"], dialect, kinds)
    return [piece for pieces in parser.pieces(bytes_of.lines(io.BytesIO(data))) for piece in pieces]


def test_an_escape_that_escapes_nothing_is_text() -> None:
    """As Spark reads it. A path of Windows lost its backslashes, in quotes and without, and one at the end of a line
    took the next row with it.
    """
    data = b'a,b\n1,C:\\new\n2,"C:\\new \\"x\\" \\\\"\n3,end\\\n4,"x\\\ny"\n'
    cells = [row.cells for row in rows_of(data, Dialect(header=True, escape="\\")) if isinstance(row, TextRow)]
    assert cells == [("1", "C:\\new"), ("2", 'C:\\new "x" \\'), ("3", "end\\"), ("4", "x\\\ny")]
    unquoted = Dialect(header=True, escape="\\", quote="")
    cells = [row.cells for row in rows_of(b"a,b\n1,end\\\n2,x\n", unquoted) if isinstance(row, TextRow)]
    assert cells == [("1", "end\\"), ("2", "x")]


@pytest.mark.xdist_group("pipeline")
@pytest.mark.parametrize(
    "line",
    [
        *(r"x\,y", r"x\"y,z", r"x\\y,z", r'"x\,y",z', r'"x\"y",z', r'"x\\y",z', r'"x\\",z', r'"x\ny",z', r'"\"\\\"",z'),
        *(r'"\"",z', r'"x","y\""', r"\"x,y", r"\,", r'"\\\\","\,"', r'"x,\"\",",z'),
    ],
)
def test_an_escape_is_read_as_by_spark(line: str, tmp_path: Path, spark: SparkSession) -> None:
    r"""Outside of quotes it is text: ``x\,y`` was one cell, and two of Spark's. In quotes it stands before a quote and
    before itself.
    """
    (tmp_path / "a.csv").write_text(line + "\n")
    theirs = spark.read.schema("a STRING, b STRING").option("escape", "\\").csv(str(tmp_path)).collect()
    (ours,) = rows_of(line.encode() + b"\n", Dialect(escape="\\"))
    assert isinstance(ours, TextRow)
    assert [ours.cells] == [tuple(row) for row in theirs]


@pytest.mark.parametrize("escape", [None, "", "\\"])
def test_without_quotes_every_character_but_the_separator_is_text(escape: str | None) -> None:
    """``quote = ""`` is how Spark is told that a file has no quotes."""
    (row,) = rows_of(b'"a","b\n', Dialect(quote="", escape=escape))
    assert isinstance(row, TextRow)
    assert row.cells == ('"a"', '"b')


def test_without_an_escape_quotes_double() -> None:
    """Also with an empty one, which was a ``TypeError``; with an escape, a doubled quote is an error in the row."""
    data = b'"x""y",1\n'
    cells = [
        row.cells
        for escape in (None, "", '"')
        for row in rows_of(data, Dialect(escape=escape))
        if isinstance(row, TextRow)
    ]
    assert cells == [('x"y', "1")] * 3
    (row, after) = rows_of(data + b'"x\\"\ny",2\n', Dialect(escape="\\"))
    assert isinstance(row, Rejected)
    assert (row.reason, row.raw) == ("text follows a closing quote", data)
    assert isinstance(after, TextRow)
    assert after.cells == ('x"\ny', "2")


def test_header_in_the_middle_is_no_row() -> None:
    """Files that were joined: the header of the second one was stored as a record, also behind a byte order mark."""
    found = rows_of(b"a,b\n1,2\na,b\n\xef\xbb\xbfa,b\n3,4\n", Dialect(header=True))
    assert [row.reason[:23] if isinstance(row, Rejected) else row.cells for row in found] == [
        ("1", "2"),
        "is the header once more",
        "is the header once more",
        ("3", "4"),
    ]
    assert len(rows_of(b"a,b\na,b\n", Dialect())) == 2  # no header, so they are rows


def test_line_of_separators_is_a_row() -> None:
    """Of TSV it looks blank, and was left out and not counted. A line of commas is a row, too."""
    found = rows_of(b"a\tb\n1\t2\n\t\n \n\n", Dialect(header=True, sep="\t"))
    assert [row.cells if isinstance(row, TextRow) else row for row in found] == [("1", "2"), (None, None)]


def test_cell_that_its_type_does_not_hold_is_kept_as_text() -> None:
    """Spark would round it, without a word."""
    (row,) = rows_of(b"a,b\n1.239,2\n", Dialect(header=True), {"a": "decimal(38,2)", "b": "decimal(38,2)"})
    assert isinstance(row, TextRow)
    assert (row.cells, row.rescued) == ((None, "2"), {"a": '"1.239"'})
