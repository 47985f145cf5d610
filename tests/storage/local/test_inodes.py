"""Which file a name or a descriptor stands for."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog.storage.local import inodes


@pytest.fixture(params=["statx", "stat"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask by the way that this system has, and by the one that every system has."""
    if request.param == "stat":
        monkeypatch.setattr(inodes, "_HAS_STATX", False)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_name_and_a_descriptor_are_what_the_system_says(tmp_path: Path, kind: str) -> None:
    """Mode, number and size are those of ``lstat``: a link is not followed. Two files of one device have one device."""
    path = tmp_path / "näme"
    if kind == "file":
        path.write_bytes(b"x" * 5_000)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/")
    said = path.lstat()
    expected = (said.st_mode, said.st_ino, said.st_size, inodes.of_name(str(tmp_path))[3])
    assert inodes.of_name(str(path)) == expected
    if kind != "link":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            assert inodes.of_descriptor(descriptor) == expected
        finally:
            os.close(descriptor)


@pytest.mark.usefixtures("way")
def test_what_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    """A missing name is ``FileNotFoundError``, a closed descriptor ``EBADF``, as of ``lstat`` and ``fstat``."""
    with pytest.raises(FileNotFoundError, match="missing"):
        inodes.of_name(str(tmp_path / "missing"))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        inodes.of_name(str(tmp_path / "file" / "below"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        inodes.of_descriptor(-2)


@pytest.mark.skipif(sys.platform != "linux", reason="another system asks for all that it has")
def test_nobody_asks_for_times_while_records_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends and reads never call ``stat`` in a form that makes the next write of a segment store a new time."""
    asked: list[object] = []
    own = threading.get_ident()

    def watched(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def ask(what: object, *given: Any, **more: Any) -> Any:
            if threading.get_ident() == own:  # other tests may have left threads that look at files of theirs
                asked.append((name, what))
            return real(what, *given, **more)

        return ask

    with oncelog.connect(tmp_path / "shop") as database, database.log("orders", create=True).writer() as writer:
        log = database.log("orders")
        writer.append(b"first", id="first")
        assert len(list(log.read())) == 1
        for name in ("stat", "lstat", "fstat"):
            monkeypatch.setattr(os, name, watched(name))
        for number in range(10):
            writer.append(b"value", id=f"order-{number}")
            assert len(list(log.read())) == number + 2
        monkeypatch.undo()
    assert asked == []
