"""A folder that is pulled away under a writer: nothing is acknowledged into a file that nobody can find."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import oncelog
from oncelog import CorruptionError


def removed(home: Path) -> None:
    """Remove the whole log."""
    shutil.rmtree(home)


def moved(home: Path) -> None:
    """Give the log another name."""
    home.rename(home.with_name("elsewhere"))


def replaced(home: Path) -> None:
    """Put an older copy in its place."""
    home.rename(home.with_name("elsewhere"))
    shutil.copytree(home.with_name("elsewhere"), home)


def segment_removed(home: Path) -> None:
    """Remove the file that is being written alone."""
    for path in (home / "segments").iterdir():
        path.unlink()


@pytest.mark.parametrize("pulled_away", [removed, moved, replaced, segment_removed])
def test_a_write_into_nowhere_is_not_acknowledged(tmp_path: Path, pulled_away: Callable[[Path], None]) -> None:
    """1,999 appends were acknowledged into an unlinked file. The writer ends, and lets the log go."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        writer = db.log("orders", create=True).writer()
        writer.append(b"1", id="1")
        pulled_away(tmp_path / "logs" / "orders")
        with pytest.raises(CorruptionError, match="removed or replaced under its writer"):
            writer.append(b"2", id="2")
        with pytest.raises(CorruptionError):
            writer.append(b"3", id="3")
        writer.close()


def test_a_log_that_is_put_back_goes_on(tmp_path: Path) -> None:
    """What was acknowledged is there, and the write that was refused is stored when it is tried again."""
    home = tmp_path / "logs" / "orders"
    with oncelog.connect(tmp_path.as_uri()) as db:
        writer = db.log("orders", create=True).writer()
        writer.append(b"1", id="1")
        moved(home)
        with pytest.raises(CorruptionError):
            writer.append(b"2", id="2")
        writer.close()
        home.with_name("elsewhere").rename(home)
    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders").writer() as writer:
        assert writer.append(b"1", id="1").duplicate
        assert writer.append(b"2", id="2").position == 1
