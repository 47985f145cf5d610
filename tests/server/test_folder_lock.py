"""The lock of a server on a folder: one server, no link, nobody else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from oncelog.errors import InvalidArgument, LogBusy, OncelogError
from oncelog.server.folder_lock import LOCK, holding

OTHER_USER = 65_534


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    """The second server learns which process is the first; when that has ended, the folder can be had."""
    url = f"file://{tmp_path}/shop"
    with holding(url), pytest.raises(LogBusy, match="serves this database already") as caught, holding(url):
        pass
    assert caught.value.pid
    with holding(url):
        pass


def test_nobody_else_can_hold_the_lock(tmp_path: Path) -> None:
    """Who can open a file can lock it: a lock that all could read kept every server away."""
    with holding(f"file://{tmp_path}/shop"):
        assert stat.S_IMODE((tmp_path / "shop").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "shop" / LOCK).stat().st_mode) == 0o600


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    """The number of the process is written into the lock: through a link that was somebody's file."""
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "shop").mkdir(mode=0o700)
    for name in ("precious", "made"):
        (tmp_path / "shop" / LOCK).symlink_to(tmp_path / name)
        with pytest.raises(OncelogError), holding(f"file://{tmp_path}/shop"):
            pass
        (tmp_path / "shop" / LOCK).unlink()
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "made").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    """Its owner could plant links there."""
    (tmp_path / "shop").mkdir()
    os.chown(tmp_path / "shop", OTHER_USER, os.getegid())
    with pytest.raises(InvalidArgument, match=f"belongs to user {OTHER_USER}"), holding(f"file://{tmp_path}/shop"):
        pass
    assert not list((tmp_path / "shop").iterdir())
