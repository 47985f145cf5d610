"""Closed segments become Parquet files, and nobody who reads or writes the log can tell when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog.clock import SYSTEM, Clock
from oncelog.connect import Database
from oncelog.errors import CorruptionError, IdConflict, InvalidArgument, NotFound, PartialOverlap
from oncelog.format.manifest import Segment
from oncelog.limits import KIB, MIB
from oncelog.log.log import Log
from oncelog.log.read.scan import Scan
from oncelog.log.stored import manifests as manifests_module
from oncelog.log.stored import object_keys
from oncelog.log.stored.manifests import Manifests
from oncelog.log.upkeep import sealing
from oncelog.log.upkeep.background import Housekeeper
from oncelog.log.upkeep.memory_keeper import MemoryKeeper
from oncelog.log.upkeep.sealing import Sealing
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings
from oncelog.storage.base import Chunk, LogHome
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryHome, MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.faults import Killed
from oncelog.testing.storage import FaultyStorage
from oncelog.types import Entry, Record
from tests.log.ingest.adoption import adopt
from tests.log.shop import (
    HOUR_S,
    LOG,
    SETTINGS,
    Shop,
    again,
    append,
    entries,
    fill,
    known,
    once,
    orphans,
    plain,
    record,
    records,
    stage,
    starts,
    table,
    values,
)


def filled(shop: Shop, *counts: int, size_bytes: int = 8, settings: LogSettings = SETTINGS) -> Log:
    """Return a log with a closed segment of so many records for each count."""
    log = shop.log(settings)
    first = 0
    for count in counts:
        fill(log, records(first, count, size_bytes), clock=shop.clock)
        first += count
    return log


# What becomes of segments.


def test_a_closed_segment_becomes_one_parquet_file(shop: Shop) -> None:
    """Sealing turns a segment into one file, says what it did, and the blocks are gone from the manifest."""
    log = filled(shop, 10)
    before = known(log).manifest.segments[0]
    done: list[Sealing] = []
    assert log.seal(done.append) == done[0]
    assert len(done) == 1
    assert (done[0].files, done[0].segments, done[0].records) == (1, 1, 10)
    assert (done[0].bytes_before, done[0].bytes_after) == (before.size_bytes, log.files()[0].bytes)
    after = known(log).manifest
    assert after.segments[0].file is not None
    assert (after.segments[0].end, after.segments[0].size_bytes) == (0, 0)
    assert after.doomed == ()
    assert log.info().sealed_segments == 1
    assert [file.records for file in log.files()] == [10]


def test_small_neighbours_share_a_file(shop: Shop) -> None:
    """Many little segments are one file, and each record keeps its segment and entry."""
    log = filled(shop, 3, 1, 4, 1, 5)
    places = [(entry.segment, entry.entry) for entry in entries(log)]
    done = log.seal()
    assert (done.files, done.segments, done.records) == (1, 5, 14)
    assert [(file.first_position, file.records) for file in log.files()] == [(0, 14)]
    assert [(entry.segment, entry.entry) for entry in entries(log)] == places
    assert len({segment.file.key for segment in known(log).manifest.segments if segment.file}) == 1


def test_small_files_are_put_together_again(shop: Shop) -> None:
    """Sealing often does not leave a heap of little files: neighbours are merged, and the old ones deleted."""
    log = shop.log(SETTINGS)
    for round_number in range(4):
        fill(log, records(round_number * 5, 5), clock=shop.clock)
        log.seal()
        assert len(log.files()) == 1
    assert values(log) == [each.value for each in records(0, 20)]
    assert len(shop.home.list(object_keys.PREFIX)) == 1


def test_segments_that_are_large_enough_keep_files_of_their_own(quick: Shop) -> None:
    """Files stay near the size that the settings ask for: what is large enough is not written again and again."""
    log = quick.log(SETTINGS)
    numbers = iter(range(1000))
    for _ in range(4):
        noise = quick.clock.token(60 * KIB)
        with log.writer() as writer:
            for at in range(0, len(noise), 10 * KIB):
                writer.append(noise[at : at + 10 * KIB], id=f"id-{next(numbers)}")
    assert log.seal().files == 4
    assert all(file.bytes >= 60 * KIB for file in log.files())
    version = known(log).version
    assert log.seal() == Sealing()
    assert known(log).version == version


def test_sealing_again_changes_nothing(shop: Shop) -> None:
    """A sealed log is at rest: sealing it writes nothing, not even a manifest version."""
    log = filled(shop, 5, 5)
    log.seal()
    before = known(log)
    assert log.seal() == Sealing()
    assert known(log) == before


def test_an_empty_log_and_one_with_an_open_segment_only(shop: Shop) -> None:
    """What is open is not sealed, and its writer does not notice the attempt."""
    log = shop.log(SETTINGS)
    assert log.seal() == Sealing()
    with log.writer() as writer:
        append(writer, record(0))
        assert log.seal() == Sealing()
        append(writer, record(1))
        assert log.files() == []
    assert values(log) == [record(0).value, record(1).value]


def test_a_file_is_compressed_and_has_statistics(shop: Shop) -> None:
    """Other tools skip row groups by time and id, and read zstd: both are in the file."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        writer.append_many([Record(b"paid", id=f"order-{number}", stream="s", type="t") for number in range(200)])
    log.seal()
    metadata = pq.read_metadata(pa.BufferReader(shop.home.read(shop.home.list(object_keys.PREFIX)[0])))
    group = metadata.row_group(0)
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    for name in ("timestamp", "id", "stream", "type"):
        assert columns[name].statistics.has_min_max


def test_a_damaged_segment_is_not_sealed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealing checks what it copies: damage is an error, and the blocks stay as evidence."""
    log = filled(shop, 5)
    real = shop.home.blocks

    def damaged(segment: int, cursor: int, end: int | None, limit_bytes: int) -> tuple[Sequence[pa.Buffer], int]:
        buffers, behind = real(segment, cursor, end, limit_bytes)
        content = bytearray(buffers[0].to_pybytes())
        content[-1] ^= 1
        return [pa.py_buffer(bytes(content)), *buffers[1:]], behind

    with monkeypatch.context() as patch:
        patch.setattr(log._home, "blocks", damaged)
        with pytest.raises(CorruptionError):
            log.seal()
    assert known(log).manifest.segments[0].file is None
    assert len(entries(log)) == 5


@pytest.mark.parametrize("suffix", ["blocks", "parquet"])
def test_a_segment_that_is_missing_is_damage(tmp_path: Path, suffix: str) -> None:
    """Sealing says of a missing file what reading says: something that the manifest refers to is lost."""
    log = Database(LocalStorage(tmp_path)).log(LOG, SETTINGS, create=True)
    for first in (0, 5):
        fill(log, records(first, 5))
        if suffix == "parquet":
            log.seal()
            fill(log, records(first + 100, 5))
    next(iter(sorted(tmp_path.rglob(f"*.{suffix}")))).unlink()
    with pytest.raises(CorruptionError, match="is missing: restore it from a copy"):
        list(log.read())
    with pytest.raises(CorruptionError, match="refers to it: restore it from a copy"):
        log.seal()


# Record for record.


def test_every_record_is_as_it_was(shop: Shop) -> None:
    """Sealing and merging change no field of any record: places, times, ids, headers, batches, nothing."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        for number in range(12):
            append(writer, record(number))
            shop.clock.advance(0.5)
        writer.append_batch(plain(range(100, 104)))
    with log.writer() as writer:
        shop.clock.advance(3)
        writer.append_many(records(20, 9))
        writer.append_batch(plain(range(110, 113)))
        writer.append_batch(plain(range(120, 121)))
    before = entries(log), table(log), starts(log)
    assert False in before[2]
    log.seal()
    assert (entries(log), table(log), starts(log)) == before
    fill(log, plain(range(200, 203)))
    log.seal()
    assert len(log.files()) == 1
    rest = len(before[0])
    assert (entries(log)[:rest], table(log).slice(0, rest), starts(log)[:rest]) == before
    assert entries(shop.log()) == entries(log)


def test_more_rows_than_a_row_group(quick: Shop) -> None:
    """A file of several row groups is read from any place in it, in order and whole."""
    log = quick.log(LogSettings(seal="off", segment_bytes=64 * MIB, idempotence="off"))
    count = 150_000
    numbers = pa.array(range(count), pa.int64())
    with log.writer() as writer:
        writer.append_arrow(pa.table({"value": numbers.cast(pa.string()).cast(pa.binary())}))
    log.seal()
    assert len(log.files()) == 1
    for start in (0, 1, 65_535, 65_536, 65_537, 131_072, count - 1):
        found = list(log.read_arrow(start, columns=["position", "value"]))
        positions = pa.concat_arrays([batch.column("position") for batch in found])
        assert positions.equals(pa.array(range(start, count), pa.int64()))
        assert found[0].column("value")[0].as_py() == str(start).encode()


# Starts inside sealed files.


def test_every_start_leads_to_the_same_place_as_before(shop: Shop) -> None:
    """A position, a (segment, entry) and a moment mean the same record, sealed or not."""
    log = shop.log(SETTINGS)
    for first in (0, 7, 12):
        with log.writer() as writer:
            for number in range(first, first + (7, 5, 9)[(0, 7, 12).index(first)]):
                append(writer, record(number))
                if number % 3 == 0:
                    shop.clock.advance(1)
    everything = entries(log)

    def answers() -> list[tuple[list[Entry], list[Entry]]]:
        found = []
        for at, entry in enumerate(everything):
            first_then = next(n for n, other in enumerate(everything) if other.timestamp == entry.timestamp)
            assert list(log.read(entry.position)) == everything[at:]
            assert list(log.read((entry.segment, entry.entry))) == everything[at:]
            assert list(log.read(entry.timestamp)) == everything[first_then:]
            later = list(log.read(entry.timestamp + timedelta(microseconds=1)))
            found.append((list(log.read(entry.position, limit=3)), later))
        assert list(log.read(everything[0].timestamp - timedelta(days=1))) == everything
        assert list(log.read(everything[-1].timestamp + timedelta(days=1))) == []
        return found

    before = answers()
    log.seal()
    assert answers() == before
    fill(log, records(21, 3))
    everything = entries(log)
    log.seal()
    answers()


def test_places_that_are_not_there(shop: Shop) -> None:
    """A sealed log refuses what an unsealed one refuses, with the first position it has."""
    log = filled(shop, 3, 2)
    log.seal()
    for start in (6, (0, 3), (1, 2), (2, 0), (7, 0)):
        with pytest.raises(NotFound) as caught:
            log.read(start)
        assert caught.value.first == 0
    assert list(log.read(5)) == []


def test_columns_are_read_alone(shop: Shop) -> None:
    """A projection gives the same columns, whether a record is in a file, a closed segment or the open one."""
    log = filled(shop, 6, 3)
    log.seal()
    fill(log, records(9, 3))
    with log.writer() as writer:
        append(writer, record(12))
        everything = table(log)
        for names in (["id"], ["position", "timestamp"], ["headers", "segment", "entry"], ["value"], ["stream", "id"]):
            found = pa.Table.from_batches(list(log.read_arrow(columns=names)))
            assert found.schema.names == names
            assert found.combine_chunks().equals(everything.select(names))
        assert list(log.read_arrow(columns=[]))
        with pytest.raises(InvalidArgument, match="uptime_us"):
            log.read_arrow(columns=["uptime_us"])


# Space.


def test_space_comes_back(tmp_path: Path) -> None:
    """When a log is sealed its blocks are gone from the disk, and so are files that were merged into others."""
    clock = SYSTEM
    log = Database(LocalStorage(tmp_path, clock=clock), clock).log(LOG, SETTINGS, create=True)
    for number in range(5):
        fill(log, plain([number], 50 * KIB))

    def used(pattern: str) -> int:
        return sum(path.stat().st_size for path in tmp_path.rglob(pattern))

    before = used("*.blocks")
    assert before >= 250 * KIB
    log.seal()
    assert list(tmp_path.rglob("*.blocks")) == []
    first = list(tmp_path.rglob("*.parquet"))
    assert used("*.parquet") < before / 5
    fill(log, plain([5], 50 * KIB))
    log.seal()
    after = list(tmp_path.rglob("*.parquet"))
    assert {str(path) for path in after} == {file.path for file in log.files()}
    assert not set(first) & set(after), "what was small was merged, and its file deleted"
    assert [len(value) for value in values(log)] == [50 * KIB] * 6


# Readers, while it happens.


def test_a_reader_goes_on_where_its_segment_was_sealed(shop: Shop) -> None:
    """Sealing, and merging again, under a reader in the midst of it all is not noticed."""
    log = filled(shop, 4, 4, 4)
    other = shop.log()
    with log.read() as reader:
        found = iter(reader)
        got = [next(found).value]
        other.seal()
        got += [next(found).value for _ in range(6)]
        fill(other, records(12, 3))
        other.seal()
        got += [entry.value for entry in found]
    assert got == [record(number).value for number in range(12)]


def test_a_tail_goes_from_sealed_to_open_without_a_seam(shop: Shop) -> None:
    """A tail that falls behind reads from files what it would have read from blocks, then goes on live."""
    log = filled(shop, 3)
    other = shop.log()
    with log.tail("earliest") as tail:
        got = [tail.poll()]
        fill(other, records(3, 6))
        other.seal()
        fill(other, records(9, 2))
        other.seal()
        with other.writer() as writer:
            append(writer, record(11))
            while len(got) < 12:
                got.append(tail.poll())
            assert tail.poll() is None
            append(writer, record(12))
            got.append(tail.poll())
    assert [entry.value if entry else None for entry in got] == [record(number).value for number in range(13)]


@pytest.mark.parametrize("what", ["rolled", "closed", "sealed"])
def test_what_was_open_when_reading_began_changes_before_its_end_is_known(shop: Shop, what: str) -> None:
    """Between finding its start and finding the log's end a reader's segment may close, and be sealed: it reads on."""
    log = shop.log(SETTINGS)
    other = shop.log()
    writer = other.writer()
    for each in plain(range(3), 30 * KIB):
        append(writer, each)
    scan = Scan(log._home, log._manifests, LOG)
    scan.begin(1)
    for each in plain(range(3, 8), 30 * KIB):
        append(writer, each)
    if what != "rolled":
        writer.close()
    if what == "sealed":
        other.seal()
    end = scan.end()
    assert end == 8
    got: list[int] = []
    while found := scan.next_rows(end):
        got += [entry.position for rows in found for entry in rows.entries()]
    assert got == list(range(1, 8))
    writer.close()


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_readers_and_tails_see_everything_once_while_sealing_goes_on(kind: str, tmp_path: Path) -> None:
    """A writer, sealers, readers and tails at work at once: positions without a gap, and no record but its own."""
    storage = MemoryStorage() if kind == "memory" else LocalStorage(tmp_path)
    total = 600
    wanted = [each.value for each in plain(range(total), 4 * KIB)]
    log = Database(storage).log(LOG, SETTINGS, create=True)
    done = threading.Event()

    def write() -> None:
        with Database(storage).log(LOG).writer() as writer:
            for first in range(0, total, 5):
                writer.append_many(plain(range(first, first + 5), 4 * KIB))

    def seal() -> int:
        own = Database(storage).log(LOG)
        files = 0
        while not done.is_set():
            files += own.seal().files
        return files + own.seal().files

    def read() -> int:
        own = Database(storage).log(LOG)
        rounds = 0
        while not done.is_set() or rounds == 0:
            start = rounds * 37 % 100 if own.info().last_position >= 100 else 0
            for expected, entry in enumerate(own.read(start), start):
                assert (entry.position, entry.value) == (expected, wanted[expected])
            rounds += 1
        return rounds

    def follow() -> list[bytes]:
        with Database(storage).log(LOG).tail("earliest") as tail:
            return [next(tail).value for _ in range(total)]

    with ThreadPoolExecutor(6) as threads:
        sealers = [threads.submit(seal) for _ in range(2)]
        readers = [threads.submit(read)]
        tails = [threads.submit(follow) for _ in range(2)]
        threads.submit(write).result()
        followed = [tail.result() for tail in tails]
        done.set()
        files = sum(sealer.result() for sealer in sealers)
        assert all(reader.result() for reader in readers)
    assert followed == [wanted, wanted]
    assert files > 1
    assert values(log) == wanted
    assert log.verify().findings == ()


# Sealers, against each other and against time.


def test_a_sealer_that_meets_another_leaves_the_work_to_it(shop: Shop) -> None:
    """What somebody else sealed meanwhile is neither an error nor sealed twice."""
    log = shop.log(SETTINGS)
    for first in range(0, 9, 3):
        fill(log, [Record(shop.clock.token(30 * KIB), id=f"id-{first + n}") for n in range(3)], clock=shop.clock)
    before = entries(log)
    other = shop.log()
    interfere = once(other.seal)
    done = log.seal(lambda _: interfere())
    assert done.files == 1
    assert entries(log) == before
    assert len(log.files()) == 3
    assert orphans(log) == set()
    assert log.verify().findings == ()


def test_two_sealers_of_one_group(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two sealers that made a file of the same segments one wins; the other's file is deleted, not the winner's."""
    log = filled(shop, 5, 5)
    before = entries(log)
    other = shop.log()
    real = sealing.point_to
    interfere = once(other.seal)

    def point_to(*arguments: Any) -> Any:
        interfere()
        return real(*arguments)

    monkeypatch.setattr(sealing, "point_to", point_to)
    assert log.seal().files == 0
    assert entries(log) == before
    assert len(shop.home.list(object_keys.PREFIX)) == len(log.files()) == 1


def test_a_sealer_whose_segments_are_truncated_meanwhile(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of records that are gone by now is not brought back into the log."""
    log = shop.log(LogSettings(idempotence="off", seal="off"))
    for first in (0, 5):
        fill(log, [Record(b"%d" % n) for n in range(first, first + 5)])
    other = shop.log()
    real = sealing.point_to
    interfere = once(lambda: other.truncate(7))

    def point_to(*arguments: Any) -> Any:
        interfere()
        return real(*arguments)

    monkeypatch.setattr(sealing, "point_to", point_to)
    log.seal()
    assert [entry.position for entry in entries(log)] == [7, 8, 9]
    assert orphans(log) == set()
    assert log.verify().ok


def hooked_create(monkeypatch: pytest.MonkeyPatch, log: Log, action: Callable[[], object]) -> None:
    """Let something happen right after the log's next sealed file has been written."""
    real = log._home.create
    act = once(action)

    def create(key: str, data: Sequence[Chunk]) -> bool:
        made = real(key, data)
        if key.startswith(object_keys.PREFIX) and key.endswith(".parquet"):
            act()
        return made

    monkeypatch.setattr(log._home, "create", create)


def leave_orphan(shop: Shop) -> str:
    """Leave a file behind that no manifest points to, as a sealer does that is killed; return its key."""
    key = object_keys.new_key(shop.clock)
    shop.home.create(key, [b"half a thought"])
    return key


def test_a_sealer_that_slept_too_long_is_refused_and_loses_nothing(
    quick: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file older than the floor may have been swept away: the manifest does not come to point to it."""
    log = filled(quick, 5)
    before = entries(log)
    leave_orphan(quick)

    def sleep() -> None:
        quick.clock.advance(2 * object_keys.STAGED_S)
        assert len(sealing.sweep(quick.home, log._manifests, quick.clock)) == 2

    hooked_create(monkeypatch, log, sleep)
    assert log.seal().files == 0
    assert entries(log) == before
    assert known(log).manifest.segments[0].file is None
    assert log.seal().files == 1
    assert entries(log) == before


def test_orphans_go_when_they_are_older_than_the_floor(shop: Shop) -> None:
    """What a killed sealing left is deleted once nothing can come to point to it, and what is in use never."""
    log = filled(shop, 5)
    log.seal()
    used = set(shop.home.list(object_keys.PREFIX))
    old = leave_orphan(shop)
    beside = old.removesuffix(".parquet") + ".ids"
    shop.home.create(beside, [b"and what was beside it"])
    log.seal()
    assert orphans(log) == {old, beside}
    shop.clock.advance(object_keys.STAGED_S / 2)
    young = leave_orphan(shop)
    shop.clock.advance(object_keys.STAGED_S / 2 + 1)
    log.seal()
    assert set(shop.home.list(object_keys.PREFIX)) == {*used, young}
    assert known(log).manifest.staging_floor_us > object_keys.created_us(old)
    assert known(log).manifest.staging_floor_us <= object_keys.created_us(young)
    assert len(entries(log)) == 5


def test_the_floor_is_announced_before_anything_is_deleted(quick: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """First unreachable, then deleted: anybody who finds its file gone can read in the manifest why."""
    log = filled(quick, 5)
    old = leave_orphan(quick)
    quick.clock.advance(2 * object_keys.STAGED_S)
    floors: list[int] = []
    real = quick.home.delete

    def delete(key: str) -> None:
        if key == old:
            floors.append(known(log).manifest.staging_floor_us)
        real(key)

    monkeypatch.setattr(log._home, "delete", delete)
    log.seal()
    assert len(floors) == 1
    assert floors[0] > object_keys.created_us(old)


def test_a_clock_that_was_ahead_does_not_end_sealing(quick: Shop) -> None:
    """A floor from the future, announced by a clock that was wrong, is no reason to refuse what is made now."""
    log = filled(quick, 5)
    leave_orphan(quick)
    quick.clock.jump(30 * 24 * HOUR_S)
    sealing.sweep(quick.home, log._manifests, quick.clock)
    quick.clock.jump(-30 * 24 * HOUR_S)
    assert log.seal().files == 1
    assert len(entries(log)) == 5


def test_a_sealing_that_is_killed_leaves_a_file_that_the_next_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between file and manifest: the log is as it was, and the file is removed when it is old enough."""
    shop = Shop(storage := FaultyStorage(MemoryStorage(clock=(clock := SimulatedClock()))), clock)
    log = filled(shop, 5)
    before = entries(log)

    hooked_create(monkeypatch, log, lambda: storage.faults.kill_at(1))
    with pytest.raises(Killed):
        log.seal()
    storage.restart()
    log = shop.log()
    assert len(orphans(log)) == 1
    assert {finding.severity for finding in log.verify().findings} == {"note"}
    assert entries(log) == before
    clock.advance(2 * object_keys.STAGED_S)
    assert log.seal().files == 1
    assert orphans(log) == set()
    assert entries(log) == before


# The writer seals by itself.


def at_rest(writer: Writer) -> None:
    """Return when the writer's housekeeping has nothing to do."""
    thread = writer._keeper._housekeeper._thread
    if thread is not None:
        thread.join()


def test_a_writer_seals_what_is_worth_a_file(quick: Shop) -> None:
    """Nobody has to ask for it: once enough segments are closed they become a file, while the writer goes on."""
    log = quick.log(LogSettings(segment_bytes=2 * MIB, block_bytes=MIB))
    with log.writer() as writer:
        for number in range(10):
            writer.append(bytes(MIB), id=f"id-{number}")
            at_rest(writer)
        assert log.info().sealed_segments >= 2
        assert writer.append(bytes(MIB), id="id-0").duplicate
        sealed = log.files()
        assert sum(file.records for file in sealed) == 2 * log.info().sealed_segments
    assert len(values(log)) == 10
    assert log.verify().ok


def test_a_sealing_that_made_way_goes_on_where_it_stopped(quick: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy writer's sealing stops after a file, and its blocks are there yet: they were read and encoded again."""
    monkeypatch.setattr(Housekeeper, "ask", lambda *_: None)
    monkeypatch.setattr(MemoryKeeper, "is_urgent", True)
    encoded: list[int] = []
    seal_group = sealing._seal_group

    def noted(home: LogHome, manifests: Manifests, clock: Clock, group: Sequence[Segment]) -> Sealing | None:
        encoded.append(group[0].number)
        return seal_group(home, manifests, clock, group)

    monkeypatch.setattr(sealing, "_seal_group", noted)
    log = quick.log(LogSettings(segment_bytes=8 * MIB, block_bytes=MIB))
    with log.writer() as writer:
        for number in range(25):
            writer.append(bytes(MIB), id=f"id-{number}")
        for _ in range(3):
            writer._keeper._tidy()
    assert encoded == [0, 1, 2]


@pytest.mark.parametrize("settings", [LogSettings(seal="off", segment_bytes=2 * MIB), LogSettings(segment_bytes=MIB)])
def test_a_writer_leaves_alone_what_it_should(quick: Shop, settings: LogSettings) -> None:
    """Sealing can be switched off, and little segments are not made into little files one by one."""
    log = quick.log(settings)
    with log.writer() as writer:
        for number in range(10 if settings.seal == "off" else 3):
            writer.append(bytes(MIB), id=f"id-{number}")
            at_rest(writer)
        assert log.info().sealed_segments == 0


# The window, from sealed files.


@pytest.mark.parametrize("merged", [False, True])
def test_the_window_is_rebuilt_from_sealed_files(shop: Shop, *, merged: bool) -> None:
    """With every snapshot gone the sealed history still refuses duplicates, conflicts and torn batches, and answers."""
    log = shop.log(SETTINGS)
    sent = [each for each in records(0, 30) if each.id is not None]
    acks = fill(log, sent[:10], sent[10:], clock=shop.clock)
    batch = plain(range(100, 105))
    with log.writer() as writer:
        batch_acks = writer.append_batch(batch)
    log.seal()
    if merged:
        fill(log, plain([200]))
        log.seal()
        assert len(log.files()) == 1
    shop.lose_snapshots()
    log = shop.log()
    with log.writer() as writer:
        shop.lose_snapshots()
        assert [append(writer, each) for each in sent] == list(map(again, acks))
        assert writer.append_batch(batch) == list(map(again, batch_acks))
        with pytest.raises(PartialOverlap):
            writer.append_batch(batch[:3])
        with pytest.raises(IdConflict) as caught:
            writer.append(b"other", id=sent[3].id)
        assert caught.value.position == acks[3].position
        assert not writer.append(b"new", id="new").duplicate
    assert log.verify().findings == ()


def test_the_window_forgets_by_the_same_rules_from_sealed_files(quick: Shop) -> None:
    """Rebuilt from files of many commits, the window ends where the writer's own did: no earlier, and no later."""
    settings = LogSettings(window=SETTINGS.window.__class__(duration_s=10, max_keys=4), seal="off")
    log = quick.log(settings)
    with log.writer() as writer:
        for number in range(6):
            writer.append(b"%d" % number, id=f"id-{number}")
            quick.clock.advance(1)
    for _ in range(2):
        quick.lose_snapshots()
        with log.writer() as writer:
            answers = [writer.append(b"%d" % number, id=f"id-{number}").duplicate for number in range(2, 6)]
        assert answers == [True] * 4
        log.seal()
    with log.writer() as writer:
        assert not writer.append(b"0", id="id-0").duplicate
        assert not writer.append(b"2", id="id-2").duplicate, "the oldest of four made room"
        assert writer.append(b"4", id="id-4").duplicate
        quick.clock.advance(9)
        assert not writer.append(b"4", id="id-4").duplicate, "its time was over"
        assert writer.append(b"0", id="id-0").duplicate
    assert log.verify().findings == ()


# Many segments: some are described in pages, which sealing writes again.


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a manifest spill to pages after a few segments."""
    monkeypatch.setattr(manifests_module, "INLINE_SEGMENTS_MAX", 6)
    monkeypatch.setattr(manifests_module, "PAGE_SEGMENTS", 3)


def paged(shop: Shop, segments: int = 20) -> Log:
    """Return a log whose older segments are described in pages."""
    log = filled(shop, *[2] * segments)
    assert len(known(log).manifest.pages) > 2
    return log


@pytest.mark.usefixtures("small_pages")
def test_segments_in_pages_are_sealed_and_their_old_pages_deleted(shop: Shop) -> None:
    """What the manifest has put aside is sealed as the rest is, and leaves no pages behind."""
    log = paged(shop)
    before = entries(log)
    log.seal()
    assert entries(log) == entries(shop.log()) == before
    assert shop.home.list("pages/") == [page.key for page in known(log).manifest.pages]
    assert len(shop.home.list(object_keys.PREFIX)) == len(log.files())
    assert all(segment.file for segment in log._manifests.closed_from(known(log).manifest, 0))
    assert log.verify().findings == ()


@pytest.mark.usefixtures("small_pages")
def test_a_reader_goes_on_when_the_pages_it_knew_are_gone(shop: Shop) -> None:
    """A page that was written again while somebody read by the old one is looked up again, not missed."""
    log = paged(shop)
    before = entries(log)
    for got_before in (1, 7):
        reader_log = shop.log()
        with reader_log.read() as reader:
            found = iter(reader)
            got = [next(found) for _ in range(got_before)]
            fill(log, plain([1000 + got_before]))
            log.seal()
            got += list(found)
        assert got[: len(before)] == before


@pytest.mark.usefixtures("small_pages")
def test_everything_that_walks_the_log_finds_pages_that_were_written_anew(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts, lists of files, figures and checks that meet a page which has just been replaced look again."""
    log = paged(shop)
    uses: list[Callable[[Log], object]] = [
        lambda other: list(other.read(3)),
        lambda other: list(other.read((1, 0))),
        lambda other: list(other.read(other.read().__iter__().__next__().timestamp)),
        lambda other: other.files(),
        lambda other: other.info(),
        lambda other: other.verify().ok,
        lambda other: other.seal(),
        lambda other: other.truncate(1),
        lambda other: other.retain(),
    ]
    for number, use in enumerate(uses):
        fill(log, plain([2000 + number]))
        other = shop.log()
        real = type(other._manifests).page
        act = once(log.seal)

        def page(self: Any, page: Any, act: Any = act, real: Any = real, other: Log = other) -> Any:
            if self is other._manifests:
                act()
            return real(self, page)

        with monkeypatch.context() as patch:
            patch.setattr(manifests_module.Manifests, "page", page)
            use(other)


@pytest.mark.usefixtures("small_pages")
def test_a_retry_is_answered_although_its_page_was_written_anew(shop: Shop) -> None:
    """A writer knows an old manifest; where an original stands is looked up in the new one when that is gone."""
    log = shop.log(SETTINGS)
    sent = plain(range(40))
    acks = fill(log, *[sent[at : at + 2] for at in range(0, 40, 2)])
    with log.writer() as writer:
        shop.log().seal()
        assert [append(writer, each) for each in sent] == list(map(again, acks))


# Other tools.


@pytest.fixture
def history(tmp_path: Path) -> Log:
    """Return a log on disk with a sealed history in two files and an open end."""
    clock = SYSTEM
    log = Database(LocalStorage(tmp_path, clock=clock), clock).log("shop/orders", SETTINGS, create=True)
    for first in (0, 500):
        with log.writer() as writer:
            writer.append_many(
                [
                    Record(
                        b"%d" % n * 40, id=f"id-{n}", stream=f"s{n % 7}", headers={"n": b"%d" % n} if n % 2 else None
                    )
                    for n in range(first, first + 500)
                ]
            )
        if first == 0:
            noise = [Record(clock.token(40 * KIB), id="noise"), *plain(range(1000, 1010))]
            fill(log, noise)
        log.seal()
    fill(log, plain(range(2000, 2003)))
    assert len(log.files()) >= 2
    return log


def queried(query: str) -> list[tuple[Any, ...]]:
    """Return what DuckDB answers."""
    found = duckdb.sql(query)
    assert found is not None
    return found.fetchall()


def test_duckdb_reads_the_files_with_their_positions(history: Log) -> None:
    """A log's history is a table: position is the file's first position plus the row's number."""
    for file in history.files():
        rows = queried(
            f"select {file.first_position} + file_row_number as position, timestamp, id, value, stream, headers "
            f"from read_parquet('{file.path}', file_row_number = true) order by position"
        )
        wanted = list(history.read(file.first_position, limit=file.records))
        assert [(row[0], row[1], row[2], row[3], row[4]) for row in rows] == [
            (entry.position, entry.timestamp, entry.id, entry.value, entry.stream) for entry in wanted
        ]
        assert [row[5] for row in rows] == [None if entry.headers is None else dict(entry.headers) for entry in wanted]
    paths = [file.path for file in history.files()]
    counts = queried(f"select count(*), count(distinct id) from read_parquet({paths!r}) where stream = 's3'")
    assert counts == [(143, 143)]


def test_pandas_reads_the_files(history: Log) -> None:
    """What a data engineer opens without asking is what the log holds."""
    for file in history.files():
        frame = pd.read_parquet(file.path, columns=["timestamp", "id", "value"])
        wanted = list(history.read(file.first_position, limit=file.records))
        assert frame["id"].tolist() == [entry.id for entry in wanted]
        assert frame["value"].tolist() == [entry.value for entry in wanted]
        assert [stamp.to_pydatetime() for stamp in frame["timestamp"]] == [entry.timestamp for entry in wanted]
        assert len(pd.read_parquet(file.path)) == file.records


def test_polars_reads_the_files(history: Log) -> None:
    """The same with polars, lazily, with the row's index as position."""
    for file in history.files():
        frame = (
            pl.scan_parquet(file.path, row_index_name="position")
            .with_columns(pl.col("position").cast(pl.Int64) + file.first_position)
            .select("position", "id", "value", "timestamp")
            .collect()
        )
        wanted = list(history.read(file.first_position, limit=file.records))
        assert frame.rows() == [(entry.position, entry.id, entry.value, entry.timestamp) for entry in wanted]


def test_adopted_files_are_tables_too(history: Log) -> None:
    """A file that was adopted is listed beside the sealed ones, and has the same columns as far as it has them."""
    with history.writer() as writer:
        first, *_ = adopt(writer, [stage(history, plain(range(5000, 5010)))])
    file = history.files()[-1]
    assert (file.first_position, file.records) == (first, 10)
    assert pl.read_parquet(file.path)["id"].to_list() == [each.id for each in plain(range(5000, 5010))]


def test_files_in_memory_are_listed_by_key(quick: Shop) -> None:
    """Where nobody else can reach a file its key is what there is to tell."""
    log = filled(quick, 4)
    log.seal()
    assert isinstance(quick.home, MemoryHome)
    assert [file.path for file in log.files()] == quick.home.list(object_keys.PREFIX)


def test_records_that_compress_well_do_not_all_end_in_one_file(tmp_path: Path) -> None:
    """Files were put together by their compressed size alone: gigabytes became one small file, which was merged again
    and again, with all of it in memory. What is full by its raw bytes is left alone, also by the next process.
    """
    settings = LogSettings(segment_bytes=64 * KIB, seal="off", block_records=10)
    with Database(LocalStorage(tmp_path)) as db:
        log = db.log("orders", settings, create=True)
        with log.writer() as writer:
            for _ in range(40):
                writer.append_many([Record(b"x" * 3_200) for _ in range(20)])
        while log.seal().files:  # what is small is put together, until nothing is
            pass
        files = log.files()
        assert len(files) > 5
        assert max(pq.read_metadata(file.path).row_group(0).total_byte_size for file in files) <= 64 * KIB * 5
        sealing._raw_sizes.clear()  # as another process
        assert log.seal().files == 0
        assert log.files() == files


def test_a_few_rows_are_no_reason_to_write_a_large_file_again(quick: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit of ten rows by Spark had a file of a million rows written again. Neighbours wait until they are many
    pieces, or half as large, and enough for a file that is not written again.
    """
    monkeypatch.setattr(sealing, "_BYTES_MIN", 2 * MIB)  # many pieces with 1 MiB are worth a file
    log = quick.log(LogSettings(segment_bytes=8 * MIB))

    def files_after(size_bytes: int) -> int:
        with log.writer(wait_s=0) as writer:
            adopt(writer, [stage(log, [Record(quick.clock.token(size_bytes))])])
        log._tidy()
        return len(log.files())

    assert files_after(1300 * KIB) == 1
    for pieces in range(2, sealing._PIECES_MAX):
        assert files_after(10) == pieces
    assert files_after(10) == 1, "many pieces"
    assert files_after(800 * KIB) == 2
    assert files_after(1300 * KIB) == 3
    assert files_after(800 * KIB) == 1, "enough for a file, which is not written again"
    assert files_after(3900 * KIB) == 2
    assert files_after(400 * KIB) == 3
    assert files_after(1600 * KIB) == 2, "half as large"
    assert log.verify().ok


def test_records_are_written_into_a_file_once(quick: Shop) -> None:
    """Of a log whose segments are closed by their ids, each file was written again for the next segment, as long as
    both fitted into one: half of the processor time of a busy writer's background went there.
    """
    log = quick.log(LogSettings(segment_bytes=16 * MIB, block_bytes=MIB, seal="off"))
    created = 0
    for size_mib in (7, 6, 3, 3, 4, 12, 5, 16):  # as the segments of writers that come and go
        with log.writer() as writer:
            for number in range(size_mib):
                writer.append(quick.clock.token(MIB - KIB), id=f"{created}-{log.end_position()}-{number}")
        parts = log._home, log._manifests, quick.clock, known(log)
        created += sum(done.files for done in sealing.seal_worthwhile(*parts, 16 * MIB))
    files = log.files()
    assert created == len(files) == 5
    assert log.info().sealed_segments == 8
    assert log.verify().ok


def test_a_file_is_not_written_again_for_a_large_segment(quick: Shop) -> None:
    """What is sealed on demand may be small. Beside segments that are worth files of their own, it stays as it is."""
    log = quick.log(LogSettings(segment_bytes=16 * MIB, block_bytes=MIB, seal="off"))
    for size_mib in (3, 9):
        with log.writer() as writer:
            for number in range(size_mib):
                writer.append(quick.clock.token(MIB - KIB), id=f"{log.end_position()}-{number}")
        if size_mib == 3:
            log.seal()
    parts = log._home, log._manifests, quick.clock, known(log)
    done = list(sealing.seal_worthwhile(*parts, 16 * MIB))
    assert [each.segments for each in done] == [1]
    assert [file.records for file in log.files()] == [3, 9]


def test_a_small_segment_between_large_ones_is_sealed(quick: Shop) -> None:
    """The last segments wait for more. Those that nothing can come to any more do not: they would wait for ever."""
    log = quick.log(LogSettings(segment_bytes=16 * MIB, block_bytes=MIB, seal="off"))
    for size_mib in (5, 13):
        with log.writer() as writer:
            for number in range(size_mib):
                writer.append(quick.clock.token(MIB - KIB), id=f"{log.end_position()}-{number}")
        parts = log._home, log._manifests, quick.clock, known(log)
        done = list(sealing.seal_worthwhile(*parts, 16 * MIB))
        assert [each.segments for each in done] == ([] if size_mib == 5 else [1, 1])


def test_a_file_that_is_larger_than_thought_is_sealed_all_the_same(
    quick: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for a file is taken before the file is made: it is a guess."""
    monkeypatch.setattr(sealing, "MIB", 0)
    monkeypatch.setattr(sealing, "_RECORD_BYTES", -5000)
    log = quick.log(SETTINGS)
    with log.writer() as writer:
        writer.append_many([Record(quick.clock.token(4 * KIB), id=f"id-{number}") for number in range(300)])
    assert log.seal().records == 300
    assert len(values(log)) == 300
    assert log.verify().ok


@pytest.mark.parametrize("step", ["schema_of", "_encoded"])
def test_a_log_that_is_deleted_while_it_is_sealed_is_not_found(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was called damaged ("restore it from a copy"), or ended in an error that no caller expects."""
    storage = MemoryStorage()
    with Database(storage) as database:
        log = database.log(LOG, LogSettings(segment_bytes=64 * KIB, seal="off"), create=True)
        with log.writer() as writer:
            for number in range(8):
                writer.append(bytes([number]) * 20_000)
    with Database(storage) as database:
        log = database.log(LOG)
        do = getattr(sealing, step)

        def deleted(*given: Any) -> Any:
            made = do(*given) if step == "_encoded" else None
            with Database(storage) as other:
                other.delete(LOG)
            return do(*given) if made is None else made

        monkeypatch.setattr(sealing, step, deleted)
        with pytest.raises(NotFound):
            log.seal()
