"""A verification finds nothing in a good log, whatever it has been through, and every damage where it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from oncelog.dedup.identity import Hasher
from oncelog.dedup.producers import Producers
from oncelog.dedup.window import DedupWindow as IdWindow
from oncelog.format import identities as identities_format
from oncelog.format.identities import Identities
from oncelog.format.manifest import Manifest, Segment
from oncelog.format.snapshot import Snapshot
from oncelog.log.append.tail import SegmentTail
from oncelog.log.jobs.verify import Finding, Verification
from oncelog.log.log import Log
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.run_set import RunSet
from oncelog.log.stored import object_keys, snapshots
from oncelog.log.stored.adopted_ids import Adopted
from oncelog.log.stored.staged import read_identities
from oncelog.log.takeover import recovery
from oncelog.log.takeover.recovery import Recovered
from oncelog.settings import LogSettings, Window
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryHome
from oncelog.testing.disk import SimulatedDisk
from oncelog.types import Record
from tests.log.ingest.adoption import adopt
from tests.log.shop import (
    LOG,
    SETTINGS,
    Shop,
    append,
    entries,
    fill,
    hasher,
    known,
    plain,
    records,
    snapshot_keys,
    stage,
)

SMALL = msgspec.structs.replace(SETTINGS, window=Window(duration_s=10, max_keys=4))


def filled(shop: Shop, *counts: int, settings: LogSettings = SETTINGS, seal: bool = False) -> Log:
    """Return a log with a closed segment of so many records, each with an id, for each count."""
    log = shop.log(settings)
    first = 0
    for count in counts:
        fill(log, plain(range(first, first + count)), clock=shop.clock)
        first += count
    if seal:
        log.seal()
    return log


def severities(found: Verification) -> set[str]:
    """Return how bad the findings are."""
    return {finding.severity for finding in found.findings}


def places(found: Verification) -> set[str]:
    """Return where the findings are."""
    return {finding.where for finding in found.findings}


# Good logs.


def crash(shop: Shop) -> None:
    """End every process, as far as the shop's home has any that can end."""
    if isinstance(shop.storage, LocalStorage):
        disk = shop.storage._disk
        assert isinstance(disk, SimulatedDisk)
        disk.crash()


def empty(shop: Shop) -> Log:
    """Return one to which nothing was ever written."""
    return shop.log(SETTINGS)


def open_with_a_writer(shop: Shop) -> Log:
    """Return one with a closed segment, and an open one that somebody writes to."""
    log = filled(shop, 5)
    writer = log.writer()
    writer.append_many(records(100, 7))
    return log


def closed(shop: Shop) -> Log:
    """Return one with records of all kinds, in closed segments."""
    log = shop.log(SETTINGS)
    fill(log, records(0, 7), records(7, 5), clock=shop.clock)
    return log


def with_snapshots(shop: Shop) -> Log:
    """Return one with snapshots of several moments, and records behind the last."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        for first in range(0, 12, 4):
            writer.append_many(records(first, 4))
            shop.clock.advance(1)
            writer.snapshot()
        append(writer, Record(b"behind", id="behind"))
    return log


def sealed(shop: Shop) -> Log:
    """Return one that is sealed, with a closed segment behind it."""
    log = with_snapshots(shop)
    log.seal()
    fill(log, plain(range(50, 55)))
    return log


def merged(shop: Shop) -> Log:
    """Return one that was sealed again and again, into one file."""
    log = shop.log(SETTINGS)
    for first in range(0, 9, 3):
        fill(log, records(first, 3), clock=shop.clock)
        log.seal()
    return log


def adopted(shop: Shop) -> Log:
    """Return one with files with and without ids among appended records, and a snapshot behind them."""
    log = filled(shop, 3)
    with log.writer() as writer:
        append(writer, Record(b"open", id="open"))
        adopt(writer, [stage(log, records(100, 6)), stage(log, [Record(b"none"), Record(b"none")])])
        writer.append_many(plain(range(200, 203)))
        writer.snapshot()
    return log


def adopted_and_merged(shop: Shop) -> Log:
    """Return the same, in one file."""
    log = adopted(shop)
    log.seal()
    assert len(log.files()) == 1
    return log


def truncated(shop: Shop) -> Log:
    """Return one that was truncated in the midst of a segment, with a snapshot of ids from before."""
    log = filled(shop, 4, 4, settings=SMALL)
    with log.writer() as writer:
        writer.snapshot()
        for each in plain(range(8, 13)):
            append(writer, each)
        truncated = log.truncate(6)
        assert truncated.first_position == 6
    return log


def truncated_in_a_file(shop: Shop) -> Log:
    """Return one that was truncated in the midst of a file that segments share, one of them adopted."""
    log = shop.log(SMALL)
    with log.writer() as writer:
        adopt(writer, [stage(log, plain(range(5)))])
        shop.clock.advance(20)
    fill(log, plain(range(10, 13)), plain(range(20, 26)), clock=shop.clock)
    log.seal()
    assert log.truncate(3).first_position == 3
    return log


def all_gone(shop: Shop) -> Log:
    """Return one of which everything was truncated away."""
    log = shop.log(msgspec.structs.replace(SETTINGS, idempotence="off"))
    fill(log, [Record(b"1"), Record(b"2")])
    assert log.truncate(2).first_position == 2
    return log


def crashed(shop: Shop) -> Log:
    """Return one whose writer ended without a word, and nobody has come after it."""
    log = filled(shop, 4)
    log.writer().append_many(plain(range(100, 105)))
    crash(shop)
    return shop.log()


def recovered(shop: Shop) -> Log:
    """Return one whose writer ended without a word, and another came after it."""
    crashed(shop)
    log = shop.log()
    with log.writer(takeover="force") as writer:
        writer.append_many(plain(range(100, 107)))
    return log


def batches(shop: Shop) -> Log:
    """Return one with batches between single records, some as large as the window, and again once forgotten."""
    log = shop.log(SMALL)
    with log.writer() as writer:
        for _ in range(2):
            writer.append_batch(plain(range(4)))
            writer.append_batch(plain(range(10, 12)))
            append(writer, Record(b"single", id="single"))
            writer.append_batch(plain(range(20, 24)))
            writer.snapshot()
    log.seal()
    with log.writer() as writer:
        assert not writer.append_batch(plain(range(4)))[0].duplicate
        writer.snapshot()
    return log


def forgotten_by_keys(shop: Shop) -> Log:
    """Return one with ids that were stored again as soon as four others had come, over and over."""
    log = shop.log(SMALL)
    for _ in range(3):
        with log.writer() as writer:
            for number in (0, 1, 2, 3, 4) * 3:
                assert not append(writer, plain([number])[0]).duplicate
            writer.snapshot()
    return log


def forgotten_by_time(shop: Shop) -> Log:
    """Return one with ids that were stored again when their time was over."""
    log = shop.log(SMALL)
    for _ in range(3):
        with log.writer() as writer:
            for number in (0, 1):
                assert not append(writer, plain([number])[0]).duplicate
            shop.clock.advance(9)
            assert append(writer, plain([0])[0]).duplicate
            shop.clock.advance(1)
            writer.snapshot()
    return log


def refreshed(shop: Shop) -> Log:
    """Return one with ids whose retries made them young again, so that they outlived others."""
    log = shop.log(msgspec.structs.replace(SMALL, window=Window(duration_s=10, max_keys=4, refresh_on_hit=True)))
    with log.writer() as writer:
        for number in range(12):
            append(writer, plain([number])[0])
            assert append(writer, plain([0])[0]).duplicate
            shop.clock.advance(1)
        writer.snapshot()
        assert not append(writer, plain([1])[0]).duplicate
    return log


def configured(shop: Shop) -> Log:
    """Return one whose window became larger, then smaller: ids are judged by the window of their time."""
    log = filled(shop, 6, settings=SMALL)
    fill(log, plain([0]))
    log.configure(SETTINGS)
    fill(log, plain(range(20, 30)), plain([5, 29]))
    log.configure(SMALL)
    fill(log, plain([20]), clock=shop.clock)
    return log


def paused(shop: Shop) -> Log:
    """Return one that was written by clocks that jumped."""
    log = shop.log(SMALL)
    for jump_s in (-3600, 7200, -86400):
        fill(log, plain(range(abs(jump_s), abs(jump_s) + 3)), clock=shop.clock)
        shop.clock.jump(jump_s)
    return log


GOOD: list[Callable[[Shop], Log]] = [
    empty,
    open_with_a_writer,
    closed,
    with_snapshots,
    sealed,
    merged,
    adopted,
    adopted_and_merged,
    truncated,
    truncated_in_a_file,
    all_gone,
    crashed,
    recovered,
    batches,
    forgotten_by_keys,
    forgotten_by_time,
    refreshed,
    configured,
    paused,
]


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize("make", GOOD, ids=lambda make: make.__name__)
def test_a_good_log_verifies_clean(shop: Shop, make: Callable[[Shop], Log], *, seal: bool) -> None:
    """No state that a log can come into by itself is called wrong, as it is and once it is sealed; all is read."""
    log = make(shop)
    if seal:
        log.seal()
    info = log.info()
    told: list[tuple[int, int]] = []
    found = log.verify(lambda done, total: told.append((done, total)))
    assert found.findings == ()
    assert found.ok
    records = info.last_position + 1 - info.first_position
    assert found.records == len(entries(log)) == records
    assert found.segments >= info.segments
    assert told[-1] == (records, records)
    assert told == sorted(told)
    assert {total for _, total in told} == {records}
    assert log.verify() == found


# Damage.


def flip(shop: Shop, key: str, at: int = -1) -> None:
    """Change one bit of an object."""
    data = bytearray(shop.home.read(key).to_pybytes())
    data[at] ^= 1
    shop.home.delete(key)
    assert shop.home.create(key, [bytes(data)])


def flip_block(shop: Shop, number: int, part: float) -> None:
    """Change one bit of a segment's first block, at a part of its length."""
    if isinstance(shop.home, MemoryHome):
        blocks = shop.home._segments[number].blocks
        data = bytearray(blocks[0].to_pybytes())
        data[int(part * (len(data) - 1))] ^= 1
        blocks[0] = pa.py_buffer(bytes(data))
        return
    assert isinstance(shop.storage, LocalStorage)
    disk = shop.storage._disk
    assert isinstance(disk, SimulatedDisk)
    folder = Path("/db/logs") / LOG / "segments"
    names = sorted(name for name, _ in disk.list_directory(folder) if name.endswith(".blocks"))
    content = disk.content(folder / names[number])
    size_bytes = shop.home.blocks(number, 0, None, 1)[0][0].size
    content[int(part * (size_bytes - 1))] ^= 1
    disk.put(folder / names[number], content)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 1.0])
def test_a_flipped_bit_in_a_block(shop: Shop, part: float) -> None:
    """It is an error of that segment, and of no other; the rest is read all the same, and progress gets to its end."""
    log = filled(shop, 3, 4, 5)
    flip_block(shop, 1, part)
    told: list[tuple[int, int]] = []
    found = log.verify(lambda done, total: told.append((done, total)))
    assert not found.ok
    assert severities(found) == {"error"}
    assert places(found) == {"segment 1"}
    assert found.records == 8
    assert told[-1] == (12, 12)


def test_all_before_a_damaged_block_is_checked(quick: Shop) -> None:
    """Blocks are checked many at a time, and still the records before the damage count, and none behind it."""
    log = filled(quick, 9, 2)
    assert isinstance(quick.home, MemoryHome)
    blocks = quick.home._segments[0].blocks
    data = bytearray(blocks[6].to_pybytes())
    data[-1] ^= 1
    blocks[6] = pa.py_buffer(bytes(data))
    found = log.verify()
    assert "ends at position 6, 9 was expected" in {finding.what for finding in found.findings}
    assert (places(found), found.records) == ({"segment 0"}, 6 + 2)


def test_many_small_blocks_are_hashed_together(quick: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred appends are looked up in one go: a log of single appends is verified about as fast as it is read."""
    log = filled(quick, 100)
    hashed: list[int] = []
    keys = Hasher.keys

    def counted(self: Hasher, rows: pa.RecordBatch) -> NDArray[np.uint64]:
        hashed.append(rows.num_rows)
        return keys(self, rows)

    monkeypatch.setattr(Hasher, "keys", counted)
    assert log.verify().ok
    assert hashed == [100]


def test_a_flipped_bit_in_the_open_segment(quick: Shop) -> None:
    """What is open is checked too, and called so."""
    log = filled(quick, 3)
    with log.writer() as writer:
        append(writer, plain([10])[0])
        append(writer, plain([11])[0])
        number = known(log).manifest.open_segment
        assert number is not None
        flip_block(quick, number, 0.5)
        found = log.verify()
        assert (severities(found), places(found)) == ({"error"}, {f"segment {number} (open)"})
        assert found.records == 3


def test_blocks_that_changed_places(quick: Shop) -> None:
    """Blocks that are whole, and not where they belong, are an error."""
    log = filled(quick, 4)
    assert isinstance(quick.home, MemoryHome)
    blocks = quick.home._segments[0].blocks
    blocks[1], blocks[2] = blocks[2], blocks[1]
    found = log.verify()
    assert (severities(found), places(found)) == ({"error"}, {"segment 0"})


@pytest.mark.parametrize("at", [0, 100, -1])
def test_a_flipped_bit_in_a_sealed_file(shop: Shop, at: int) -> None:
    """Every segment that is in the file is named, and none besides."""
    log = filled(shop, 3, 4, seal=True)
    (file,) = shop.home.list(object_keys.PREFIX)
    fill(log, plain(range(10, 12)))
    flip(shop, file, at)
    found = log.verify()
    assert (severities(found), places(found)) == ({"error"}, {"segment 0", "segment 1"})
    assert found.records == 2
    assert any(file in finding.what for finding in found.findings)


def test_missing_files(shop: Shop) -> None:
    """A sealed file or a run of blocks that is gone although the manifest has it is an error of its segment."""
    log = filled(shop, 3, seal=True)
    (file,) = shop.home.list(object_keys.PREFIX)
    fill(log, plain(range(10, 12)), plain(range(20, 22)))
    shop.home.delete(file)
    shop.home.remove_segment(2)
    found = log.verify()
    assert (severities(found), places(found)) == ({"error"}, {"segment 0", "segment 2"})
    assert found.records == 2


def test_a_flipped_bit_in_a_snapshot(shop: Shop) -> None:
    """A snapshot saves time and holds nothing else: a warning, with its key, and the log is as good as it was."""
    log = with_snapshots(shop)
    for at in (0, 40, -1):
        key = snapshot_keys(log)[-1]
        flip(shop, key, at)
        found = log.verify()
        assert found.ok
        assert [(finding.severity, finding.where) for finding in found.findings] == [("warning", key)]
        flip(shop, key, at)
    assert log.verify().findings == ()


@pytest.mark.parametrize("lost", [False, True])
def test_identities_that_cannot_be_read(shop: Shop, *, lost: bool) -> None:
    """The records tell the ids too, so what lies beside an adopted file is a warning when it is lost or damaged."""
    log = adopted(shop)
    (key,) = [key for key in shop.home.list(object_keys.PREFIX) if key.endswith(".ids")]
    if lost:
        shop.home.delete(key)
    else:
        flip(shop, key)
    found = log.verify()
    assert [(finding.severity, finding.where) for finding in found.findings] == [("warning", key)]


def test_identities_that_are_not_those_of_the_records(shop: Shop) -> None:
    """They are believed by the next writer, so when they lie ids may be stored twice: an error."""
    log = adopted(shop)
    (key,) = [key for key in shop.home.list(object_keys.PREFIX) if key.endswith(".ids")]
    true = read_identities(shop.home, key)
    for name, lie in (("low", true.low + 1), ("fingerprints", true.fingerprints + 1), ("rows", true.rows[::-1])):
        fields = {each: getattr(true, each) for each in Identities.__struct_fields__} | {name: lie}
        shop.home.delete(key)
        shop.home.create(key, identities_format.encode(Identities(**fields)))
        found = log.verify()
        assert [(finding.severity, finding.where) for finding in found.findings] == [("error", key)], name


# What the manifest says.


def change_manifest(log: Log, **changes: object) -> None:
    """Give the log a manifest that differs from what is there."""
    log._manifests.update(lambda manifest: msgspec.structs.replace(manifest, **changes))


def other_segments(log: Log, change: Callable[[tuple[Segment, ...]], tuple[Segment, ...]]) -> Manifest:
    """Give the log a manifest with other segments."""
    change_manifest(log, segments=change(known(log).manifest.segments))
    return known(log).manifest


@pytest.mark.parametrize("seal", [False, True])
def test_a_segment_that_the_manifest_lacks(shop: Shop, *, seal: bool) -> None:
    """Positions without a segment are an error at the one behind them, or at the first that is missing."""
    log = filled(shop, 3, 4, 5, seal=seal)
    manifest = other_segments(log, lambda segments: (segments[0], segments[2]))
    found = log.verify()
    assert not found.ok
    assert [finding.where for finding in found.findings if finding.severity == "error"] == ["segment 2"]
    assert "3 was expected" in found.findings[0].what
    change_manifest(log, segments=manifest.segments[:1])
    found = log.verify()
    assert [finding.where for finding in found.findings if finding.severity == "error"] == ["position 3"]


@pytest.mark.parametrize("field", ["checksum", "entries", "first_position"])
def test_a_segment_that_is_not_as_the_manifest_says(shop: Shop, field: str) -> None:
    """Its last block, its length and its place are held against the manifest."""
    log = filled(shop, 3, 4)

    def changed(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        last = segments[-1]
        return (*segments[:-1], msgspec.structs.replace(last, **{field: getattr(last, field) + 1}))

    other_segments(log, changed)
    found = log.verify()
    assert not found.ok
    assert places(found) <= {"segment 1", "position 8"}


def test_what_nothing_refers_to_is_worth_a_note(shop: Shop) -> None:
    """Files of a killed sealing, staged files and what is left to delete are told, and nothing is wrong with them."""
    log = filled(shop, 3)
    staged = stage(log, plain([9]))
    change_manifest(log, doomed=("blocks:77",))
    found = log.verify()
    assert found.ok
    assert severities(found) == {"note"}
    assert places(found) == {staged.key, staged.identities, "blocks:77"}


# Snapshots that lie.


def lie(shop: Shop, log: Log, change: Callable[[Snapshot], Snapshot]) -> tuple[Finding, ...]:
    """Put a changed copy of the newest snapshot in the place of all there are; return what is found."""
    log_id = known(log).manifest.log_id
    taken = next(snapshots.readable(shop.home, log_id, known(log).manifest.next_position))
    shop.lose_snapshots()
    snapshots.save(shop.home, log_id, change(taken), shop.clock)
    found = log.verify().findings
    shop.lose_snapshots()
    snapshots.save(shop.home, log_id, taken, shop.clock)
    assert log.verify().findings == ()
    return found


def without(taken: Snapshot, row: int) -> Snapshot:
    """Return a snapshot that lacks an id."""
    arrays = ("identities", "positions", "fingerprints", "ticks", "times", "starts")
    return msgspec.structs.replace(taken, **{name: np.delete(getattr(taken, name), row, 0) for name in arrays})


def swapped(taken: Snapshot) -> Snapshot:
    """Return a snapshot in which two ids have changed places."""
    order = [1, 0, *range(2, len(taken.positions))]
    return msgspec.structs.replace(taken, positions=taken.positions[order])


@pytest.mark.parametrize("seal", [False, True])
def test_snapshots_that_lie(shop: Shop, *, seal: bool) -> None:
    """A snapshot that is whole and tells something else than the log is an error, whatever it is."""
    log = filled(shop, 5, 5)
    with log.writer() as writer:
        writer.append_many(plain(range(10, 14)))
        writer.snapshot()
    if seal:
        log.seal()
    lies: dict[str, tuple[str, Callable[[Snapshot], Snapshot]]] = {
        "other ids": ("error", lambda it: msgspec.structs.replace(it, identities=it.identities + np.uint64(1))),
        "other content": ("error", lambda it: msgspec.structs.replace(it, fingerprints=it.fingerprints + np.uint64(1))),
        "other places": ("error", swapped),
        "a hole": ("error", lambda it: without(it, 5)),
        "the last is missing": ("error", lambda it: without(it, 13)),
        "all are missing": ("error", lambda it: without(it, slice(None))),  # type: ignore[arg-type]
        "the oldest is missing": ("error", lambda it: without(it, 0)),
    }
    for what, (severity, change) in lies.items():
        found = lie(shop, log, change)
        assert {finding.severity for finding in found} == {severity}, what
        assert {finding.where for finding in found} == {"snapshot up to 14"}, what


def test_a_snapshot_ahead_of_the_log(shop: Shop) -> None:
    """It speaks of records that are not there: an error, with its key."""
    log = with_snapshots(shop)
    ahead = known(log).manifest.next_position + 1
    found = lie(shop, log, lambda taken: msgspec.structs.replace(taken, watermark=ahead))
    (finding,) = found
    assert finding.severity == "error"
    assert finding.where.startswith("dedup_snapshot/")


# Promises that a writer broke.


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every writer begin with an empty window, and up-time begin again."""

    def recover(
        home: object,
        manifests: object,
        manifest: Manifest,
        settings: LogSettings,
        hasher: object,
        *,
        objects: RunObjects,
        **_: object,
    ) -> Recovered:
        window = IdWindow(settings.window.duration_us, settings.window.keys_max)
        adopted, runs = Adopted(settings.window.duration_us), RunSet.open(objects, ())
        return Recovered(window, adopted, manifest.next_position, manifest.uptime_us, Producers(), runs)

    monkeypatch.setattr(recovery, "recover", recover)


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.usefixtures("forgetful")
def test_an_id_that_was_stored_twice(shop: Shop, *, seal: bool) -> None:
    """An id within the window, however long ago by the calendar, is an error where it is for the second time."""
    log = filled(shop, 3, settings=SETTINGS)
    fill(log, plain(range(10, 15)))
    shop.clock.jump(1e9)
    fill(log, plain([20, 1]))
    if seal:
        log.seal()
    (finding,) = log.verify().findings
    assert (finding.severity, finding.where) == ("error", "segment 2")
    assert "position 9 " in finding.what


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.usefixtures("forgetful")
def test_how_soon_is_too_soon(shop: Shop, *, seal: bool) -> None:
    """A window of four knows an id until four more were stored: again before that is an error, after it is not."""
    log = shop.log(SMALL)
    fill(log, plain(range(4)), plain([10, 0, 1]), clock=shop.clock)
    if seal:
        log.seal()
    assert log.verify().findings == ()
    fill(log, plain([10]))
    if seal:
        log.seal()
    (finding,) = log.verify().findings
    assert (finding.severity, finding.where) == ("error", "segment 2")


@pytest.mark.usefixtures("forgetful")
def test_an_id_that_was_stored_twice_before_its_time_was_over(quick: Shop) -> None:
    """Time is counted in up-time: a moment before the duration is an error, the duration itself is not."""
    log = quick.log(SMALL)
    with log.writer() as writer:
        append(writer, plain([0])[0])
        quick.clock.advance(5)
    with log.writer() as writer:
        quick.clock.advance(5)
        append(writer, plain([0])[0])
        quick.clock.advance(9.999)
    assert log.verify().findings == ()
    fill(log, plain([0]))
    (finding,) = log.verify().findings
    assert (finding.severity, finding.where) == ("error", "segment 2")


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("merge", [False, True])
def test_ids_that_were_adopted_and_stored(shop: Shop, *, merge: bool) -> None:
    """Appended and then adopted, adopted twice, adopted and then appended: each is an error in the later place."""
    log = filled(shop, 3)
    for numbers in ([10, 1], [11, 10]):
        with log.writer() as writer:
            adopt(writer, [stage(log, plain(numbers))])
    fill(log, plain([12, 11]))
    if merge:
        log.seal()
    found = log.verify().findings
    assert {finding.severity for finding in found} == {"error"}
    segments = [segment for segment in known(log).manifest.segments if segment.number]
    assert [finding.where for finding in found] == [f"segment {segment.number}" for segment in segments]


def test_the_same_id_twice_in_an_adopted_file(quick: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that should never have been adopted is found by itself."""
    log = quick.log(SETTINGS)
    with log.writer() as writer:
        nothing = [np.zeros(3, np.bool_)]
        monkeypatch.setattr(writer._adopter, "_known", lambda *_: (nothing, nothing))
        adopt(writer, [stage(log, plain([1, 2, 1]))])
    (finding,) = log.verify().findings
    assert finding.severity == "error"
    assert "position 2 is also at 0" in finding.what


@pytest.mark.parametrize("seal", [False, True])
def test_timestamps_that_go_back(shop: Shop, monkeypatch: pytest.MonkeyPatch, *, seal: bool) -> None:
    """Time within a log never goes back; where it does is an error, within a segment and from one to the next."""
    log = filled(shop, 3)
    monkeypatch.setattr(SegmentTail, "timestamp_us", lambda _, now_us: now_us)
    shop.clock.jump(-60)
    with log.writer() as writer:
        append(writer, plain([10])[0])
    if seal:
        log.seal()
    (finding,) = log.verify().findings
    assert (finding.severity, finding.where) == ("error", "segment 1")
    assert "timestamps go back" in finding.what
    shop.clock.jump(120)
    with log.writer() as writer:
        append(writer, plain([11])[0])
        shop.clock.jump(-10)
        append(writer, plain([12])[0])
    if seal:
        log.seal()
    assert [(each.severity, each.where) for each in log.verify().findings] == [
        ("error", "segment 1"),
        ("error", "segment 2"),
    ]


def test_up_time_that_goes_back(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of ids is counted in up-time, so that it goes back is an error too."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        shop.clock.advance(100)
        append(writer, plain([0])[0])
    real = recovery.recover
    monkeypatch.setattr(recovery, "recover", lambda *arguments, **held: real(*arguments, **held)._replace(uptime_us=0))
    fill(log, plain([1]))
    (finding,) = log.verify().findings
    assert (finding.severity, finding.where) == ("error", "segment 1")
    assert "up-time goes back" in finding.what


# While the log lives on.


def test_a_log_that_changes_while_it_is_verified(shop: Shop) -> None:
    """Appends, adoptions, sealing and merging under its eyes are no findings; what came later is left out."""
    log = filled(shop, 3, 3, 3)
    other = shop.log()
    with other.writer() as writer:
        append(writer, plain([100])[0])
        steps: list[Callable[[], object]] = [
            other.seal,
            lambda: adopt(writer, [stage(other, plain([200, 201]))]),
            lambda: append(writer, plain([300])[0]),
            other.seal,
            writer.snapshot,
        ]

        def live(done: int, total: int) -> None:
            assert total == 10
            if steps:
                steps.pop(0)()

        found = log.verify(live)
        assert found.findings == ()
        assert found.records == 10
        while steps:
            steps.pop(0)()
        assert log.verify().findings == ()


def test_a_log_that_is_truncated_while_it_is_verified(shop: Shop) -> None:
    """What goes while it is read is not missed."""
    log = shop.log(msgspec.structs.replace(SETTINGS, idempotence="off"))
    for first in range(0, 12, 3):
        fill(log, [Record(b"%d" % number) for number in range(first, first + 3)])
    told: list[int] = []

    def live(done: int, total: int) -> None:
        told.append(done)
        if len(told) == 1:
            shop.log().truncate(8)

    found = log.verify(live)
    assert found.findings == ()
    assert found.records == 3 + 4
    assert told[-1] == 12


def test_hashes_of_another_log_do_not_verify(quick: Shop) -> None:
    """A snapshot is held against the log's own secret: one of a log with the same records lies."""
    log = with_snapshots(quick)
    before = hasher(log)
    change_manifest(log, secret=bytes(32))
    assert hasher(log) is not before
    assert {(finding.severity, finding.where) for finding in log.verify().findings} == {("error", "snapshot up to 12")}
