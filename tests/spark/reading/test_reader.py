"""A file that is read in parts has the rows, and the rejected pieces, of the whole, each with its line."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncelog.errors import Unavailable
from oncelog.spark.reading.reader import EXTRA, LINE, FileRows, FilesReader, Wanted


class Counted:
    """What Spark's accumulator does."""

    def __init__(self) -> None:
        self.sums: dict[Any, FileRows] = {}

    def add(self, more: dict[Any, FileRows]) -> None:
        """Add what was found."""
        self.sums |= more


def read(path: Path, parts: int | None, *, length: int | None = None) -> tuple[list[tuple[int, str | None]], int, int]:
    """Return the lines of a file and what was rescued of each, and how many rows and rejected pieces were counted."""
    state = path.stat()
    counted: Any = Counted()
    wanted = Wanted(kind="json", columns=("id",), shape={"id": "string"}, kinds=("string",), on_bad_row="drop")
    size = state.st_size if length is None else length
    of = [
        {"number": part, "count": parts, "length": size, "changed_ms": state.st_mtime_ns // 1_000_000}
        for part in range(parts or 1)
    ]
    given = {"path": [str(path)] * len(of)} | ({} if parts is None else {"part": of})
    rows: list[tuple[int, str | None]] = []
    for batch in FilesReader(wanted, counted)([pa.RecordBatch.from_pydict(given)]):
        rows += zip(batch.column(LINE).to_pylist(), batch.column(EXTRA).to_pylist(), strict=True)
    found = counted.sums.values()
    return rows, sum(one.rows for one in found), sum(one.rejected for one in found)


LINES = b'{"id":"a"}\nbroken\n\n{"id":"b","n":1}\n{"id":"c"}\n{"id":"d"}{"id":"e"}\n' * 20


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", LINES),
        ("a.json", b"\xef\xbb\xbf" + LINES.rstrip()),
        ("a.json.gz", gzip.compress(LINES)),
        ("a.json", b'[\n{"id":"a"},\n{"id":"b"}\n]\n' + b" " * 50),
        ("a.json", b'\xef\xbb\xbf[\n{"id":"a"},\n{"id":"b"}\n]\n' + b" " * 50),
        ("a.json", LINES.decode().encode("utf-16")),
        ("a.csv", LINES),
    ],
)
def test_parts_are_the_whole(tmp_path: Path, name: str, content: bytes) -> None:
    """Of lines, of what is compressed, of lists over lines, of other encodings, and of a file that is no JSON."""
    path = tmp_path / name
    path.write_bytes(content)
    whole = read(path, None)
    assert whole[1] or name == "a.csv"
    for parts in (2, 7):
        assert read(path, parts) == whole


def test_file_that_is_not_as_it_was_listed(tmp_path: Path) -> None:
    """Another task reads another part of it, and the parts would not fit together."""
    path = tmp_path / "a.json"
    path.write_bytes(LINES)
    with pytest.raises(Unavailable, match="changed while it was read"):
        read(path, 2, length=len(LINES) - 1)
