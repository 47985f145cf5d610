"""Links that somebody planted in the folder of a database, folders of others, and who may read what is stored."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from pathlib import Path

import pytest

import oncelog
from oncelog import InvalidArgument, Record
from oncelog.storage.local import links
from oncelog.storage.local.disk import RealDisk
from oncelog.storage.local.home import LocalStorage

OTHER_USER = 65_534
LEFT = "999999999-1-0123456789abcdef"
"""What Oncelog calls a temporary file of a process that is no more: it is cleaned away where it is Oncelog's own."""


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    """Return a folder of the user's own, with a file in it, beside the database."""
    folder = tmp_path / "treasure"
    folder.mkdir()
    (folder / LEFT).write_text("precious")
    return folder


def fill(shop: Path) -> None:
    """Append to a log, so that all of its folders are there."""
    with oncelog.connect(f"file://{shop}") as db, db.log("orders", create=True).writer() as writer:
        writer.append(b"paid", id="order-1")


@pytest.fixture(params=["openat2", "folder by folder"])
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with the system call that follows no links, and without it."""
    if request.param != "openat2":
        monkeypatch.setattr(links, "_has_openat2", lambda: False)


@pytest.mark.usefixtures("_ways")
@pytest.mark.parametrize(
    "name",
    [
        "temporary",
        "segments",
        "manifest",
        "bodies",
        "torn",
        "sealed",
        "secret",
        "ids",
        "dedup_snapshot",
        "bases",
        "runs",
    ],
)
def test_a_folder_that_is_a_link_is_refused(name: str, tmp_path: Path, treasure: Path) -> None:
    """A link in the place of a folder made the writer delete, or make, files where the link points."""
    shop = tmp_path / "shop"
    fill(shop)
    planted = shop / "logs" / "orders" / name
    if planted.exists():
        planted.rename(tmp_path / "away")
    planted.symlink_to(treasure)
    with oncelog.connect(f"file://{shop}") as db, contextlib.suppress(oncelog.OncelogError):
        log = db.log("orders", create=True)
        with log.writer() as writer:
            writer.append(b"paid", id="order-2", timeout_s=1)
        log.seal()
        log.verify()
    assert {path.name: path.read_text() for path in treasure.iterdir()} == {LEFT: "precious"}


@pytest.mark.usefixtures("_ways")
@pytest.mark.parametrize("name", ["lock", "published"])
def test_a_file_that_is_a_link_is_not_written_through(name: str, tmp_path: Path, treasure: Path) -> None:
    """The lock and the published end are written in place: through a link that was somebody's file."""
    shop, target = tmp_path / "shop", treasure / LEFT
    fill(shop)
    planted = shop / "logs" / "orders" / name
    planted.unlink()
    planted.symlink_to(target)
    refused = pytest.raises(oncelog.OncelogError, match="symbolic link is on the way")
    with oncelog.connect(f"file://{shop}") as db, refused:
        writer = db.log("orders").writer()
        try:
            writer.append(b"paid", id="order-2", timeout_s=0.1)
        finally:
            with contextlib.suppress(oncelog.OncelogError):
                writer.close(timeout_s=0)
    assert target.read_text() == "precious"


@pytest.mark.usefixtures("_ways")
def test_deleting_a_log_removes_nothing_but_the_log(tmp_path: Path, treasure: Path) -> None:
    """A folder ``removed`` may be the user's own, and so may what is in it."""
    shop = tmp_path / "shop"
    fill(shop)
    (shop / "removed" / "photos").mkdir(parents=True)
    (shop / "removed" / "photos" / "one.jpg").write_text("precious")
    (shop / "removed" / "a-0123456789abcdef").symlink_to(treasure)
    with oncelog.connect(f"file://{shop}") as db:
        db.delete("orders")
        assert db.logs() == []
    assert (shop / "removed" / "photos" / "one.jpg").read_text() == "precious"
    assert (treasure / LEFT).read_text() == "precious"
    assert sorted(path.name for path in (shop / "removed").iterdir()) == ["a-0123456789abcdef", "photos"]


@pytest.mark.parametrize(
    "name", ["state.sqlite", "gate.sqlite", "state.sqlite-wal", "state.sqlite-shm", "gate.sqlite-wal"]
)
def test_links_in_the_place_of_a_queues_state_are_not_followed(name: str, tmp_path: Path, treasure: Path) -> None:
    """SQLite makes files of its own beside the state, under names that everybody knows."""
    shop = tmp_path / "shop"
    use_all(shop)
    planted = shop / "queues" / name
    planted.unlink(missing_ok=True)
    for target in (LEFT, "made"):
        planted.symlink_to(treasure / target)
        with oncelog.connect(f"file://{shop}") as db, pytest.raises(oncelog.OncelogError):
            db.queue("emails").send(b"hello")
        planted.unlink()
    assert {path.name: path.read_text() for path in treasure.iterdir()} == {LEFT: "precious"}


def test_a_file_that_is_appended_to_is_no_link(tmp_path: Path, treasure: Path) -> None:
    """Notes, locks and logs of a pipeline are appended to in place: through a link that was somebody's file."""
    (tmp_path / "notes").symlink_to(treasure / LEFT)
    (tmp_path / "new").symlink_to(treasure / "made")
    for name in ("notes", "new"):
        with pytest.raises(InvalidArgument, match="symbolic link"):
            links.append_to(tmp_path / name)
    with links.append_to(tmp_path / "own") as file:
        file.write(b"noted")
    assert (tmp_path / "own").read_bytes() == b"noted"
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == links.FILE_MODE
    assert {path.name: path.read_text() for path in treasure.iterdir()} == {LEFT: "precious"}


def test_deleting_a_log_follows_no_link_in_the_place_of_removed(tmp_path: Path, treasure: Path) -> None:
    """With a link, the log would be moved there, and what is there deleted."""
    shop = tmp_path / "shop"
    fill(shop)
    (treasure / "orders-0123456789abcdef").mkdir()
    (treasure / "orders-0123456789abcdef" / "one.jpg").write_text("precious")
    (shop / "removed").symlink_to(treasure)
    with oncelog.connect(f"file://{shop}") as db, pytest.raises(oncelog.OncelogError, match=r"folder should be|link"):
        db.delete("orders")
    assert (treasure / "orders-0123456789abcdef" / "one.jpg").read_text() == "precious"


def test_files_that_are_not_ours_stay_among_temporary_ones(tmp_path: Path) -> None:
    """Only names that Oncelog gives are cleaned away, and of those only files."""
    shop = tmp_path / "shop"
    fill(shop)
    temporary = shop / "logs" / "orders" / "temporary"
    temporary.mkdir(exist_ok=True)
    (temporary / "mine.txt").write_text("precious")
    (temporary / LEFT).write_text("left by a process that died")
    fill(shop)
    assert [path.name for path in temporary.iterdir()] == ["mine.txt"]


def test_links_above_the_database_are_the_users_own(tmp_path: Path) -> None:
    """A database may be reached by a link, as /var is on some systems."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fill(tmp_path / "link" / "shop")
    assert (tmp_path / "real" / "shop" / "logs" / "orders").is_dir()


def modes(folder: Path) -> tuple[set[int], set[int]]:
    """Return the modes of all folders below one, itself included, and of all files."""
    below = [folder, *folder.rglob("*")]
    found = [(path.is_dir(), stat.S_IMODE(path.lstat().st_mode)) for path in below]
    return {mode for is_dir, mode in found if is_dir}, {mode for is_dir, mode in found if not is_dir}


def use_all(shop: Path) -> None:
    """Have files of every kind made: of logs, sealed, of queues."""
    with oncelog.connect(f"file://{shop}") as db:
        log = db.log("orders", create=True)
        with log.writer() as writer:
            writer.append_many([Record(b"paid", id=f"order-{number}") for number in range(10)])
            writer.snapshot()
        log.seal()
        db.queue("emails", create=True).send(b"hello")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_nobody_else_may_read_or_lock_a_log(tmp_path: Path, umask: int) -> None:
    """Folders are 0700 and files 0600, whatever the umask: also the lock, which others could hold."""
    before = os.umask(umask)
    try:
        use_all(tmp_path / "shop")
    finally:
        os.umask(before)
    assert modes(tmp_path / "shop") == ({0o700}, {0o600})


def test_a_folder_shared_with_a_group_stays_shared(tmp_path: Path) -> None:
    """``chmod 2770`` on the folder of a database is the opt-in: what is made below is the group's, too."""
    shop = tmp_path / "shop"
    shop.mkdir()
    shop.chmod(0o2770)
    before = os.umask(0o077)
    try:
        use_all(shop)
    finally:
        os.umask(before)
    assert modes(shop) == ({0o2770}, {0o660})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_written_to(tmp_path: Path) -> None:
    """Its owner could plant links faster than any check; root's own folders, and shared ones, are used."""
    shop = tmp_path / "shop"
    shop.mkdir()
    os.chown(shop, OTHER_USER, os.getegid())
    with oncelog.connect(f"file://{shop}") as db:
        with pytest.raises(InvalidArgument, match=f"belongs to user {OTHER_USER}"):
            db.log("orders", create=True)
        with pytest.raises(InvalidArgument, match=f"belongs to user {OTHER_USER}"):
            db.queue("emails", create=True)
    shop.chmod(0o2770)
    use_all(shop)


def test_both_ways_open_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system lacks ``openat2``, or a container refuses it, folders are opened one by one."""
    assert links._has_openat2() or os.uname().sysname != "Linux"
    disk, path = RealDisk(), Path(os.path.realpath(tmp_path)) / "a" / "b"
    for without in (False, True):
        if without:
            monkeypatch.setattr(links, "_has_openat2", lambda: False)
        assert disk.make_directory(path.parent) is not without
        disk.close(disk.open(path, create=True))
        disk.close(disk.open_to_read(path))
        disk.sync_directory(path.parent)
        assert disk.list_directory(path.parent) == [("b", False)]
        with pytest.raises(FileNotFoundError):
            disk.open_to_read(path.parent / "c")
    assert LocalStorage(tmp_path).url == tmp_path.as_uri()


EXT, XFS, TMPFS, BTRFS, OVERLAY, NFS, ZFS = 0xEF53, 0x58465342, 0x01021994, 0x9123683E, 0x794C7630, 0x6969, 0x2FC12FC1


@pytest.mark.parametrize(
    ("kind", "journals", "way"),
    [
        (EXT, 1, "without a name"),
        (EXT, 0, "under a name of its own"),
        (XFS, 0, "without a name"),
        (TMPFS, 0, "without a name"),
        *[(kind, 1, "under a name of its own") for kind in (BTRFS, OVERLAY, NFS, ZFS, 1, None)],
    ],
)
def test_only_file_systems_that_keep_a_file_without_a_name_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int | None, journals: int, way: str
) -> None:
    """Btrfs may leave the file empty after a power cut, ext4 without a journal deletes it: these, and all that nobody
    has looked at, get a file with a temporary name. Each device is asked once.
    """
    asked: list[int] = []

    def file_system(folder: int) -> int | None:
        asked.append(folder)
        return kind

    monkeypatch.setattr(links, "_file_system", file_system)
    monkeypatch.setattr(links, "_has_journal", lambda _: journals > 0)
    home = LocalStorage(tmp_path).home("orders")
    assert home.create("a/one", [b"x"])
    assert home.create("a/two", [b"x"])
    assert (tmp_path / "logs" / "orders" / "temporary").is_dir() is (way == "under a name of its own")
    assert len(asked) == 1


def test_the_kind_of_a_file_system_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is the one that the system's own tool shows; where the call fails, there is none."""
    shown = subprocess.run(["stat", "-f", "-c", "%t", tmp_path], capture_output=True, text=True, check=True).stdout
    with links.folder_of(tmp_path / "any") as folder:
        assert links._file_system(folder) == int(shown, 16)
        monkeypatch.setattr(links._libc, "fstatfs", lambda *_: -1)
        assert links._file_system(folder) is None


def test_a_journal_is_looked_for_by_the_name_of_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device without a name, as in a container that does not show devices, counts as one without a journal."""
    devices, journals = tmp_path / "block", tmp_path / "jbd2"
    devices.mkdir()
    (journals / "sda1-8").mkdir(parents=True)
    (devices / "8:1").symlink_to("../../devices/pci/block/sda/sda1")
    (devices / "8:2").symlink_to("../../devices/pci/block/sda/sda2")
    monkeypatch.setattr(links, "_BLOCK_DEVICES", devices)
    monkeypatch.setattr(links, "_JOURNALS", journals)
    assert [links._has_journal(os.makedev(8, minor)) for minor in (1, 2, 3)] == [True, False, False]
