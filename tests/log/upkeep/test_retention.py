"""What is too old, or too much, goes, and its space with it; never what the window or a reader still needs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog.errors import CorruptionError, InvalidArgument, NotFound, Unavailable
from oncelog.limits import KIB, MIB
from oncelog.log.log import Log
from oncelog.log.read import leases, reader
from oncelog.log.stored import manifests as manifests_module
from oncelog.log.stored import object_keys
from oncelog.log.stored.manifests import Manifests
from oncelog.log.upkeep import retention, sealing
from oncelog.log.upkeep.retention import Truncation
from oncelog.settings import LogSettings, Window
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.faults import Killed
from oncelog.testing.storage import FaultyStorage
from oncelog.types import Record
from tests.log.ingest.adoption import adopt
from tests.log.shop import (
    HOUR_S,
    LOG,
    Shop,
    again,
    append,
    entries,
    fill,
    in_memory,
    known,
    once,
    orphans,
    plain,
    record,
    records,
    stage,
    stage_many,
    values,
)

OFF = LogSettings(idempotence="off", seal="off")
SHORT = LogSettings(window=Window(duration_s=100, max_keys=5), seal="off", snapshot_interval_s=1e6)


def unnamed(first: int, count: int, size_bytes: int = 8) -> list[Record]:
    """Return records without an id."""
    return [Record(b"%d:" % number + bytes(size_bytes)) for number in range(first, first + count)]


def filled(shop: Shop, *counts: int, settings: LogSettings = OFF, seal: bool = False) -> Log:
    """Return a log without a window, with a closed segment of so many records for each count."""
    log = shop.log(settings)
    for at, count in enumerate(counts):
        fill(log, unnamed(sum(counts[:at]), count), clock=shop.clock)
    if seal:
        log.seal()
    return log


def positions(log: Log) -> list[int]:
    """Return the positions that the log still has."""
    return [entry.position for entry in entries(log)]


# By position.


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize("before", range(11))
def test_truncated_before_any_position(quick: Shop, before: int, *, seal: bool) -> None:
    """The log begins exactly where it was told to, whatever lies there, and nothing else of it changes."""
    log = filled(quick, 3, 1, 4, 2, seal=seal)
    everything = entries(log)
    assert log.truncate(before) == Truncation(first_position=before)
    assert entries(log) == entries(quick.log()) == everything[before:]
    assert log.info().first_position == before
    assert log.verify().findings == ()
    assert log.truncate(0) == Truncation(first_position=before), "what is gone stays gone"
    with log.writer() as writer:
        assert append(writer, Record(b"next")).position == 10
    assert [entry.position for entry in entries(log)] == list(range(before, 11))


def test_truncated_step_by_step(shop: Shop) -> None:
    """Truncating often, through files that are sealed and merged in between, never loses a record that is to stay."""
    log = filled(shop, *[2] * 8)
    everything = entries(log)
    for before in range(1, 16):
        log.truncate(before)
        if before % 3 == 0:
            log.seal()
        assert entries(log) == everything[before:]
        assert log.verify().findings == ()
    assert len(shop.home.list(object_keys.PREFIX)) == len(log.files()) == 1


def test_what_is_open_is_not_truncated(shop: Shop) -> None:
    """A truncation ends where the open segment begins, and says so."""
    log = filled(shop, 4)
    with log.writer() as writer:
        for each in unnamed(4, 3):
            append(writer, each)
        assert log.truncate(6) == Truncation(first_position=4, held_by="open segment")
        assert append(writer, Record(b"x")).position == 7
    assert log.truncate(6) == Truncation(first_position=6)
    assert positions(log) == [6, 7]


def test_bad_positions_are_refused(shop: Shop) -> None:
    """A position that is not one yet, or never was, changes nothing."""
    log = filled(shop, 4)
    version = known(log).version
    with pytest.raises(InvalidArgument):
        log.truncate(-1)
    with pytest.raises(NotFound) as caught:
        log.truncate(5)
    assert caught.value.first == 0
    assert known(log).version == version


# By age and by bytes.


def test_retention_by_age(shop: Shop) -> None:
    """Segments whose last record is too old go; those that are only old in part stay whole."""
    log = shop.log(LogSettings(idempotence="off", seal="off", retention_s=100))
    for first in range(0, 12, 3):
        fill(log, unnamed(first, 3))
        shop.clock.advance(40)
    assert log.retain() == Truncation(first_position=6)
    assert log.retain() == Truncation(first_position=6)
    log.seal()
    shop.clock.advance(40)
    assert log.retain() == Truncation(first_position=9)
    assert positions(log) == [9, 10, 11]
    shop.clock.advance(1000)
    assert log.retain() == Truncation(first_position=12)
    assert positions(log) == []


def test_retention_by_bytes(shop: Shop) -> None:
    """The newest segments stay, as many as fit; a file that segments share counts once."""
    log = shop.log(LogSettings(idempotence="off", seal="off", retention_bytes=3 * KIB))
    for first in range(4):
        fill(log, unnamed(first, 1, KIB))
    sizes = [segment.size_bytes for segment in known(log).manifest.segments]
    assert sum(sizes[2:]) <= 3 * KIB < sum(sizes[1:])
    assert log.retain() == Truncation(first_position=2)
    log.configure(LogSettings(idempotence="off", seal="off", retention_bytes=0))
    assert log.retain() == Truncation(first_position=4)


def test_retention_of_files_by_bytes(shop: Shop) -> None:
    """Sealed, a log's size is that of its files."""
    log = filled(shop, 2, 2, 2, seal=True)
    size_bytes = log.files()[0].bytes
    log.configure(LogSettings(idempotence="off", seal="off", retention_bytes=size_bytes))
    assert log.retain() == Truncation(first_position=0)
    log.configure(LogSettings(idempotence="off", seal="off", retention_bytes=size_bytes - 1))
    assert log.retain() == Truncation(first_position=6)


def test_no_retention_keeps_everything(shop: Shop) -> None:
    """Without settings nothing is old, and nothing too much."""
    log = filled(shop, 3)
    shop.clock.advance(1e9)
    assert log.retain() == Truncation(first_position=0)


def test_a_writer_lets_go_by_itself(quick: Shop) -> None:
    """Nobody has to ask: when a segment closes what is not wanted any more goes, but for what the window needs."""
    log = quick.log(
        LogSettings(
            window=Window(duration_s=1e6, max_keys=3), segment_bytes=64 * KIB, seal="off", retention_bytes=100 * KIB
        )
    )
    with log.writer() as writer:
        for number in range(12):
            writer.append(bytes(40 * KIB), id=f"id-{number}")
            thread = writer._keeper._housekeeper._thread
            if thread is not None:
                thread.join()
        first = log.info().first_position
        assert 4 <= first <= 9
        assert writer.append(bytes(40 * KIB), id="id-11").duplicate
    assert log.verify().ok


def test_a_writer_judges_what_it_has_sealed_by_its_new_size(quick: Shop) -> None:
    """Sealing makes a log small: what fits then is not thrown away for what it was before."""
    settings = LogSettings(idempotence="off", segment_bytes=2 * MIB, block_bytes=MIB, retention_bytes=5 * MIB)
    log = quick.log(settings)
    with log.writer() as writer:
        for _ in range(12):
            writer.append(bytes(MIB))
            thread = writer._keeper._housekeeper._thread
            if thread is not None:
                thread.join()
        assert log.info().sealed_segments > 2
        assert log.info().first_position == 0


# Never past the window.


def test_a_live_writer_keeps_what_its_window_needs(shop: Shop) -> None:
    """While a writer is there its window decides, to the position."""
    log = shop.log(SHORT)
    for first in range(0, 12, 4):
        fill(log, plain(range(first, first + 4)))
    with log.writer() as writer:
        assert log.truncate(12) == Truncation(first_position=7, held_by="window")
        for number in range(7, 12):
            assert append(writer, plain([number])[0]).duplicate
        assert not append(writer, plain([12])[0]).duplicate
        assert not append(writer, plain([13])[0]).duplicate
        assert log.truncate(12) == Truncation(first_position=8, held_by="window"), "evicted when the next one came"


def test_without_a_writer_the_newest_snapshot_tells_what_the_window_needs(shop: Shop) -> None:
    """The oldest position in the newest snapshot is needed, and nothing before it."""
    log = shop.log(SHORT)
    for first in range(0, 12, 4):
        fill(log, plain(range(first, first + 4)))
    with log.writer() as writer:
        writer.snapshot()
    assert shop.log().truncate(12) == Truncation(first_position=7, held_by="window")
    acks_again(shop, range(7, 12))


def test_a_snapshot_taken_when_ids_were_too_old_needs_only_the_last(shop: Shop) -> None:
    """Ids that are older than the window's duration hold nothing; an empty snapshot holds nothing at all."""
    log = shop.log(SHORT)
    with log.writer() as writer:
        append(writer, Record(b"without an id"))
        writer.snapshot()
    assert shop.log().truncate(1) == Truncation(first_position=1)
    fill(log, plain(range(1, 4)))
    with log.writer() as writer:
        shop.clock.advance(200)
        append(writer, plain([4])[0])
        append(writer, Record(b"without an id"))
        writer.snapshot()
    assert shop.log().truncate(6) == Truncation(first_position=4, held_by="window")
    acks_again(shop, range(4, 5))


def test_without_a_snapshot_what_a_rebuild_would_read_is_kept(shop: Shop) -> None:
    """When all snapshots are gone truncation keeps every segment that a rebuild of the window may need."""
    log = shop.log(SHORT)
    for first in range(0, 40, 4):
        fill(log, plain(range(first, first + 4)))
    shop.lose_snapshots()
    cut = shop.log().truncate(40)
    assert cut.held_by == "window"
    assert 12 <= cut.first_position <= 35
    shop.lose_snapshots()
    acks_again(shop, range(35, 40))


def test_expired_segments_are_not_needed(shop: Shop) -> None:
    """What is older than the window's duration, in up-time, is not held; a log nobody writes to does not age."""
    log = shop.log(LogSettings(window=Window(duration_s=100, max_keys=1000), seal="off", snapshot_interval_s=1e6))
    fill(log, plain(range(4)))
    shop.clock.advance(1000)
    assert shop.log().truncate(4) == Truncation(first_position=0, held_by="window"), "no up-time has passed"
    with log.writer() as writer:
        shop.clock.advance(60)
        append(writer, plain([4])[0])
        shop.clock.advance(60)
        append(writer, plain([5])[0])
    shop.lose_snapshots()
    assert shop.log().truncate(6) == Truncation(first_position=4, held_by="window")
    acks_again(shop, range(4, 6))


def acks_again(shop: Shop, numbers: range) -> None:
    """Send records again, through a new writer: all must be known, where they are."""
    log = shop.log()
    with log.writer(wait_s=0) as writer:
        for number in numbers:
            ack = append(writer, plain([number])[0])
            assert (ack.position, ack.duplicate) == (number, True)
    assert log.verify().ok


def test_everything_truncated_and_reopened(shop: Shop) -> None:
    """A log that is empty goes on where it stopped, and still knows what its window knew: snapshots or not."""
    log = shop.log(SHORT)
    acks = fill(log, plain(range(20)))
    fill(log, unnamed(20, 10))
    shop.lose_snapshots()
    cut = shop.log().truncate(30)
    assert cut.held_by == "window"
    assert cut.first_position <= 15
    for _ in range(2):
        shop.lose_snapshots()
        log = shop.log()
        with log.writer() as writer:
            assert [append(writer, each) for each in plain(range(15, 20))] == list(map(again, acks[15:]))
            shop.lose_snapshots()
    off = LogSettings(idempotence="off", seal="off")
    log.configure(off)
    assert log.truncate(30) == Truncation(first_position=30)
    assert values(log) == []
    with shop.log().writer() as writer:
        assert append(writer, Record(b"next")).position == 30
    assert shop.home.list("segments/") == []
    assert log.verify().findings == ()


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_adopted_ids_are_kept_while_they_are_within_the_duration(shop: Shop, *, with_snapshot: bool) -> None:
    """Adopted files are in no snapshot: nobody truncates them while a retry of theirs would have to be refused."""
    log = shop.log(SHORT)
    with log.writer() as writer:
        adopt(writer, [stage_many(log, 0, 20)])
        writer.append_many(plain(range(20)))
        if with_snapshot:
            writer.snapshot()
        assert log.truncate(30) == Truncation(first_position=0, held_by="window"), "the writer knows"
    if not with_snapshot:
        shop.lose_snapshots()
    other = shop.log()
    assert other.truncate(30) == Truncation(first_position=0, held_by="window")
    with other.writer() as writer:
        assert writer.append(b"adopted-3", id="adopted-3").duplicate
        shop.clock.advance(101)
        assert not writer.append(b"adopted-3", id="adopted-3").duplicate
        assert other.truncate(41).first_position == 40


# Never past a lease.


def test_a_lease_holds_what_is_yet_to_be_read(shop: Shop) -> None:
    """A reader with a lease reads to its end, however hard somebody truncates meanwhile; then all may go."""
    log = filled(shop, 4, 4, 4)
    with shop.log().read(5, lease_s=60) as leased:
        found = iter(leased)
        got = [next(found).position]
        assert log.truncate(12) == Truncation(first_position=5, held_by="lease")
        assert log.truncate(12) == Truncation(first_position=5, held_by="lease")
        log.seal()
        got += [entry.position for entry in found]
    assert got == list(range(5, 12))
    assert log.truncate(12) == Truncation(first_position=12)


def test_the_furthest_behind_of_several_leases_holds(shop: Shop) -> None:
    """Tails, readers and columns hold leases alike; the one that is furthest behind counts."""
    log = filled(shop, 4, 4)
    tail = log.tail(6, lease_s=60)
    batches = log.read_arrow(3, lease_s=60)
    assert log.truncate(8) == Truncation(first_position=3, held_by="lease")
    assert sum(batch.num_rows for batch in batches) == 5
    del batches
    assert log.truncate(8) == Truncation(first_position=6, held_by="lease"), "read to its end, it holds nothing"
    tail.close()
    assert log.truncate(8) == Truncation(first_position=8)


@pytest.mark.parametrize("end", ["all read", "limit", "closed", "log closed"])
def test_a_lease_is_given_back_when_reading_ends(shop: Shop, end: str) -> None:
    """However a reader ends in peace its lease is gone at once, not when its time is over."""
    log = filled(shop, 4)
    own = shop.log()
    opened = own.read(1, lease_s=1000, limit=2 if end == "limit" else None)
    if end in ("all read", "limit"):
        assert list(opened)
    elif end == "closed":
        opened.close()
    else:
        own.close()
    assert shop.home.list(leases.PREFIX) == []
    assert log.truncate(4) == Truncation(first_position=4)


@pytest.mark.parametrize("start", ["earliest", 0])
def test_what_goes_before_the_lease_is_there_is_not_asked_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, start: Any
) -> None:
    """Who asks for the earliest record gets the one that is the earliest by then. Who asks for a position is told."""
    log = filled(shop, 4, 4, 4)
    hold = leases.ReaderLease.hold
    truncate = once(lambda: log.truncate(5))

    def late(lease: leases.ReaderLease, position: int) -> None:
        truncate()
        hold(lease, position)

    monkeypatch.setattr(leases.ReaderLease, "hold", late)
    if start == "earliest":
        with shop.log().read(start, lease_s=60) as leased:
            assert log.truncate(8) == Truncation(first_position=5, held_by="lease")
            assert next(iter(leased)).position == 5
    else:
        with pytest.raises(NotFound, match="it begins at 5"):
            shop.log().read(start, lease_s=60)
    assert shop.home.list(leases.PREFIX) == []


def test_a_lease_that_ran_out_does_not_hold(shop: Shop) -> None:
    """A reader that sleeps longer than its lease holds nothing back, and learns what it missed."""
    log = filled(shop, 4, 4)
    sleeper = shop.log().read(1, lease_s=60)
    shop.clock.advance(61)
    assert log.truncate(6) == Truncation(first_position=6)
    assert shop.home.list(leases.PREFIX) == []
    with pytest.raises(NotFound) as caught:
        list(sleeper)
    assert caught.value.first == 6


def test_a_reader_at_work_renews_its_lease(shop: Shop) -> None:
    """A lease lives as long as its reader reads, moves on with it, and is one object all the time."""
    log = filled(shop, 4)
    with shop.log().tail(0, lease_s=60) as tail:
        for expected in range(4):
            entry = tail.poll()
            assert entry is not None
            assert entry.position == expected
        for _ in range(5):
            shop.clock.advance(30)
            assert tail.poll() is None
            assert len(shop.home.list(leases.PREFIX)) == 1
        fill(log, unnamed(4, 4))
        assert log.truncate(8) == Truncation(first_position=4, held_by="lease")
        assert [tail.poll() is not None for _ in range(4)] == [True] * 4


def test_a_lease_in_front_of_the_log_stops_no_truncation_behind_it(shop: Shop) -> None:
    """A lease holds what is from its position on, and lets everything before it go."""
    log = filled(shop, 4, 4)
    with log.tail("latest", lease_s=60):
        assert log.truncate(8) == Truncation(first_position=8)


def between_look_and_cut(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Let something happen after a truncation has looked for leases and before it truncates."""
    real = leases.held_from
    act = once(action)

    def held_from(*arguments: Any) -> int | None:
        found = real(*arguments)
        act()
        return found

    monkeypatch.setattr(leases, "held_from", held_from)


def test_a_lease_that_comes_after_the_look_stops_the_truncation(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncation that was announced and saw no lease does not run over a reader that came just then."""
    log = filled(shop, 4, 4)
    other = shop.log()
    opened: list[reader.Reader] = []
    between_look_and_cut(monkeypatch, lambda: opened.append(other.read(2, lease_s=60)))
    assert log.truncate(8) == Truncation(first_position=2, held_by="lease")
    assert [entry.position for entry in opened[0]] == list(range(2, 8))


def test_a_lease_that_comes_before_the_look_is_seen(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other order: the reader comes between the announcement and the look."""
    log = filled(shop, 4, 4)
    other = shop.log()
    real = retention._announce
    opened: list[reader.Reader] = []
    act = once(lambda: opened.append(other.read(2, lease_s=60)))
    real_held = leases.held_from

    def held_from(*arguments: Any) -> int | None:
        act()
        return real_held(*arguments)

    monkeypatch.setattr(leases, "held_from", held_from)
    assert real is retention._announce
    assert log.truncate(8) == Truncation(first_position=2, held_by="lease")
    assert [entry.position for entry in opened[0]] == list(range(2, 8))


def test_a_truncation_between_a_reader_s_start_and_its_lease(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that comes too late learns so when it is opened, and leaves no lease that would hold the rest."""
    log = filled(shop, 4, 4)
    other = shop.log()
    real = leases.ReaderLease.hold
    act = once(lambda: log.truncate(5))

    def hold(self: leases.ReaderLease, position: int) -> None:
        act()
        real(self, position)

    monkeypatch.setattr(leases.ReaderLease, "hold", hold)
    with pytest.raises(NotFound) as caught:
        other.read(2, lease_s=60)
    assert caught.value.first == 5
    assert shop.home.list(leases.PREFIX) == []
    assert log.truncate(8) == Truncation(first_position=8)


def test_another_s_announcement_does_not_excuse_a_truncation(quick: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two truncations one looked for leases before a reader came; it may not use the word of the other, which
    came after.
    """
    log = filled(quick, 4, 4)
    other = quick.log()
    opened: list[reader.Reader] = []

    def interfere() -> None:
        opened.append(other.read(2, lease_s=60))
        Manifests(quick.home, quick.clock).update(retention._announce(8, b"another"))

    between_look_and_cut(monkeypatch, interfere)
    assert log.truncate(8) == Truncation(first_position=2, held_by="lease")
    assert [entry.position for entry in opened[0]] == list(range(2, 8))


# Readers that have no lease.


@pytest.mark.parametrize("seal", [False, True])
def test_a_reader_that_started_before_is_told_the_first_position(shop: Shop, *, seal: bool) -> None:
    """What it was to read is gone: ``NotFound``, with where the log begins now, and no other error."""
    log = shop.log(LogSettings(idempotence="off", seal="off", segment_bytes=64 * KIB))
    for first in range(0, 12, 4):
        fill(log, [*unnamed(first, 3), Record(shop.clock.token(60 * KIB))])
    if seal:
        log.seal()
        assert len(log.files()) == 3
    opened = shop.log()
    with opened.read() as slow, opened.tail("earliest") as tail:
        found = iter(slow)
        assert next(found).position == 0
        assert tail.poll() is not None
        log.truncate(10)
        log.seal()
        with pytest.raises(NotFound) as caught:
            list(found)
        assert caught.value.first == 10
        with pytest.raises(NotFound) as caught:
            [tail.poll() for _ in range(12)]
        assert caught.value.first == 10
    for start in (0, (0, 1), 9):
        with pytest.raises(NotFound) as caught:
            opened.read(start)
        assert caught.value.first == 10
    assert positions(opened) == [10, 11]


def test_a_moment_before_the_first_record_starts_at_it(shop: Shop) -> None:
    """A datetime asks for what is there since then: truncated records are not missed, they are not asked for."""
    log = filled(shop, 4, 4)
    first = entries(log)[1].timestamp
    log.truncate(6)
    assert [entry.position for entry in log.read(first)] == [6, 7]


def test_a_segment_that_vanished_is_damage_not_truncation(shop: Shop) -> None:
    """Only what the manifest says is gone is gone: anything else is ``CorruptionError``."""
    log = filled(shop, 4)
    shop.home.remove_segment(0)
    with pytest.raises(CorruptionError):
        entries(log)


# Space.


@pytest.mark.parametrize("seal", [False, True])
def test_space_really_comes_back(*, seal: bool) -> None:
    """What was truncated away is gone from the disk, but for what shares a file with what stays."""
    disk = SimulatedDisk(file_bytes_max=4 * MIB)
    clock = SimulatedClock()
    shop = Shop(LocalStorage(Path("/db"), disk, clock), clock)
    log = shop.log(LogSettings(idempotence="off", seal="off", segment_bytes=64 * KIB))
    for number in range(8):
        fill(log, [Record(clock.token(60 * KIB)), Record(b"%d" % number)])
    if seal:
        log.seal()
        assert len(log.files()) == 8
    before = disk.used_bytes()
    log.truncate(8)
    assert before - disk.used_bytes() >= 4 * 60 * KIB
    log.truncate(16)
    assert disk.used_bytes() < 64 * KIB
    assert known(log).manifest.doomed == ()


def test_a_merged_file_goes_with_the_last_of_its_segments(shop: Shop) -> None:
    """Truncating in the midst of a file keeps it, for the segments that stay; then it goes, or is merged again."""
    log = filled(shop, 2, 2, 2, seal=True)
    key = shop.home.list(object_keys.PREFIX)
    for before in (1, 2, 3, 5):
        log.truncate(before)
        assert shop.home.list(object_keys.PREFIX) == key
        assert positions(log) == list(range(before, 6))
        assert [(file.first_position, file.records) for file in log.files()] == [(0, 6)]
        assert log.verify().findings == ()
    fill(log, unnamed(6, 2))
    log.seal()
    assert shop.home.list(object_keys.PREFIX) != key
    assert [(file.first_position, file.records) for file in log.files()] == [(4, 4)], "what was truncated is left out"
    assert positions(log) == [5, 6, 7]
    log.truncate(8)
    assert shop.home.list(object_keys.PREFIX) == []


def test_adopted_files_go_with_their_identities(shop: Shop) -> None:
    """The identities beside a file that was truncated away are deleted too."""
    log = shop.log(SHORT)
    with log.writer() as writer:
        adopt(writer, [stage(log, plain(range(3))), stage(log, plain(range(3, 5)))])
        shop.clock.advance(1000)
        writer.append(b"x", id="x")
        log.truncate(3)
        assert len(shop.home.list(object_keys.PREFIX)) == 2
        log.truncate(5)
        assert shop.home.list(object_keys.PREFIX) == []


def test_a_segment_that_was_begun_and_never_written_leaves_no_file() -> None:
    """A writer that is killed before its first block leaves a file without one: it goes with the next clean-up."""
    disk = SimulatedDisk(file_bytes_max=4 * MIB)
    clock = SimulatedClock()
    shop = Shop(LocalStorage(Path("/db"), disk, clock), clock)
    log = shop.log(OFF)
    fill(log, unnamed(0, 2))
    writer = log.writer()
    writer._run.prepare()
    disk.crash()
    log = shop.log()
    with log.writer(wait_s=0):
        pass
    assert log.verify().ok
    log.seal()
    log.truncate(2)
    left = [name for name, _ in disk.list_directory(Path("/db/logs") / LOG / "segments") if name.endswith(".blocks")]
    assert left == []


@pytest.mark.parametrize("step", range(1, 30))
def test_what_is_doomed_is_deleted_after_a_kill_between_the_steps(step: int) -> None:
    """First unreachable, then deleted, then forgotten: killed anywhere in between, the next one finishes the work."""
    clock = SimulatedClock()
    storage = FaultyStorage(MemoryStorage(clock=clock))
    shop = Shop(storage, clock)
    log = shop.log(OFF)
    for first in (0, 2, 4):
        fill(log, unnamed(first, 2))
    with log.writer() as writer:
        adopt(writer, [stage(log, unnamed(6, 1))])
    storage.kill_at(step, "before" if step % 2 else "after")
    with contextlib.suppress(Killed):
        log.truncate(4)
    storage.restart()
    log = shop.log()
    assert positions(log) in ([4, 5, 6], [0, 1, 2, 3, 4, 5, 6])
    assert log.verify().ok
    log.truncate(4)
    sealing.collect(shop.home, log._manifests)
    assert positions(log) == [4, 5, 6]
    assert known(log).manifest.doomed == ()
    for number in (0, 1):
        with pytest.raises(NotFound):
            shop.home.blocks(number, 0, 1, 1)
    assert log.verify().findings == ()


@pytest.mark.parametrize("seal", [False, True])
def test_pages_go_with_what_they_describe(shop: Shop, monkeypatch: pytest.MonkeyPatch, *, seal: bool) -> None:
    """A manifest that has put segments aside forgets them when they are truncated, and deletes its pages."""
    monkeypatch.setattr(manifests_module, "INLINE_SEGMENTS_MAX", 6)
    monkeypatch.setattr(manifests_module, "PAGE_SEGMENTS", 3)
    log = filled(shop, *[2] * 20, seal=seal)
    pages = len(shop.home.list("pages/"))
    assert pages > 2
    for before in (1, 7, 13, 14, 25, 40):
        log.truncate(before)
        assert positions(log) == list(range(before, 40))
        assert log.verify().findings == ()
        assert shop.home.list("pages/") == [page.key for page in known(log).manifest.pages]
    assert shop.home.list("pages/") == []


def test_a_truncation_whose_answer_is_lost_is_made_once(quick: Shop) -> None:
    """Asked again after a failure it finds itself done, and the log as it should be."""
    clock = SimulatedClock()
    storage = FaultyStorage(MemoryStorage(clock=clock))
    shop = Shop(storage, clock)
    for number in range(1, 40):
        log = shop.process().log(f"{LOG}{number}", OFF, create=True)
        fill(log, unnamed(0, 2), unnamed(2, 2))
        storage.fail_at(number, "after")
        with contextlib.suppress(Unavailable):
            log.truncate(3)
        storage.faults.heal()
        assert log.truncate(3) == Truncation(first_position=3)
        assert positions(log) == [3]
        assert log.verify().ok
        log.seal()
        assert orphans(log) == set()


def test_records_of_every_kind_survive_a_truncation_in_their_midst(shop: Shop) -> None:
    """What stays is what it was: fields, batches and columns that come and go."""
    log = shop.log(LogSettings(window=Window(max_keys=1), seal="off", snapshot_interval_s=1e6))
    fill(log, records(0, 10), records(10, 10))
    everything = entries(log)
    log.seal()
    log.configure(OFF)
    log.truncate(13)
    assert entries(log) == everything[13:]
    assert everything[13].value == record(13).value


def test_a_shop_that_truncates_for_hours(quick: Shop) -> None:
    """Hours of appending, sealing, retaining and sweeping leave what is wanted, and nothing else in the home."""
    shop = in_memory()
    log = shop.log(
        LogSettings(window=Window(duration_s=600, max_keys=4), seal="off", retention_s=1800, snapshot_interval_s=1e6)
    )
    for hour in range(12):
        for number in range(4):
            fill(log, plain([10 * hour + number]))
            shop.clock.advance(HOUR_S / 4)
        log.seal()
        log.retain()
    assert len(entries(log)) <= 12
    keys = shop.home.list(object_keys.PREFIX)
    assert len(keys) == len(log.files())
    assert log.verify().findings == ()
