"""A file that was written elsewhere becomes a part of the log at once or not at all, and its ids are the log's."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from oncelog.errors import (
    AppendErrors,
    CorruptionError,
    IdConflict,
    InvalidArgument,
    NotFound,
    PartialOverlap,
    Unavailable,
    WriterFenced,
)
from oncelog.format.payload import columns
from oncelog.log.ingest import staging
from oncelog.log.log import Log
from oncelog.log.stored import object_keys
from oncelog.log.stored.staged import Staged
from oncelog.log.upkeep import sealing
from oncelog.settings import LogSettings, Window
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.faults import When
from oncelog.testing.storage import FaultyStorage
from oncelog.types import Ack, Entry, Record, micros, moment
from tests.log.ingest.adoption import adopt, overlap
from tests.log.shop import (
    HOUR_S,
    SETTINGS,
    Shop,
    again,
    append,
    entries,
    fill,
    hasher,
    known,
    plain,
    records,
    stage,
    stage_many,
    table,
    values,
)


def content(entry: Entry) -> Record:
    """Return an entry without its place and time: what somebody sent."""
    return Record(
        entry.value,
        id=entry.id,
        stream=entry.stream,
        type=entry.type,
        headers=entry.headers,
        tenant=entry.tenant,
    )


def original(log: Log, position: int) -> Ack:
    """Return what a retry of the record at a position must be answered."""
    (found,) = log.read(position, limit=1)
    return Ack(position, found.segment, found.entry, found.timestamp, duplicate=True)


def clean(log: Log) -> bool:
    """Tell whether a verification finds nothing but files that were staged and not adopted, and work left to do."""
    return all(finding.severity == "note" for finding in log.verify().findings)


# What is in the log then.


def test_adopted_records_stand_behind_all_others(shop: Shop) -> None:
    """Each file is a segment of its own behind what was appended; positions go on without a gap, before and after."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        writer.append_many(plain(range(3)))
        open_segment = known(log).manifest.open_segment
        assert open_segment is not None
        firsts = adopt(writer, [stage(log, plain(range(10, 14))), stage(log, plain(range(20, 22)), plain([22]))])
        assert firsts == [3, 7]
        assert writer.last_position == 9
        assert writer.append(b"behind", id="behind").position == 10
    found = entries(log)
    assert [entry.position for entry in found] == list(range(11))
    assert [(entry.segment - open_segment, entry.entry) for entry in found] == [
        *[(0, entry) for entry in range(3)],
        *[(1, entry) for entry in range(4)],
        *[(2, entry) for entry in range(3)],
        (3, 0),
    ]
    assert [list(log.read((entry.segment, entry.entry), limit=1)) for entry in found] == [[entry] for entry in found]


def test_adopted_records_are_read_as_they_were_staged(shop: Shop) -> None:
    """No field of any record is lost on the way, with and without ids, one by one and in columns, nor by a merge."""
    log = shop.log(SETTINGS)
    sent = records(0, 23)
    with log.writer() as writer:
        adopt(writer, [stage(log, sent[:9], sent[9:])])
    assert list(map(content, entries(log))) == sent
    assert table(log).column("id").to_pylist() == [each.id for each in sent]
    before = entries(log), table(log)
    fill(log, plain([100]))
    log.seal()
    assert len(log.files()) == 1
    assert entries(log)[:23] == before[0]
    assert table(log).slice(0, 23).equals(before[1])


def test_the_time_of_adoption_is_the_time_of_the_records(shop: Shop) -> None:
    """A staged file has no times: its records are as old as their place in the log, and time never goes back."""
    log = shop.log(SETTINGS)
    staged = stage(log, plain(range(3)))
    shop.clock.advance(5)
    with log.writer() as writer:
        before = writer.append(b"before")
        shop.clock.advance(5)
        adopted_us = shop.clock.now_us()
        adopt(writer, [staged])
        shop.clock.jump(-60)
        writer.append(b"after a jump")
    assert [entry.timestamp for entry in entries(log)] == [before.timestamp, *[moment(adopted_us)] * 4]
    assert [entry.position for entry in log.read(moment(adopted_us))] == [1, 2, 3, 4]
    assert clean(log)


def test_an_adoption_makes_what_it_closes_no_younger(shop: Shop) -> None:
    """The segment that an adoption closes ended with its last record: retention by age counts from that."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        ack = writer.append(b"old")
        shop.clock.advance(HOUR_S)
        adopt(writer, [stage(log, [Record(b"new")])])
    assert ack.timestamp is not None
    assert known(log).manifest.segments[0].last_timestamp_us == micros(ack.timestamp)


@pytest.mark.parametrize("sent", [[Record(b"a"), Record(b"b")], [Record(b"a"), Record(b"b", id="b")]])
def test_files_without_ids(shop: Shop, sent: list[Record]) -> None:
    """Where no record has an id there is nothing beside the file, and nothing to refuse it for."""
    log = shop.log(SETTINGS)
    staged = stage(log, sent)
    named = sum(each.id is not None for each in sent)
    assert (staged.records, staged.ids) == (2, named)
    assert (staged.identities is None) == (named == 0)
    with log.writer() as writer:
        assert adopt(writer, [staged]) == [0]
        assert [found.tolist() for found in overlap(writer, [stage(log, sent)])] == [[1][:named]]
    shop.lose_snapshots()
    with shop.log().writer() as writer:
        assert writer.append(b"a").position == 2
    log.seal()
    assert values(log) == [b"a", b"b", b"a"]
    assert clean(log)


def test_what_cannot_be_staged_or_adopted(quick: Shop) -> None:
    """Nothing, the same file twice, and what was never staged are refused, and nothing is written."""
    log = quick.log(SETTINGS)
    for nothing in ([], [columns.from_records([])]):
        with pytest.raises(InvalidArgument):
            staging.stage(log._home, hasher(log), quick.clock, nothing)
    staged = stage(log, plain([1]))
    bad: list[list[Staged]] = [
        [],
        [staged, staged],
        [msgspec.structs.replace(staged, key="bodies/1")],
        [msgspec.structs.replace(staged, records=0)],
    ]
    with log.writer() as writer:
        version = known(log).version
        for files in bad:
            with pytest.raises(InvalidArgument):
                adopt(writer, files)
        assert known(log).version == version
        assert adopt(writer, [staged]) == [0]


# Their ids are the log's.


def test_adopted_ids_are_duplicates_with_their_original_place(shop: Shop) -> None:
    """A retry of what an adopted file brought is answered with where it stands, by every way of appending."""
    log = shop.log(SETTINGS)
    sent = plain(range(6))
    with log.writer() as writer:
        append(writer, Record(b"first"))
        adopt(writer, [stage(log, sent[:4]), stage(log, sent[4:])])
        for attempt in range(3):
            wanted = [original(log, position) for position in range(1, 7)]
            assert [append(writer, each) for each in sent] == wanted, attempt
            assert writer.append_many(sent) == wanted
            assert [writer.submit(each.value, id=each.id).result() for each in sent] == wanted
            acks = writer.append_arrow(pa.table({"value": [e.value for e in sent], "id": [e.id for e in sent]}))
            assert acks.positions.tolist() == list(range(1, 7))
            assert acks.duplicates.all()
            assert not acks.conflicts.any()
            append(writer, Record(b"between"))
    assert log.info().last_position == 9


@pytest.mark.parametrize("damage", [None, "lost", "flipped"])
@pytest.mark.parametrize("merged", [False, True])
def test_adopted_ids_outlive_the_process_and_every_snapshot(quick: Shop, damage: str | None, *, merged: bool) -> None:
    """A new writer refuses them too, from what lies beside the file, or from the file when that is lost or damaged."""
    log = quick.log(SETTINGS)
    sent = plain(range(5))
    with log.writer() as writer:
        append(writer, Record(b"first", id="first"))
        adopt(writer, [staged := stage(log, sent)])
        writer.snapshot()
    if merged:
        log.seal()
    quick.lose_snapshots()
    assert staged.identities is not None
    if damage is not None:
        damaged = bytearray(quick.home.read(staged.identities).to_pybytes())
        damaged[-1] ^= 1
        quick.home.delete(staged.identities)
        if damage == "flipped":
            quick.home.create(staged.identities, [bytes(damaged)])
    log = quick.log()
    with log.writer() as writer:
        assert [append(writer, each) for each in sent] == [original(log, position) for position in range(1, 6)]
        assert writer.append(b"first", id="first").duplicate
        for number in range(5):
            with pytest.raises(IdConflict) as caught:
                writer.append(b"other", id=f"id-{number}")
            assert caught.value.position == number + 1
        assert writer.append(b"new", id="new").position == 6


def test_other_content_under_an_adopted_id_is_a_conflict(shop: Shop) -> None:
    """The id is taken: an error with the place of the first, or its ack marked, as the log is set."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        adopt(writer, [stage(log, plain(range(3)))])
        with pytest.raises(IdConflict) as caught:
            writer.append(b"other", id="id-1")
        assert caught.value.position == 1
        with pytest.raises(AppendErrors) as several:
            writer.append_many([Record(b"other", id="id-2"), Record(b"new", id="new")])
        assert isinstance(several.value.results[0], IdConflict)
        assert several.value.results[1].position == 3
    log.configure(msgspec.structs.replace(SETTINGS, on_conflict="original"))
    with log.writer() as writer:
        ack = writer.append(b"other", id="id-1")
        assert (ack.position, ack.duplicate, ack.conflict) == (1, True, True)


def test_batches_and_adopted_ids(shop: Shop) -> None:
    """An adopted file has no batches of several: those meet ``PartialOverlap``; a batch of one is a retry."""
    log = shop.log(SETTINGS)
    sent = plain(range(4))
    for _ in range(2):
        with log.writer() as writer:
            if known(log).manifest.next_position == 0:
                adopt(writer, [stage(log, sent)])
            with pytest.raises(PartialOverlap) as caught:
                writer.append_batch(sent)
            assert (caught.value.known, caught.value.new) == (tuple(each.id or "" for each in sent), ())
            with pytest.raises(PartialOverlap) as caught:
                writer.append_batch([*plain([9]), sent[2]])
            assert (caught.value.known, caught.value.new) == (("id-2",), ("id-9",))
            assert writer.append_batch(sent[1:2]) == [original(log, 1)]
        assert clean(log)
        assert log.info().last_position == 3
        shop.lose_snapshots()


def test_adopted_ids_age_by_time_alone(quick: Shop) -> None:
    """An adopted id is free again when the window's duration is over, in up-time, and not before."""
    settings = msgspec.structs.replace(SETTINGS, window=Window(duration_s=10, max_keys=2))
    log = quick.log(settings)
    with log.writer() as writer:
        adopt(writer, [stage(log, plain(range(3)))])
        for number in range(10, 20):
            writer.append(b"", id=f"id-{number}")
        quick.clock.advance(9.5)
        assert append(writer, plain([0])[0]).duplicate
    assert log.info().adopted_records == 3
    quick.clock.advance(HOUR_S)  # nobody writes: no up-time
    with log.writer() as writer:
        assert append(writer, plain([1])[0]).duplicate
        quick.clock.advance(0.5)
        assert [found.tolist() for found in overlap(writer, [stage(log, plain(range(3)))])] == [[]]
        assert not append(writer, plain([0])[0]).duplicate
        assert append(writer, plain([0])[0]).duplicate
        assert adopt(writer, [stage(log, plain([1, 2]))]) == [14]
        assert append(writer, plain([1])[0]).position == 14
    assert log.info().adopted_records == 2
    quick.lose_snapshots()
    with quick.log().writer() as writer:
        assert append(writer, plain([1])[0]).position == 14
    assert clean(log)


def test_many_adopted_rows_push_no_fresh_id_out(quick: Shop) -> None:
    """Adopting 100 000 rows spends none of a small window's keys, now or when the window is built again."""
    settings = msgspec.structs.replace(SETTINGS, window=Window(duration_s=1e6, max_keys=5))
    log = quick.log(settings)
    fresh = plain(range(5))
    with log.writer() as writer:
        acks = [append(writer, each) for each in fresh]
        assert adopt(writer, [stage_many(log, 0, 100_000)]) == [5]
        assert [append(writer, each) for each in fresh] == list(map(again, acks))
    quick.lose_snapshots()
    with quick.log().writer() as writer:
        assert [append(writer, each) for each in fresh] == list(map(again, acks))
        for number in (0, 50_000, 99_999):
            ack = writer.append(b"adopted-%d" % number, id=f"adopted-{number}")
            assert (ack.position, ack.duplicate) == (5 + number, True)
        assert not writer.append(b"", id="adopted-100000").duplicate


# What cannot be adopted.


def test_overlap_tells_exactly_the_rows(shop: Shop) -> None:
    """Rows that are in the window, in an adopted file, earlier in the same file or in an earlier one: no others."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        writer.append_many(plain([1, 2]))
        adopt(writer, [stage(log, plain([3, 4]))])
        first = stage(log, [*plain([10, 1]), Record(b"without"), *plain([3, 11])], plain([10, 4]))
        second = stage(log, plain([12, 11, 2, 13, 12]))
        third = stage(log, plain([14]))
        found = overlap(writer, [first, second, third])
        assert [rows.tolist() for rows in found] == [[1, 3, 5, 6], [1, 2, 4], []]
        assert [rows.dtype for rows in found] == [np.dtype(np.int64)] * 3
        assert [rows.tolist() for rows in overlap(writer, [second, third, first])] == [
            [2, 4],
            [],
            [1, 3, 4, 5, 6],
        ]


def test_what_is_there_in_part_is_not_adopted_at_all(shop: Shop) -> None:
    """One known id, and none of the files is adopted; the writer goes on, and takes what is new as a whole."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        ack = append(writer, plain([1])[0])
        good, bad = stage(log, plain([5, 6])), stage(log, plain([7, 1]))
        before = known(log)
        with pytest.raises(PartialOverlap):
            adopt(writer, [good, bad])
        with pytest.raises(PartialOverlap):
            adopt(writer, [good, stage(log, plain([6]))])
        with pytest.raises(PartialOverlap):
            adopt(writer, [stage(log, plain([8, 8]))])
        assert known(log) == before
        assert append(writer, plain([1])[0]) == again(ack)
        assert not append(writer, plain([7])[0]).duplicate
        assert adopt(writer, [good]) == [2]
        with pytest.raises(PartialOverlap):
            adopt(writer, [good])
    assert [entry.id for entry in entries(log)] == ["id-1", "id-7", "id-5", "id-6"]
    assert clean(log)


@pytest.mark.parametrize("named", [False, True])
def test_a_file_staged_before_the_floor_is_refused(quick: Shop, *, named: bool) -> None:
    """What may be swept away is not adopted; the writer goes on, and takes the same records staged again."""
    log = quick.log(SETTINGS)
    sent = plain([1, 2]) if named else [Record(b"1"), Record(b"2")]
    old = stage(log, sent)
    quick.clock.advance(2 * object_keys.STAGED_S)
    with log.writer() as writer:
        append(writer, plain([0])[0])
        assert old.key in sealing.sweep(quick.home, log._manifests, quick.clock)
        before = known(log)
        with pytest.raises(NotFound):
            adopt(writer, [old])
        assert known(log) == before
        append(writer, plain([9])[0])
        assert adopt(writer, [stage(log, sent)]) == [2]
    assert [entry.value for entry in entries(log)][2:] == [each.value for each in sent]
    assert clean(log)


def test_a_file_in_time_is_adopted_however_old_it_gets(quick: Shop) -> None:
    """Once it is part of the log no sweep takes a file or its identities."""
    log = quick.log(SETTINGS)
    with log.writer() as writer:
        adopt(writer, [stage(log, plain(range(3)))])
    stage(log, plain([9]))
    quick.clock.advance(2 * object_keys.STAGED_S)
    assert len(sealing.sweep(quick.home, log._manifests, quick.clock)) == 2
    assert values(log) == [each.value for each in plain(range(3))]
    assert clean(log)


def test_damaged_identities_of_a_staged_file_are_not_believed(quick: Shop) -> None:
    """What tells whether a file is new must be whole: an error, nothing adopted, and the writer goes on."""
    log = quick.log(SETTINGS)
    staged = stage(log, plain(range(3)))
    assert staged.identities is not None
    damaged = bytearray(quick.home.read(staged.identities).to_pybytes())
    damaged[-1] ^= 1
    quick.home.delete(staged.identities)
    quick.home.create(staged.identities, [bytes(damaged)])
    with log.writer() as writer:
        with pytest.raises(CorruptionError):
            adopt(writer, [staged])
        assert append(writer, plain([0])[0]).position == 0


def test_a_fenced_writer_adopts_nothing(quick: Shop) -> None:
    """Somebody else has the log: its former writer is told, and its files are not in it."""
    log = quick.log(SETTINGS)
    writer = log.writer()
    append(writer, plain([0])[0])
    with quick.log().writer(takeover="force") as other:
        with pytest.raises(WriterFenced):
            adopt(writer, [stage(log, plain([1]))])
        assert not append(other, plain([1])[0]).duplicate
    writer.close()
    assert [entry.id for entry in entries(log)] == ["id-0", "id-1"]


def test_a_writer_that_ends_while_it_judges_does_not_ask_its_table(
    quick: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks of a judgement the writer may let the log go: the next one has the table from then on."""
    log = quick.log(msgspec.structs.replace(SETTINGS, window=Window()))
    writer = log.writer()
    append(writer, plain([0])[0])
    begin = writer._adopter._begin_to_judge

    def then_ended(*given: Any) -> Any:
        begun = begin(*given)
        monkeypatch.setattr(writer._adopter, "_known", ended_first)
        return begun

    known = writer._adopter._known

    def ended_first(*given: Any) -> Any:
        writer._ending._let_go()
        return known(*given)

    monkeypatch.setattr(writer._adopter, "_begin_to_judge", then_ended)
    with pytest.raises(WriterFenced):
        overlap(writer, [stage(log, plain([0, 1]))])
    assert append(log.writer(), plain([0])[0]).duplicate


# Among everything else that happens to a log.


def test_adopting_between_appends_rolls_and_seals(shop: Shop) -> None:
    """Appended, adopted, appended, rolled, sealed and merged: everything is there once, and is refused for ever."""
    log = shop.log(SETTINGS)
    sent: list[Record] = []
    with log.writer() as writer:
        for first in range(0, 60, 20):
            appended = plain(range(first, first + 6), 12_000)
            adopted = plain(range(first + 6, first + 12))
            behind = plain(range(first + 12, first + 20), 12_000)
            for each in appended:
                append(writer, each)
            adopt(writer, [stage(log, adopted[:3]), stage(log, adopted[3:])])
            for each in behind:
                append(writer, each)
            sent += [*appended, *adopted, *behind]
            log.seal()
            assert [ack.position for ack in writer.append_many(sent)] == list(range(len(sent)))
    before = entries(log)
    assert [content(entry) for entry in before] == sent
    log.seal()
    assert entries(log) == before
    assert len({entry.segment for entry in before}) > len(log.files())
    shop.lose_snapshots()
    log = shop.log()
    with log.writer() as writer:
        acks = writer.append_many(sent)
        assert [ack.position for ack in acks] == list(range(60))
        assert all(ack.duplicate for ack in acks)
        assert [(ack.segment, ack.entry) for ack in acks] == [(entry.segment, entry.entry) for entry in before]
        assert append(writer, plain([60])[0]).position == 60
    assert clean(log)


def test_a_tail_sees_adopted_records_in_their_place(shop: Shop) -> None:
    """Who follows the log meets appended and adopted records in one order, each once."""
    log = shop.log(SETTINGS)
    seen: list[str | None] = []
    with log.writer() as writer, shop.log().tail("earliest") as tail:
        for first in (0, 10):
            append(writer, plain([first])[0])
            adopt(writer, [stage(log, plain([first + 1, first + 2]))])
            while (entry := tail.poll(timeout_s=0)) is not None:
                seen += [entry.id]
            append(writer, plain([first + 3])[0])
        while (entry := tail.poll(timeout_s=0)) is not None:
            seen += [entry.id]
    assert seen == [f"id-{number}" for number in (0, 1, 2, 3, 10, 11, 12, 13)]


def test_with_idempotence_off_files_are_taken_as_they_are(quick: Shop) -> None:
    """A log without a window promises nothing about ids, so an adopted file is refused for none."""
    log = quick.log(LogSettings(idempotence="off", seal="off"))
    with log.writer() as writer:
        for position in (0, 2):
            assert adopt(writer, [stage(log, plain([1, 2]))]) == [position]
    assert [entry.id for entry in entries(log)] == ["id-1", "id-2"] * 2
    assert clean(log)


# An answer that is lost.


def adopted_under_failure(number: int, when: When, *, lasting: bool) -> tuple[str, bool]:
    """Adopt while the call of that number fails, and if ``lasting`` all after it; look at what the next writer finds.

    Returns what the writer said (``"unreached"`` when there are fewer calls), and whether the file was in the log then.
    """
    clock = SimulatedClock()
    storage = FaultyStorage(MemoryStorage(clock=clock))
    shop = Shop(storage, clock)
    log = shop.log(SETTINGS)
    first, adopted, last = plain([0]), plain(range(1, 4)), plain([4])
    writer = log.writer()
    append(writer, first[0])
    staged = stage(log, adopted)
    calls = storage.faults.calls
    storage.fail_at(number, when)
    if lasting:
        away = Unavailable("simulated outage", outcome="not written")
        storage.faults.fail_forever(lambda *_: away if storage.faults.calls > calls + number else None)
    said = "refused"
    try:
        assert adopt(writer, [staged]) == [1]
        said = "adopted" if storage.faults.calls >= calls + number else "unreached"
    except Unavailable as error:
        if writer._committer.error is not None:
            said = error.outcome
    storage.faults.heal()
    if said == "unknown":
        with pytest.raises(Unavailable):
            append(writer, last[0])
    writer.close()
    log = shop.log()
    with log.writer() as writer:
        found = [entry.id for entry in entries(log)]
        stored = len(found) > 1
        assert found == ["id-0", "id-1", "id-2", "id-3"][: 4 if stored else 1]
        if stored:
            with pytest.raises(PartialOverlap):
                adopt(writer, [staged])
        else:
            assert adopt(writer, [staged]) == [1]
        acks = writer.append_many([*first, *adopted, *last])
        assert [ack.position for ack in acks] == [0, 1, 2, 3, 4]
        assert [ack.duplicate for ack in acks] == [True] * 4 + [False]
    assert [entry.position for entry in entries(log)] == [0, 1, 2, 3, 4]
    assert clean(log)
    return said, stored


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_adoption_that_meets_a_failure_is_made_once_or_not_at_all(when: When, *, lasting: bool) -> None:
    """Whichever call fails, done or not: an adoption that was answered stands, one of which the outcome is unknown ends
    the writer and is decided by the next, and no position is given twice.
    """
    met = set()
    number = 1
    while (outcome := adopted_under_failure(number, when, lasting=lasting))[0] != "unreached":
        met.add(outcome)
        number += 1
    assert ("adopted", False) not in met
    assert ("refused", True) not in met
    assert ("unknown", False) in met
    assert (("unknown", True) in met) == (when == "after" and lasting), (
        "one lost answer is looked up, an outage hides it"
    )
