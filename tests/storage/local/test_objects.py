"""Objects as files: created whole or not at all, on any file system; and a file that shrinks under its reader."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog import LogSettings
from oncelog.errors import InvalidArgument, Unavailable
from oncelog.storage.local import links
from oncelog.storage.local.home import LocalStorage

PROGRAM = """
import os, sys, oncelog
from pathlib import Path
with oncelog.connect(sys.argv[1]) as db:
    log = db.log("orders")
    batches = log.read_arrow()
    held = next(batches)
    for path in Path(sys.argv[2]).glob("*.parquet"):
        os.truncate(path, 100)
    print(held.num_rows + sum(batch.num_rows for batch in batches))
    try:
        print("read", sum(1 for _ in log.read()))
    except oncelog.CorruptionError as error:
        print("corrupt", error)
"""


def test_a_sealed_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    """The reader's process died of SIGBUS. Who has the file open reads on; who opens it is told."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", LogSettings(seal="off"), create=True)
        with log.writer() as writer:
            writer.append_many(
                [oncelog.Record(bytes([n % 251]) * 37 + b"%d" % (n**7), id=str(n)) for n in range(70_000)]
            )
        log.seal()
    sealed = tmp_path / "logs" / "orders" / "sealed"
    assert max(path.stat().st_size for path in sealed.glob("*.parquet")) > 2**18, "large enough to be mapped"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path.as_uri(), str(sealed)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("70000\ncorrupt ")
    assert "restore it from a copy" in done.stdout


@pytest.fixture(params=["without a name", "under a name of its own"])
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run where a new file needs no name, and where it does, whatever file system the tests are on."""
    monkeypatch.setattr(links, "_keeps_nameless", lambda *_: request.param == "without a name")


def files(root: Path) -> list[str]:
    """Return the names of all files, whole or not."""
    return sorted(path.name for path in root.rglob("*") if path.is_file())


@pytest.mark.usefixtures("_ways")
def test_an_object_is_created_once_and_whole(tmp_path: Path) -> None:
    """The first create wins, the second leaves nothing behind, and a folder is no object."""
    home = LocalStorage(tmp_path).home("orders")
    assert home.create("a/one", [b"first", b"part"])
    assert not home.create("a/one", [b"second"])
    assert home.read("a/one").to_pybytes() == b"firstpart"
    with pytest.raises(InvalidArgument, match="a folder where a file should be"):
        home.create("a", [b"x"])
    assert files(tmp_path) == ["one"]


@pytest.mark.usefixtures("_ways")
def test_a_name_that_is_taken_meanwhile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process creates the object while this one writes: this one is second, and leaves nothing behind."""
    home = LocalStorage(tmp_path).home("orders")
    assert home.create("a/other", [b"makes the folder"])
    real = os.fdatasync

    def sync(descriptor: int) -> None:
        (tmp_path / "logs" / "orders" / "a" / "one").write_bytes(b"theirs")
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    assert not home.create("a/one", [b"ours"])
    assert home.read("a/one").to_pybytes() == b"theirs"
    assert files(tmp_path) == ["one", "other"]


@pytest.mark.usefixtures("_ways")
@pytest.mark.parametrize(("call", "outcome"), [("fdatasync", "not written"), ("link", "unknown"), ("fsync", "unknown")])
def test_a_create_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, outcome: str
) -> None:
    """Before the name is given nothing was written; from then on nobody knows. Nothing but the object is left."""
    home = LocalStorage(tmp_path).home("orders")
    assert home.create("a/other", [b"makes the folder"])

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(Unavailable) as caught:
            home.create("a/one", [b"ours"])
    assert caught.value.outcome == outcome
    assert files(tmp_path) == (["one", "other"] if call == "fsync" else ["other"])
    assert home.create("a/one", [b"ours"]) is (call != "fsync")


@pytest.mark.usefixtures("_ways")
def test_content_is_synced_before_its_name_and_the_name_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name whose content a power cut takes away would be a damaged object; a name that it takes away, a lost one."""
    home = LocalStorage(tmp_path).home("orders")
    assert home.create("a/other", [b"makes the folder"])
    assert home.create("a/another", [b"makes the folder of temporary files"])
    done: list[str] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            done.append(name)
            return result

        return call

    names = ["pwrite", "fdatasync", "link", "fsync"]
    for name in names:
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    assert home.create("a/one", [b"ours"])
    assert done == names


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR])
def test_a_file_system_without_nameless_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Some network file systems, and old kernels, have none: the file gets a name of its own until it is whole."""
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **given: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *args, **given)

    monkeypatch.setattr(links, "_keeps_nameless", lambda *_: True)
    monkeypatch.setattr(os, "open", refuse)
    home = LocalStorage(tmp_path).home("orders")
    assert home.create("a/one", [b"x"])
    assert (tmp_path / "logs" / "orders" / "temporary").is_dir()
    assert files(tmp_path) == ["one"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOENT, errno.EINVAL])
def test_a_file_system_that_makes_nameless_files_and_cannot_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The object is stored under a temporary name after all, once and whole; later ones at once. AppArmor says that
    the file is not there.
    """
    real = os.link

    def refuse(source: Any, target: Any, **given: Any) -> None:
        if str(source).startswith("/proc"):
            raise OSError(number, os.strerror(number))
        real(source, target, **given)

    monkeypatch.setattr(links, "_keeps_nameless", lambda *_: True)
    monkeypatch.setattr(os, "link", refuse)
    home = LocalStorage(tmp_path).home("orders")
    assert home.create("a/one", [b"first"])
    assert not home.create("a/one", [b"second"])
    monkeypatch.setattr(links, "create_nameless", lambda *_: pytest.fail("asked again"))
    assert home.create("a/two", [b"x"])
    assert home.read("a/one").to_pybytes() == b"first"
    assert files(tmp_path) == ["one", "two"]


@pytest.mark.usefixtures("_ways")
def test_a_home_that_was_removed_is_made_again(tmp_path: Path) -> None:
    """A create finds its folder gone, because another process deleted the log: the folder is made again."""
    storage = LocalStorage(tmp_path)
    home = storage.home("orders")
    assert home.create("a/one", [b"x"])
    LocalStorage(tmp_path).remove_home("orders")
    assert home.create("a/one", [b"y"])
    assert home.read("a/one").to_pybytes() == b"y"


@pytest.mark.usefixtures("_ways")
@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOENT])
def test_a_folder_that_cannot_be_synced_is_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The name is given, and its sync fails: to try again would meet the own name, and call this create the loser."""
    home = LocalStorage(tmp_path).home("orders")
    assert home.create("a/other", [b"makes the folder"])
    assert home.create("a/another", [b"makes the folder of temporary files"])

    real = os.fsync
    failed: list[int] = []

    def fail_once(descriptor: int) -> None:
        if not failed:
            failed.append(descriptor)
            raise OSError(number, os.strerror(number))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_once)
        with pytest.raises(Unavailable) as caught:
            home.create("a/one", [b"ours"])
    assert caught.value.outcome == "unknown"
    assert home.read("a/one").to_pybytes() == b"ours"
    assert files(tmp_path) == ["another", "one", "other"]


def test_a_folder_that_is_gone_when_its_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process removes the home meanwhile: the outcome is unknown, and the next create makes the home again,
    still without a temporary name.
    """
    monkeypatch.setattr(links, "_keeps_nameless", lambda *_: True)
    home = LocalStorage(tmp_path).home("orders")
    real = os.fdatasync

    def sync(descriptor: int) -> None:
        real(descriptor)
        LocalStorage(tmp_path).remove_home("orders")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", sync)
        with pytest.raises(Unavailable) as caught:
            home.create("a/one", [b"ours"])
    assert caught.value.outcome == "unknown"
    assert home.create("a/one", [b"ours"])
    assert files(tmp_path) == ["one"]
    assert not (tmp_path / "logs" / "orders" / "temporary").exists()


@pytest.mark.usefixtures("_ways")
@pytest.mark.parametrize("call", ["fdatasync", "fchmod"])
def test_a_create_that_is_interrupted_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Ctrl-C, or no memory, while a file is written: its descriptor is closed and no file is left."""
    if call == "fchmod":
        tmp_path.chmod(0o2770)  # shared with a group: a new file gets the group's rights
    home = LocalStorage(tmp_path).home("orders")
    assert home.create("a/other", [b"makes the folder"])
    assert home.create("a/another", [b"makes the folder of temporary files"])
    if call == "fchmod":
        assert (tmp_path / "logs" / "orders" / "a" / "other").stat().st_mode & 0o777 == 0o660
    interrupted: list[int] = []
    closed: list[int] = []
    real = os.close

    def interrupt(descriptor: int, *_: object) -> None:
        interrupted.append(descriptor)
        raise KeyboardInterrupt

    def close(descriptor: int) -> None:
        if interrupted:
            closed.append(descriptor)
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, interrupt)
        patch.setattr(os, "close", close)
        with pytest.raises(KeyboardInterrupt):
            home.create("a/one", [b"ours"])
    assert len(interrupted) == 1
    assert closed.count(interrupted[0]) == 1
    if call == "fdatasync":
        assert files(tmp_path) == ["another", "other"]
    assert home.create("a/one", [b"ours"])
