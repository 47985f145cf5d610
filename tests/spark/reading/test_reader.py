"""A file that is read in parts has the rows, and the rejected pieces, of the whole, each with its line."""

from __future__ import annotations

import errno
import gzip
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import oncelog
from oncelog.errors import Unavailable
from oncelog.spark.reading import bytes_of, reader
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
    ids=["lines", "a mark", "compressed", "a list", "a list behind a mark", "UTF-16", "CSV"],
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


def test_rejected_row_has_one_id_whichever_way_its_file_is_read(tmp_path: Path) -> None:
    """A stream names a file of a bucket as Spark does, a backfill as Oncelog does: the row that both reject was there
    twice. Its file, line and reason are the same, too: else the second one would be a conflict.
    """
    url = (tmp_path / "data").as_uri()
    wanted = Wanted(kind="json", columns=("id",), shape={"id": "string"}, url=url, log="rejected")
    kept = []
    for scheme in ("s3a", "s3", "s3n"):
        given = {"path": [f"{scheme}://shop/in/a.json"], "content": [b"broken\n"]}
        counted: Any = Counted()
        list(FilesReader(wanted, counted)([pa.RecordBatch.from_pydict(given)]))
        ((path, _, _), found) = counted.sums.popitem()
        with oncelog.connect(url) as db, db.log("rejected").writer() as writer:
            kept.append(writer.ingest(list(found.staged)))
            assert path == "s3://shop/in/a.json"
    assert [(one.records, one.duplicates, one.conflicts) for one in kept] == [(1, 0, 0), (0, 1, 0), (0, 1, 0)]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE])
def test_file_that_cannot_be_reached_is_not_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A disk that fails, a right, a limit: the batch fails, to come again. Rejected, the file was never read again."""
    path = tmp_path / "a.json"
    path.write_bytes(LINES)

    def fail(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(bytes_of, "unchanged", fail)
    with pytest.raises(Unavailable, match=r"a\.json cannot be read: .*run the pipeline again"):
        read(path, None)


@pytest.mark.parametrize("root", ["", "in", "in/day=1/a.json"], ids=["none", "a folder", "the file"])
def test_file_that_was_removed_is_not_rejected(tmp_path: Path, root: str) -> None:
    """It has vanished: nobody has seen its rows. So has one that was removed with its folder, a partition; unless the
    source's folder is not there, either: tasks of a cluster may not see it.
    """
    path = tmp_path / "in" / "day=1" / "a.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(LINES)
    wanted = Wanted(kind="json", columns=(), on_bad_row="drop", root=str(tmp_path / root) if root else "")
    reading = FilesReader(wanted, counted := Counted())  # type: ignore[arg-type]
    given = [pa.RecordBatch.from_pydict({"path": [f"file:{path}"]})]
    path.unlink()
    assert list(reading(given)) == []
    path.parent.rmdir()
    if root == "in":
        assert list(reading(given)) == []
    assert {(found.rows, found.rejected, found.vanished) for found in counted.sums.values()} == {(0, 0, True)}
    path.parent.parent.rmdir()
    with pytest.raises(Unavailable, match="a folder that all machines share"):
        list(reading(given))


def test_file_is_read_as_a_whole_where_a_job_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that has changed since it was listed has other parts now: one task reads all of it, the others nothing."""
    path = tmp_path / "a.json"
    path.write_bytes(LINES)
    whole = read(path, None)
    properties = {bytes_of.UNDIVIDED: "true"}
    context = SimpleNamespace(partitionId=lambda: 0, getLocalProperty=properties.get)
    monkeypatch.setattr(reader, "TaskContext", SimpleNamespace(get=lambda: context))
    assert read(path, 3, length=len(LINES) - 100) == whole
