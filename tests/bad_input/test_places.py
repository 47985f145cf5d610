"""Files and folders that are not what they should be, disks that are full or read-only, and formats of tomorrow."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import xxhash

import oncelog
from oncelog import CorruptionError, Database, InvalidArgument, NotFound, Record, Unavailable, Unsupported
from oncelog.format import block, frame
from oncelog.storage.local.home import LocalStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.disk import SimulatedDisk
from tests.bad_input.full_disk import die_on_a_full_disk, live_on_a_full_disk
from tests.bad_input.refusals import assert_unharmed, refused

REPOSITORY = Path(__file__).parents[2]
NO_RIGHT = "give the user of this process the right"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the folder of a log with one record, in a database at ``tmp_path``."""
    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders", create=True).writer() as writer:
        writer.append(b"before", id="before")
    return tmp_path / "logs" / "orders"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Yield the database at ``tmp_path``."""
    with oncelog.connect(tmp_path.as_uri()) as opened:
        yield opened


# What is there is something else.


@pytest.mark.parametrize("wrong", ["shop", "shop/logs", "shop/logs/orders", "shop/logs/orders/manifest"])
def test_file_where_a_folder_should_be(tmp_path: Path, wrong: str) -> None:
    """The message names the file, which is left alone."""
    file = tmp_path / wrong
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    with oncelog.connect((tmp_path / "shop").as_uri()) as db:
        for create in (False, True):
            with pytest.raises((InvalidArgument, NotFound)) as raised:
                db.log("orders", create=create)
        assert type(raised.value) is InvalidArgument
        assert wrong in str(raised.value)
        assert "a file where a folder should be: move it away" in str(raised.value)
    assert file.read_text() == "mine"


@pytest.mark.parametrize("wrong", ["lock", "manifest/00000000000000000001"])
def test_folder_where_a_file_should_be(tmp_path: Path, db: Database, wrong: str) -> None:
    """The same, the other way round."""
    (tmp_path / "logs" / "orders" / wrong).mkdir(parents=True)
    refused(lambda: db.log("orders", create=True).writer(), wrong, "a folder where a file should be: move it away")


def test_folder_that_is_found_while_writing(home: Path, db: Database) -> None:
    """By then the outcome is unknown, whatever the cause: the write is pending, and goes on when that is mended."""
    with db.log("orders").writer() as writer:
        (home / "published").unlink()
        (home / "published").mkdir()
        with pytest.raises(Unavailable, match="a folder where a file should be") as raised:
            writer.append(b"second", id="second", timeout_s=0.2)
        assert raised.value.outcome == "unknown"
        (home / "published").rmdir()
        assert writer.append(b"second", id="second").position == 1
    assert_unharmed(db, b"second")


def test_segments_folder_is_a_file(home: Path, db: Database) -> None:
    """A log whose segments cannot be where they were is not taken for an empty one."""
    (home / "segments").rename(home / "aside")
    (home / "segments").write_text("mine")
    log = db.log("orders")
    with pytest.raises((InvalidArgument, CorruptionError), match="segments"):
        list(log.read())
    (home / "segments").unlink()
    (home / "aside").rename(home / "segments")
    assert_unharmed(db)


def test_folder_that_is_not_a_log(tmp_path: Path, db: Database) -> None:
    """Somebody else's files are no log, and are still there when a log is made beside them."""
    folder = tmp_path / "logs" / "orders"
    folder.mkdir(parents=True)
    (folder / "holiday.jpg").write_bytes(b"mine")
    refused(lambda: db.log("orders"), "no log 'orders'", "create=True", error=NotFound)
    assert db.logs() == []
    with db.log("orders", create=True).writer() as writer:
        writer.append(b"before", id="before")
    assert_unharmed(db)
    assert (folder / "holiday.jpg").read_bytes() == b"mine"


def _put_away(home: Path, aside: Path, *names: str) -> None:
    for name in names:
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).rename(aside / name)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(
    "lost",
    [("manifest",), ("manifest", "bodies"), (f"manifest/{1:020d}",), (f"manifest/{1:020d}", f"manifest/{2:020d}")],
)
def test_records_without_a_manifest_are_not_taken_for_an_empty_log(
    tmp_path: Path, home: Path, lost: tuple[str, ...], *, sealed: bool
) -> None:
    """A new log over the old segments could not be appended to, and its upkeep would delete the old log's files."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        if sealed:
            db.log("orders").seal()
    _put_away(home, tmp_path / "aside", *lost)
    with oncelog.connect(tmp_path.as_uri()) as db, oncelog.connect("memory://") as other:
        other.log("orders", create=True)
        for use in (
            lambda: db.log("orders"),
            lambda: db.log("orders", create=True),
            lambda: db.log("conflicts.orders"),
            lambda: db.streams("orders", create=True),
            lambda: db.copy("orders", other),
            lambda: db.delete("orders"),
        ):
            refused(use, "manifest", "restore it from a copy", error=CorruptionError)
        assert db.logs() == ([] if sealed and "bodies" in lost else ["orders"])
        if not (sealed and "bodies" in lost):
            refused(lambda: other.copy("orders", db), "manifest", "restore it from a copy", error=CorruptionError)
    _put_away(tmp_path / "aside", home, *lost)
    with oncelog.connect(tmp_path.as_uri()) as db:
        assert_unharmed(db)


def test_a_creation_that_was_cut_short_is_no_lost_log(tmp_path: Path, home: Path, db: Database) -> None:
    """The first version's body is stored before the version: killed between them, the log is created again."""
    shutil.rmtree(home)
    with oncelog.connect((tmp_path / "other").as_uri()) as other:
        other.log("orders", create=True)
    shutil.copytree(tmp_path / "other" / "logs" / "orders" / "bodies", home / "bodies")
    assert db.logs() == []
    refused(lambda: db.log("orders"), "create=True", error=NotFound)
    with db.log("orders", create=True).writer() as writer:
        writer.append(b"before", id="before")
    assert_unharmed(db)


def test_strangers_among_the_logs(home: Path, db: Database) -> None:
    """Folders and files that no log could have are passed over, not stumbled over."""
    for stranger in ("lost+found", "my photos", ".Trash-0", "été", "empty"):
        (home.parent / stranger).mkdir()
    (home.parent / "note.txt").write_text("mine")
    assert db.logs() == ["orders"]
    assert_unharmed(db)


def test_log_under_another_logs_name(home: Path, db: Database) -> None:
    """A copy made by hand is not opened as what its folder says: its ids and its lock would be two logs'."""
    shutil.copytree(home, home.parent / "copy")
    refused(lambda: db.log("copy"), "'copy'", "holds log 'orders'", error=CorruptionError)
    assert_unharmed(db)


def test_root_that_is_not_there_yet(tmp_path: Path) -> None:
    """Nothing is made before the first log is, and then all of the way to it."""
    root = tmp_path / "a" / "b" / "c"
    with oncelog.connect(root.as_uri()) as db:
        assert db.logs() == []
        refused(lambda: db.log("orders"), "create=True", error=NotFound)
        assert not (tmp_path / "a").exists()
        db.log("orders", create=True)
        assert db.logs() == ["orders"]


# A format of tomorrow.


def write_newer_frame(path: Path, offset: int = 4) -> None:
    """Raise the version in an envelope, so that its checksum holds."""
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, offset, 99)
    digest = xxhash.xxh3_64(bytes(data[:16]))
    digest.update(bytes(data[frame.HEAD_BYTES :]))
    struct.pack_into("<Q", data, 16, digest.intdigest())
    path.write_bytes(data)


def test_manifest_of_a_newer_format(home: Path, db: Database) -> None:
    """A log that a newer Oncelog has written to is neither damaged nor guessed at: upgrade."""
    newest = max((home / "manifest").iterdir())
    before = newest.read_bytes()
    write_newer_frame(newest)
    refused(lambda: db.log("orders"), "format version 99", "upgrade", error=Unsupported)
    refused(lambda: db.log("orders", create=True), "format version 99", "upgrade", error=Unsupported)
    newest.write_bytes(before)
    assert_unharmed(db)


def test_manifest_body_of_a_newer_format(home: Path, db: Database) -> None:
    """The same for what a version points to."""
    body = max((home / "bodies").iterdir())
    version = max((home / "manifest").iterdir())
    before = body.read_bytes(), version.read_bytes()
    old = xxhash.xxh3_64_intdigest(body.read_bytes())
    write_newer_frame(body)
    new = xxhash.xxh3_64_intdigest(body.read_bytes())
    data = bytearray(version.read_bytes().replace(struct.pack(">Q", old), struct.pack(">Q", new)))
    digest = xxhash.xxh3_64(bytes(data[:16]))
    digest.update(bytes(data[frame.HEAD_BYTES :]))
    struct.pack_into("<Q", data, 16, digest.intdigest())
    version.write_bytes(data)
    refused(lambda: db.log("orders"), "format version 99", "upgrade", error=Unsupported)
    body.write_bytes(before[0])
    version.write_bytes(before[1])
    assert_unharmed(db)


def test_block_of_a_newer_format(home: Path, db: Database) -> None:
    """Neither reader nor writer skips a block that it cannot read, nor calls it torn."""
    (segment,) = (home / "segments").glob("*.blocks")
    before = segment.read_bytes()
    data = bytearray(before)
    struct.pack_into("<H", data, 8, 99)
    struct.pack_into("<Q", data, 120, xxhash.xxh3_64_intdigest(bytes(data[:120])))
    assert data[:8] == block.MAGIC
    segment.write_bytes(data)
    log = db.log("orders")
    refused(lambda: list(log.read()), "version 99", error=Unsupported)
    refused(log.writer, "version 99", error=Unsupported)
    segment.write_bytes(before)
    assert_unharmed(db)


def test_snapshot_of_a_newer_format_costs_time_only(home: Path, db: Database) -> None:
    """A snapshot is a cache: one that cannot be read is passed over, never taken for an empty window."""
    with db.log("orders").writer() as writer:
        writer.snapshot()
    (snapshot,) = (home / "dedup_snapshot").glob("*/*")
    write_newer_frame(snapshot)
    assert_unharmed(db)


# A disk that does not do as it is told. The simulated one asks nobody which user the tests run as.


class Machine:
    """A database on a simulated disk, with a log of one record."""

    def __init__(self) -> None:
        self.clock = SimulatedClock(auto_advance=True)
        self.disk = SimulatedDisk()
        with self.connect() as db, db.log("orders", create=True).writer() as writer:
            writer.append(b"before", id="before")

    def connect(self) -> Database:
        """Open the database, as another process would."""
        return Database(LocalStorage(Path("/shop"), self.disk, self.clock), self.clock)


def test_read_only_disk(tmp_path: Path) -> None:
    """Reading goes on, writing says what is wrong, and works again once the disk does."""
    machine = Machine()
    with machine.connect() as db:
        log = db.log("orders")
        machine.disk.read_only = True
        assert [entry.value for entry in log.read()] == [b"before"]
        refused(log.writer, "read-only", "mount it writable", error=Unavailable)
        refused(lambda: db.log("new", create=True), "read-only", "mount it writable", error=Unavailable)
        machine.disk.read_only = False
        assert_unharmed(db)


def test_disk_that_becomes_read_only_under_a_writer() -> None:
    """As ext4 does after an error: what was acknowledged stands, what was not is pending and says why."""
    machine = Machine()
    with machine.connect() as db:
        with db.log("orders").writer() as writer:
            assert writer.append(b"first", id="first").position == 1
            machine.disk.read_only = True
            with pytest.raises(Unavailable, match="read-only") as raised:
                writer.append_batch([Record(bytes(200_000), id="second")], timeout_s=1)
            assert raised.value.outcome == "unknown"
            machine.disk.read_only = False
            assert writer.append(bytes(200_000), id="second", timeout_s=None).position == 2
        assert_unharmed(db, b"first", bytes(200_000))


def use_everything(db: Database) -> None:
    """List, write and create."""
    db.logs()
    db.log("orders").writer().close()
    db.log("new", create=True)


@pytest.mark.parametrize("operation", ["open", "open_to_read", "list_directory", "make_directory", "identity"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_permission_denied(operation: str, number: int) -> None:
    """Whatever it is that this user may not do, the message says which right is missing, and where."""
    machine = Machine()

    def deny(called: str, _what: str) -> Exception | None:
        return PermissionError(number, os.strerror(number)) if called == operation else None

    machine.disk.faults.fail_forever(deny)
    with machine.connect() as db:
        refused(partial(use_everything, db), "/shop", NO_RIGHT)
        machine.disk.faults.heal()
        assert_unharmed(db)


def simulate_a_full_disk() -> None:
    """Fill a simulated disk."""
    clock = SimulatedClock(auto_advance=True)
    disk = SimulatedDisk(size_bytes_max=1_000_000)

    def connect() -> Database:
        return Database(LocalStorage(Path("/shop"), disk, clock), clock)

    stored = live_on_a_full_disk(connect, lambda: disk.free(1_000_000))
    die_on_a_full_disk(connect, lambda: disk.free(1_000_000), stored)


def test_full_disk_in_simulation() -> None:
    """Nothing acknowledged is lost, the message says what to do, and it goes on when there is room."""
    simulate_a_full_disk()


def test_full_disk(tmp_path: Path) -> None:
    """The same on a real file system of four megabytes, where a process may mount one for itself."""
    program = ["unshare", "--map-root-user", "--mount", sys.executable, "-m", "tests.bad_input.full_disk"]
    if shutil.which(program[0]) is None or subprocess.run([*program[:3], "true"], check=False).returncode:
        simulate_a_full_disk()
        return
    done = subprocess.run([*program, tmp_path], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
