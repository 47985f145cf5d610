"""A file that changes while it is read is no source of rows: a row could be half of the old and half of the new."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.errors import Unavailable
from oncelog.spark.reading import bytes_of


def appended(path: Path) -> None:
    """Add to a file."""
    with path.open("ab") as file:
        file.write(b"more")


def rewritten(path: Path) -> None:
    """Write a file again, in its place (rsync --inplace), with as many bytes."""
    with path.open("r+b") as file:
        file.write(b"x")


@pytest.mark.parametrize("change", [appended, rewritten])
@pytest.mark.parametrize("damaged", [False, True])
def test_change_while_a_file_is_read(tmp_path: Path, change: Callable[[Path], None], *, damaged: bool) -> None:
    """It is an error that says what to do; also where the half of a file looked damaged, which is no fault of it."""
    path = tmp_path / "a.json.gz"
    whole = gzip.compress(b'{"id":"a"}\n')
    path.write_bytes(whole[:-4] if damaged else whole)
    with pytest.raises(Unavailable, match=r"a\.json\.gz was changed while it was read.*rename"):
        read(path, change)


def read(path: Path, change: Callable[[Path], None]) -> None:
    """Read a file that is changed meanwhile."""
    with bytes_of.unchanged(path) as file:
        lines = bytes_of.lines(bytes_of.opened(file))
        change(path)
        list(lines)


def test_file_that_is_replaced_by_a_rename_is_read_to_its_end(tmp_path: Path) -> None:
    """This is how files should come; and a damaged file that nobody changes is told as such."""
    path = tmp_path / "a.json"
    path.write_bytes(b"old\n")
    (tmp_path / ".new").write_bytes(b"new\n")
    with bytes_of.unchanged(path) as file:
        (tmp_path / ".new").rename(path)
        assert list(bytes_of.lines(bytes_of.opened(file))) == [[b"old\n"]]
    path.write_bytes(gzip.compress(b"x" * 100)[:-4])
    with pytest.raises(EOFError), bytes_of.unchanged(path) as file:
        list(bytes_of.lines(bytes_of.opened(file)))
