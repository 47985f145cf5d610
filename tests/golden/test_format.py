"""Bytes stored by earlier versions are read as they were meant, and formats do not change by accident."""

import pyarrow as pa
import pytest

from oncelog.format import block, frame, snapshot
from oncelog.format.payload import columns
from oncelog.types import Record
from tests.format.test_snapshot import same
from tests.golden import make

FILES = {path.stem: path.read_bytes() for path in sorted(make.FOLDER.glob("*.bin"))}


def test_every_golden_file_is_there() -> None:
    """A format without a golden file is a format nobody holds still."""
    assert FILES.keys() >= make.make().keys()


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("block_value", [Record(b"hello")]),
        ("block_id", [Record(b"hello", id="order-42")]),
        ("block_one", [Record(b"hello", id="order-42")]),
        ("block_all_columns", make.RECORDS),
    ],
)
def test_blocks_are_read(name: str, rows: list[Record]) -> None:
    """A log written by version 1 can be read for ever.

    Bytes are not compared: how Arrow lays out a message may change.
    """
    read = block.decode(pa.py_buffer(FILES[name]))
    starts = make.STARTS if name == "block_all_columns" else None
    assert read.payload.equals(columns.from_records(rows, starts))
    for field, value in make.STAMP.items():
        assert getattr(read.header, field) == value
    assert read.header.count == len(rows)


def test_block_header_is_written_the_same() -> None:
    """The header is ours alone: but for what it says of the body, its bytes do not change within a version."""
    written, stored = make.make()["block_value"], FILES["block_value"]
    assert written[:96] == stored[:96]
    assert written[112:120] == stored[112:120]


def test_frame_is_read_and_written_the_same() -> None:
    """Manifests of version 1 stay readable, and older programs read what we write."""
    assert frame.unwrap(make.FRAME_KIND, make.FRAME_VERSION, FILES["frame"], "frame") == make.FRAME_PAYLOAD
    assert make.make()["frame"] == FILES["frame"]


@pytest.mark.parametrize(("name", "count"), [("snapshot", 100), ("snapshot_empty", 0)])
def test_snapshots_are_read_and_written_the_same(name: str, count: int) -> None:
    """A window outlives an upgrade, and a downgrade."""
    assert same(snapshot.decode(FILES[name]), make.make_snapshot(count))
    assert make.make()[name] == FILES[name]
