"""A log copied to another home: the same records at the same places, and the same answers to a retry."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

import oncelog
from oncelog import IdConflict, InvalidArgument, LogSettings, NotFound, Record, Unavailable, Window
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.limits import KIB
from oncelog.log import inner
from oncelog.log.jobs.copy import Copy
from oncelog.log.log import Log
from oncelog.storage.base import Storage
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.faults import Killed
from oncelog.testing.storage import FaultyStorage
from tests.log.ingest.adoption import adopt
from tests.log.shop import stage

SETTINGS = LogSettings(window=Window(duration_s=1e6, max_keys=1_000), segment_bytes=64 * KIB, seal="off")
RECORDS = [Record(b"%d" % number * 2_000, id=str(number)) for number in range(60)]


@pytest.fixture(params=["file", "memory", "bucket"])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Yield an empty database of every kind."""
    if request.param == "file":
        database = oncelog.connect((tmp_path / "there").as_uri())
    else:
        storage: Storage = MemoryStorage()
        if request.param == "bucket":
            storage = ObjectStorage(Bucket(MemoryStore(), "s3://memory"))
        database = Database(storage)
    with database:
        yield database


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Database]:
    """Yield a database with a log of every kind of segment: sealed, closed, and open."""
    with oncelog.connect((tmp_path / "here").as_uri()) as database:
        log = database.log("orders", SETTINGS, create=True)
        with log.writer() as writer:
            writer.append_many(RECORDS[:20])
            writer.snapshot()
        log.seal()
        with log.writer() as writer:
            writer.append_many(RECORDS[20:50])
        yield database


def rows(log: Log) -> list[oncelog.Entry]:
    """Return all that is in a log."""
    return list(log.read())


def check_same(here: Database, there: Database, name: str = "orders") -> None:
    """Hold a copy against the log it is of: what is in it, and what it answers to a retry."""
    assert rows(there.log(name)) == rows(here.log("orders"))
    assert there.log(name).info().log_id == here.log("orders").info().log_id
    assert there.log(name).settings == here.log("orders").settings
    assert there.log(name).verify().ok


def test_a_copy_is_the_same_log(here: Database, there: Database) -> None:
    """Places, times and settings are as they were; every id is known, and a conflict is one."""
    done = here.copy("orders", there)
    assert done.records == 50
    check_same(here, there)
    expected = {entry.id: (entry.position, entry.segment, entry.entry) for entry in rows(here.log("orders"))}
    with there.log("orders").writer() as writer:
        acks = writer.append_many(RECORDS[:50])
        assert all(ack.duplicate for ack in acks)
        assert {str(n): (ack.position, ack.segment, ack.entry) for n, ack in enumerate(acks)} == expected
        with pytest.raises(IdConflict):
            writer.append(b"other", id="7")
        assert writer.append(b"new", id="new").position == 50


def test_a_log_that_is_being_written_is_copied_as_far_as_it_can_be_seen(here: Database, there: Database) -> None:
    """Its writer does not notice; the copy has the open segment up to there."""
    with here.log("orders").writer() as writer:
        writer.append_many(RECORDS[50:55])
        here.copy("orders", there)
        check_same(here, there)
        writer.append_many(RECORDS[55:])
        here.copy("orders", there)
        check_same(here, there)
    assert len(rows(there.log("orders"))) == 60


def test_a_copy_is_made_again_for_nothing(here: Database, there: Database) -> None:
    """What is there is not stored once more."""
    assert here.copy("orders", there).bytes_stored > 0
    assert here.copy("orders", there).bytes_stored == 0
    check_same(here, there)


def test_what_was_purged_truncated_or_set_reaches_a_copy_without_a_new_record(tmp_path: Path, there: Database) -> None:
    """Somebody who purged a log and copies it again would find the purged records in the copy."""
    here = oncelog.connect((tmp_path / "purged").as_uri())
    log = here.log("orders", LogSettings(window=Window(max_keys=2), segment_bytes=64 * KIB), create=True)
    for ids in ("abcabc", "d"):
        with log.writer() as writer:
            for id in ids:
                writer.append(id.encode(), id=id)
    log.seal()
    copied = here.copy("orders", there)
    assert log.purge(remove=True).purged == 3
    log.configure(LogSettings(segment_bytes=64 * KIB))
    log.rebuild()
    assert here.copy("orders", there).records == copied.records
    copy = there.log("orders")
    assert [entry.id for entry in copy.read()] == list("abcd")
    assert copy.info().settings == log.info().settings
    assert len(copy._manifest().memory) == 1
    version = copy.info().version
    assert here.copy("orders", there).bytes_stored == 0
    assert copy.info().version == version, "nothing has changed"
    assert [finding for finding in copy.verify().findings if finding.severity != "note"] == []


@pytest.mark.parametrize("grows", [False, True])
def test_a_copier_that_is_late_takes_nothing_back(
    tmp_path: Path, there: Database, monkeypatch: pytest.MonkeyPatch, *, grows: bool
) -> None:
    """What it wants to refer to is deleted by then, because another one has brought another state."""
    here = oncelog.connect((tmp_path / "purged").as_uri())
    log = here.log("orders", LogSettings(window=Window(max_keys=2)), create=True)
    with log.writer() as writer:
        for id in "abcabc":
            writer.append(id.encode(), id=id)
    log.seal()
    here.copy("orders", there)
    shutil.copytree(tmp_path / "purged", tmp_path / "before")
    other = oncelog.connect((tmp_path / "before").as_uri())
    log.purge(remove=True)
    publish = Copy._publish

    def late(self: Copy, *arguments: Any) -> None:
        monkeypatch.setattr(Copy, "_publish", publish)
        here.copy("orders", there)
        publish(self, *arguments)

    if grows:
        with other.log("orders").writer() as writer:
            writer.append(b"d", id="d")
    other.log("orders").configure(LogSettings(window=Window(max_keys=3)))
    monkeypatch.setattr(Copy, "_publish", late)
    with pytest.raises(Unavailable, match="copy it again") if grows else contextlib.nullcontext():
        other.copy("orders", there)
    copy = there.log("orders")
    assert [entry.id for entry in copy.read()] == list("abc")
    assert copy.verify().ok


def test_a_copier_that_begins_late_takes_nothing_back(tmp_path: Path, there: Database) -> None:
    """Between its look at the log and its look at the copy, another one has brought what was truncated since."""
    here = oncelog.connect((tmp_path / "truncated").as_uri())
    log = here.log("orders", LogSettings(idempotence="off"), create=True)
    with log.writer() as writer:
        writer.append_many([Record(b"a"), Record(b"b"), Record(b"c")])
    log.seal()
    here.copy("orders", there)
    looked_at = log._manifests.newest()
    assert looked_at is not None
    assert log.truncate(2).first_position == 2
    here.copy("orders", there)
    copy = there.log("orders")
    Copy(inner.home(log), inner.home(copy), SYSTEM, None).run(looked_at, "orders")
    assert [entry.value for entry in copy.read()] == [b"c"]


def test_under_another_name(here: Database) -> None:
    """A copy beside the original has a name of its own, and is of the same identity."""
    here.copy("orders", here, rename="orders-copy")
    check_same(here, here, "orders-copy")
    assert here.logs() == ["orders", "orders-copy"]


def test_content_ids_are_those_of_the_original(tmp_path: Path, there: Database) -> None:
    """A record without an id that was stored before the copy is known after it."""
    with oncelog.connect((tmp_path / "content").as_uri()) as here:
        with here.log("orders", LogSettings(idempotence="content"), create=True).writer() as writer:
            writer.append(b"paid")
        here.copy("orders", there)
        with there.log("orders").writer() as writer:
            assert writer.append(b"paid").duplicate


def test_what_else_is_there_is_not_touched(here: Database, there: Database) -> None:
    """Neither another log of that name, nor a copy that has lived on, nor a log that is not there."""
    with pytest.raises(NotFound):
        here.copy("missing", there)
    with there.log("orders", create=True).writer() as writer:
        writer.append(b"other")
    with pytest.raises(InvalidArgument, match="another log"):
        here.copy("orders", there)
    here.copy("orders", there, rename="copy")
    with there.log("copy").writer() as writer:
        writer.append(b"lives on")
    with pytest.raises(InvalidArgument, match="written to since"):
        here.copy("orders", there, rename="copy")
    assert [entry.value for entry in there.log("orders").read()] == [b"other"]


def test_a_log_that_is_copied_onto_itself_is_not_called_a_copy_to_delete(here: Database, there: Database) -> None:
    """Who mixes up source and target, or names one place twice, must not be told to delete the original."""
    with pytest.raises(InvalidArgument, match="this log itself") as onto_itself:
        here.copy("orders", here)
    here.copy("orders", there)
    with pytest.raises(InvalidArgument, match="this log itself") as mixed_up:
        there.copy("orders", here)
    assert "delete" not in f"{onto_itself.value} {mixed_up.value}"
    assert here.logs() == ["orders"]


@pytest.mark.parametrize(("name", "rename"), [("conflicts.orders", None), ("orders", "conflicts.copy")])
def test_conflicts_are_copied_with_their_log(here: Database, there: Database, name: str, rename: str | None) -> None:
    """They live in its home: a copy of them alone would be a log that nobody can open."""
    with pytest.raises(InvalidArgument, match="conflicts are copied with"):
        here.copy(name, there, rename=rename)
    assert there.logs() == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_operation(here: Database, when: str) -> None:
    """A copy that is cut short anywhere is no log, or the whole one; made again, it is the whole one."""
    for number in count(1):
        faulty = FaultyStorage(MemoryStorage())
        there = Database(faulty)
        faulty.kill_at(number, when)  # type: ignore[arg-type]
        try:
            here.copy("orders", there)
            break
        except Killed:
            faulty.restart()
        if there.logs():
            check_same(here, there)
        here.copy("orders", there)
        check_same(here, there)
    assert number > 10


def test_a_file_that_was_damaged_is_not_copied(here: Database, there: Database, tmp_path: Path) -> None:
    """A copy is no place for bytes that were never written."""
    path = Path(here.log("orders").files()[0].path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    with pytest.raises(oncelog.CorruptionError):
        here.copy("orders", there)
    assert there.logs() == []


def test_what_truncation_left_behind_is_copied(tmp_path: Path, there: Database) -> None:
    """How far a producer got is known in the copy, though its records are gone."""
    with oncelog.connect((tmp_path / "here").as_uri()) as here:
        log = here.log("orders", SETTINGS, create=True)
        for number in range(3):
            with log.writer(producer="importer") as writer:
                writer.append(b"v" * 70_000, sequence=number)
                writer.snapshot()
        log.truncate(before=2)
        here.copy("orders", there)
        assert there.log("orders").info().first_position == log.info().first_position > 0
        with there.log("orders").writer(producer="importer") as writer:
            assert writer.last_sequence == 2
            assert writer.append(b"v" * 70_000, sequence=0).duplicate


def test_a_copy_that_is_swept_while_it_grows() -> None:
    """What was stored and not pointed to yet is as young as the copy, however old the file is that it is of."""
    clock = SimulatedClock()
    here, there = Database(MemoryStorage(clock=clock), clock), Database(MemoryStorage(clock=clock), clock)
    log = here.log("orders", SETTINGS, create=True)
    with log.writer() as writer:
        writer.append_many(RECORDS[:20])
    here.copy("orders", there)
    with log.writer() as writer:
        writer.append_many(RECORDS[20:])
    log.seal()
    clock.advance(3 * 86_400)

    def sweep(_done: int, _total: int) -> None:
        there.log("orders").sweep()

    here.copy("orders", there, progress=sweep)
    check_same(here, there)


def test_a_segment_that_is_sealed_before_it_was_read(there: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """What had been acknowledged when the copy began is in it, also where nobody tells a block that is gone from one
    that never was.
    """
    here = Database(ObjectStorage(Bucket(MemoryStore(), "s3://memory")))
    log = here.log("orders", SETTINGS, create=True)
    writer = log.writer()
    writer.append_many(RECORDS)
    look = Copy._open

    def later(self: Copy, *where: Any) -> Iterator[Any]:
        writer.close()
        log.seal()
        return look(self, *where)

    monkeypatch.setattr(Copy, "_open", later)
    assert here.copy("orders", there).records == len(RECORDS)
    check_same(here, there)
    here.close()


def split(first: Database, second: Database) -> tuple[Log, Log]:
    """Return a log and a copy of it, both of which were written to since the copy was made: as many records each."""
    log = first.log("orders", SETTINGS, create=True)
    with log.writer() as writer:
        writer.append_many(RECORDS[:5])
    first.copy("orders", second)
    copy = second.log("orders")
    with log.writer() as writer:
        writer.append_many(RECORDS[5:8])
        writer.snapshot()
    with copy.writer() as writer:
        writer.append_many(RECORDS[20:23])
    with copy.writer() as writer:
        writer.append_many(RECORDS[23:26])
    return log, copy


def test_records_of_two_copies_are_not_mixed(there: Database, tmp_path: Path) -> None:
    """A log and a copy of it that both went on have the same identity, and other records at the same places. A copy of
    the one is not made a copy of the other, neither in part nor without a word.
    """
    with oncelog.connect((tmp_path / "first").as_uri()) as first, oncelog.connect("memory://") as second:
        log, copy = split(first, second)
        first.copy("orders", there)
        with pytest.raises(InvalidArgument, match="has other records than this log"):
            second.copy("orders", there)
        assert rows(there.log("orders")) == rows(log)
        there.delete("orders")
        second.copy("orders", there)
        assert rows(there.log("orders")) == rows(copy)
        with pytest.raises(InvalidArgument, match="has other records than this log"):
            first.copy("orders", there)


def test_what_a_copy_that_was_cut_short_left_is_not_taken_for_records_of_another(tmp_path: Path) -> None:
    """A file or a snapshot that was stored for a log is none of its copy, though both have as many records there."""
    with oncelog.connect((tmp_path / "first").as_uri()) as first, oncelog.connect("memory://") as second:
        _, copy = split(first, second)
        for number in count(1):
            faulty = FaultyStorage(MemoryStorage())
            there = Database(faulty)
            faulty.kill_at(number, "before")
            try:
                first.copy("orders", there)
                break
            except Killed:
                faulty.restart()
            second.copy("orders", there)
            assert rows(there.log("orders")) == rows(copy)
            with there.log("orders").writer() as writer:
                assert all(ack.duplicate for ack in writer.append_many(RECORDS[20:26]))


def test_a_copy_goes_on_when_the_writer_of_its_log_was_killed(there: Database) -> None:
    """The segment that was open at the first copy is closed by the next writer: it is the same segment, with more."""
    storage = FaultyStorage(MemoryStorage())
    here = Database(storage)
    writer = here.log("orders", SETTINGS, create=True).writer()
    for number in range(3):
        writer.append_many(RECORDS[number * 2 : number * 2 + 2])
        here.copy("orders", there)
    storage.kill_at(1, "before")
    with pytest.raises(Killed):
        writer.append_many(RECORDS[40:42])
    storage.restart()
    here = Database(storage)
    here.copy("orders", there)
    check_same(here, there)
    with here.log("orders").writer() as writer:
        here.copy("orders", there)
        check_same(here, there)
        writer.append_many(RECORDS[6:10])
        here.copy("orders", there)
        check_same(here, there)


def test_a_copy_that_begins_again_says_what_its_records_carry(here: Database) -> None:
    """The open segment was stored by an attempt before: the copy can be purged like its log, which holds no streams."""
    with here.log("orders").writer() as writer:
        writer.append_many(RECORDS[50:55])
        storage = FaultyStorage(MemoryStorage())
        for number in count(1):
            storage.kill_at(number, "after")
            try:
                here.copy("orders", Database(storage))
                break
            except Killed:
                storage.restart()
    storage.restart()
    assert Database(storage).log("orders").purge(remove=True).purged == 0


def test_a_run_that_is_lost_does_not_keep_a_log_from_being_copied(there: Database, tmp_path: Path) -> None:
    """A run is a cache: the copy has the records, and its first writer knows every id."""
    with oncelog.connect((tmp_path / "here").as_uri()) as here:
        log = here.log("orders", LogSettings(seal="off"), create=True)
        with log.writer() as writer:
            acks = writer.append_many(RECORDS)
        log.rebuild()
        (run,) = log._manifest().memory
        log._home.delete(run.part_key(0))
        here.copy("orders", there)
        assert there.log("orders")._manifest().memory == ()
        with there.log("orders").writer() as writer:
            again = writer.append_many(RECORDS)
        assert [ack.position for ack in again if ack.duplicate] == [ack.position for ack in acks]
        assert there.log("orders").verify().ok


def test_a_copy_is_made_without_the_identities_beside_adopted_files(there: Database) -> None:
    """A run had them, and the run is lost: copied twice, the records alone tell every id."""
    here = Database(MemoryStorage())
    log = here.log("orders", LogSettings(seal="off"), create=True)
    with log.writer() as writer:
        adopt(writer, [stage(log, RECORDS[:10])])
    log.rebuild()
    (run,) = log._manifest().memory
    log._home.delete(run.part_key(0))
    here.copy("orders", here, rename="between")
    here.copy("between", there, rename="orders")
    with there.log("orders").writer() as writer:
        assert all(ack.duplicate for ack in writer.append_many(RECORDS[:10]))
    assert there.log("orders").verify().ok
