"""A file that changes while it is read is no source of rows: a row could be half of the old and half of the new."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
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


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_shares_of_a_file_are_all_its_lines(tmp_path: Path, parts: int, end: bytes) -> None:
    """Each line is in one share, wherever the cuts fall, with its number; lines may be longer than a share."""
    path = tmp_path / "a"
    for lines in ([b"", b"a", b"\xef\xbb\xbf", b"b" * 70], [b"x" * 200], [b"%d" % n for n in range(40)], [b"", b""]):
        path.write_bytes(b"\n".join(lines) + end)
        size = path.stat().st_size
        found: list[bytes] = []
        numbers: list[int] = []
        with path.open("rb") as file:
            for part in range(parts):
                share = bytes_of.LinesPart(file, size, part, parts)
                before = share.lines_before()
                some = [line for chunk in bytes_of.lines(share, begins=part == 0) for line in chunk]
                numbers += range(before, before + len(some))
                found += some
        assert b"".join(found) == path.read_bytes()
        assert numbers == list(range(len(found)))


def test_what_has_no_parts() -> None:
    """Compressed files, other encodings, and a line without an end are read as a whole."""
    text = b'{"id":"a"}\n'
    assert bytes_of.is_divisible(text, None)
    assert bytes_of.is_divisible(b"\xef\xbb\xbf" + text, "UTF8")
    for head, encoding in (
        (gzip.compress(text * 9), None),
        (text.decode().encode("utf-16"), None),
        (text, "latin-1"),
        (b'{"id"', None),
    ):
        assert not bytes_of.is_divisible(head, encoding)


DATA = b"".join(b'{"id":"%d","n":%d}\n' % (number, number * 7919) for number in range(60_000))
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, 1, mtime=0),
    "bzip2": lambda data: bz2.compress(data, 1),
    "xz": lambda data: lzma.compress(data, preset=0),
    "zstd": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


SOME = DATA[:50_000]
CHUNK = bytes_of.CHUNK_BYTES


def content(data: bytes) -> tuple[bytes, bool]:
    """Return what can be read of compressed data, in pieces, and whether there was an error."""
    found = b""
    try:
        stream = bytes_of.opened(io.BytesIO(data))
        while piece := stream.read(bytes_of.CHUNK_BYTES):
            found += piece
    except bytes_of.DAMAGED:
        return found, True
    return found, False


@pytest.mark.parametrize("kind", list(COMPRESS))
def test_nothing_of_damaged_data_is_read(kind: str) -> None:
    """A checksum comes behind the data: rows with a changed digit were stored before it was looked at. A second stream
    that is damaged was passed over. Zstd as Arrow writes it has no checksum: there, damage may be seen by nobody.
    """
    whole = COMPRESS[kind](DATA)
    assert content(whole + whole) == (DATA + DATA, False)
    for at in (len(whole) // 2, len(whole) - 5):
        found, failed = content(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert (found, failed) == (b"", True) or kind == "zstd"
    at = {"gzip": 2, "bzip2": 4, "xz": 7, "zstd": 4}[kind]  # behind what tells that it is a stream
    broken = bytes([*whole[:at], whole[at] ^ 255, *whole[at + 1 : 100]])
    assert content(whole + broken) == (b"", True)


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz"])
def test_junk_behind_whole_streams_is_rejected_and_their_rows_are_read(kind: str) -> None:
    """A file that was filled up, or had another one appended, has its rows. The junk is told, and not passed over."""
    whole = COMPRESS[kind](SOME)
    for junk in (b"junk", b"junk" * CHUNK, b"\0" * 4 + b"junk", *([] if kind == "gzip" else [b"\0" * 3])):
        assert content(whole + junk) == (SOME, True)
        assert content(whole + whole + junk) == (SOME + SOME, True)
    if kind == "bzip2":
        assert content(whole + b"\0" * 4) == (SOME, True)


@pytest.mark.parametrize("zeros", [4, 8, CHUNK, CHUNK + 4])
def test_padding_of_xz_is_no_damage(zeros: int) -> None:
    """The format allows zero bytes in fours behind each stream; a stream behind them was lost, or the file refused."""
    whole, padding = COMPRESS["xz"](SOME), bytes(zeros)
    assert content(whole + padding) == (SOME, False)
    assert content(whole + padding + whole) == (SOME + SOME, False)
    assert content(whole + padding + whole + padding) == (SOME + SOME, False)
    assert content(whole + padding + b"\0" + whole) == (SOME, True)
    assert bytes_of.opened(io.BytesIO(whole + padding + whole)).read() == SOME + SOME


@pytest.mark.parametrize("kind", ["bzip2", "xz"])
@pytest.mark.parametrize("kept", [1, 2, 5, 20])
def test_cut_in_a_later_stream_leaves_those_before_it(kind: str, kept: int) -> None:
    """Also where so little of it is there that one cannot tell that it is a stream."""
    whole = COMPRESS[kind](SOME)
    assert content(whole + whole[:kept]) == (SOME, True)


@pytest.mark.parametrize("kind", list(COMPRESS))
def test_all_that_comes_before_a_cut_is_read(kind: str) -> None:
    """And then the error: also of a file that is smaller than what is read at once."""
    whole = COMPRESS[kind](DATA)
    found, failed = content(whole[: len(whole) * 9 // 10])
    assert failed
    assert DATA.startswith(found)
    assert len(found) > len(DATA) // 2
    assert len(content(gzip.compress(DATA[:100_000])[:-9])[0]) > 90_000


def test_version_of_a_file_is_the_same_on_each_machine(tmp_path: Path) -> None:
    """Size and time tell it. The inode of an unchanged file differs between machines on some network file systems."""
    versions = []
    for name, text, time_s in (("a", "one", 1), ("b", "one", 1), ("c", "more", 1), ("d", "one", 2)):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (time_s, time_s))
        with (tmp_path / name).open("rb") as file:
            versions.append(bytes_of.version_of(file))
    assert versions[0] == versions[1]
    assert len(set(versions)) == 3
