"""Files that are there as a whole: nothing is left of an attempt, and no link is followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.spark.pipeline.whole_file import write_whole


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """The file before is there until the new one is; a link that stands in its place is replaced, not followed."""
    path, precious = tmp_path / "owner.json", tmp_path / "precious"
    precious.write_bytes(b"precious")
    path.symlink_to(precious)
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert precious.read_bytes() == b"precious"


def test_nothing_is_left_of_what_failed(tmp_path: Path) -> None:
    """A folder in the place of the file: the attempt fails, and its own file is gone."""
    (tmp_path / "owner.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "owner.json", b"one")
    assert [path.name for path in tmp_path.iterdir()] == ["owner.json"]
