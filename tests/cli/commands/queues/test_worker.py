"""``oncelog worker``: where the module of a handler is looked for."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog.cli.commands.queues import worker

PLANTED = ("handlers_of_mine", "colorsys")


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a folder with a module of one's own, and one that is called as one of Python's."""
    (tmp_path / "handlers_of_mine.py").write_text("def send(delivery): ...\n")
    (tmp_path / "colorsys.py").write_text("def rgb_to_hsv(*_): return 'planted'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = {name: sys.modules.pop(name) for name in PLANTED if name in sys.modules}
    yield
    for name in PLANTED:
        sys.modules.pop(name, None)
    sys.modules.update(before)


@pytest.mark.usefixtures("_here")
def test_a_module_of_the_folder_is_found_behind_those_installed() -> None:
    """In front, a file of a common name would run in the place of Python's own."""
    assert worker._loaded("handlers_of_mine:send").__module__ == "handlers_of_mine"
    assert worker._loaded("colorsys:rgb_to_hsv")(1.0, 0.0, 0.0) != "planted"


@pytest.mark.usefixtures("_here")
def test_no_module_is_found_in_a_folder_that_others_can_write(tmp_path: Path) -> None:
    """In a folder such as /tmp anybody could put the module."""
    tmp_path.chmod(0o777)
    with pytest.raises(oncelog.InvalidArgument, match=r"cannot be loaded: .* not looked in, for every user can write"):
        worker._loaded("handlers_of_mine:send")
    assert str(tmp_path) not in sys.path


@pytest.mark.usefixtures("_here")
def test_no_module_is_found_in_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says so: the file is there, and "No module named …" alone sends people looking for it."""
    found = os.stat_result([stat.S_IFDIR | 0o755, 0, 0, 1, 4711, 4711, 0, 0, 0, 0])
    monkeypatch.setattr(Path, "stat", lambda _: found)
    with pytest.raises(oncelog.InvalidArgument, match=r"No module named .* not looked in, for it belongs to another"):
        worker._loaded("handlers_of_mine:send")
    assert str(tmp_path) not in sys.path
    with pytest.raises(oncelog.InvalidArgument, match=r"has no attribute 'nothing'$"):
        worker._loaded("colorsys:nothing")
