"""The map of producers, held against a list of everything that was ever pushed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.dedup import producers as module
from oncelog.dedup.producers import UNKNOWN, ProducerMark, Producers, Pushed, last_marks
from oncelog.errors import InvalidArgument
from oncelog.format.payload import columns
from oncelog.types import Record


class Owner:
    """Somebody who opens producers."""


OWNER = Owner()


def push(producers: Producers, *sequences: int, name: str = "p", position: int = 0, stored: int = 1 << 62) -> None:
    """Push new sequences, at consecutive positions."""
    for row, sequence in enumerate(sequences):
        producers.push(name, sequence, sequence, position + row, stored)


def test_gaps_are_allowed_and_what_was_pushed_is_found() -> None:
    """0, 1, 5: each is known where it stands, and what lies in the gap is out of order."""
    producers = Producers()
    push(producers, 0, 1, 5)
    assert [producers.find("p", sequence) for sequence in (0, 1, 5, 6)] == [0, 1, 2, None]
    for sequence in (-1, 2, 4):
        with pytest.raises(InvalidArgument, match=f"sequence {sequence} was never pushed"):
            producers.find("p", sequence)


def test_what_was_persisted_before_the_session_is_known_without_its_place() -> None:
    """At or below H everything is a duplicate; only the last one's place is known."""
    producers = Producers({"p": ProducerMark(7, 40, 0)})
    assert [producers.find("p", sequence) for sequence in (-3, 6, 7, 8)] == [UNKNOWN, UNKNOWN, 40, None]


def test_sequences_are_given_or_counted_never_both() -> None:
    """A record that forgot its sequence must not get one that another record will claim."""
    producers = Producers({"counting": ProducerMark(3, 0, 0)})
    assert producers.count("counting", None) == 4
    with pytest.raises(InvalidArgument, match="none may be given"):
        producers.count("counting", 9)
    assert producers.count("giving", 9) == 9
    with pytest.raises(InvalidArgument, match="every record must carry one"):
        producers.count("giving", None)


def test_counting_ends_where_numbers_do() -> None:
    """The highest sequence is followed by none, not by the lowest."""
    producers = Producers()
    producers.open("p", OWNER, module.SEQUENCE_MAX)
    push(producers, producers.count("p", None))
    with pytest.raises(InvalidArgument, match="under another name"):
        producers.count("p", None)


def test_a_session_that_is_opened_anew_takes_over_what_is_on_its_way() -> None:
    """What is persisted lies below the new H, gaps and all; what is pending is still joined."""
    producers = Producers()
    producers.open("p", OWNER)
    push(producers, 0, 1, 5, 6)
    producers.persist({"p": Pushed(5, 2)}, 10)
    producers.close("p", OWNER)
    producers.open("p", OWNER)
    assert producers.find("p", 3) == UNKNOWN
    assert producers.find("p", 5) == 2
    assert producers.find("p", 6) == 3
    assert producers.count("p", None) == 7


def test_a_session_has_one_owner() -> None:
    """Who opens a name has it, until it is closed by its owner, taken by another, or its owner is gone."""
    producers = Producers()
    first, second = Owner(), Owner()
    producers.open("p", first)
    assert producers.owner("p") is first
    producers.open("p", second)
    producers.close("p", first)  # it is not this one's any more
    assert producers.owner("p") is second
    producers.close("p", second)
    assert producers.owner("p") is None
    producers.open("p", first)
    del first
    assert producers.owner("p") is None


@pytest.mark.parametrize("limits", [{"inactive_us": 5, "max_producers": 9}, {"inactive_us": 99, "max_producers": 1}])
def test_an_open_producer_is_never_forgotten(limits: dict[str, int]) -> None:
    """Neither inactivity nor the cap takes it: its session knows the sequence, and would store a retry again."""
    producers = Producers()
    producers.open("p", OWNER)
    push(producers, 7)
    producers.persist({"p": Pushed(7, 0)}, 1)
    for position, name in enumerate(["q", "r"], start=1):
        producers.push(name, 1, 1, position, position)
        producers.persist({name: Pushed(1, position)}, 10)
        producers.evict(10, **limits, stored_position=position + 1)
    assert producers.find("p", 7) == 0
    mark = producers.mark("p")
    assert mark is not None
    assert mark.active_us == 10  # what is stored of it counts it as active, too
    producers.close("p", OWNER)
    producers.persist({"s": Pushed(1, 3)}, 200)
    producers.evict(200, **limits, stored_position=4)
    assert producers.mark("p") is None


def test_the_memory_of_a_session_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of any length takes so many runs; without gaps everything stays known, with them the old is refused."""
    monkeypatch.setattr(module, "RUNS_MAX", 64)
    dense, sparse = Producers(), Producers()
    for number in range(10_000):
        push(dense, number, position=2 * number, stored=2 * number)
        push(sparse, 2 * number, position=2 * number, stored=2 * number)
    for producers in (dense, sparse):
        assert len(producers._sessions["p"].firsts) <= 64
    assert dense.find("p", 0) == UNKNOWN
    assert dense.find("p", 9_999) == 19_998
    assert sparse.find("p", 19_998) == 19_998
    with pytest.raises(InvalidArgument, match="open it again"):
        sparse.find("p", 0)
    with pytest.raises(InvalidArgument, match="never pushed"):
        sparse.find("p", 19_997)


def test_what_is_pending_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are in flight, each can be joined at its place."""
    monkeypatch.setattr(module, "RUNS_MAX", 16)
    producers = Producers()
    push(producers, *range(0, 400, 2), stored=0)
    assert [producers.find("p", sequence) for sequence in range(0, 400, 2)] == list(range(200))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans()), min_size=1, max_size=40), st.booleans())
def test_runs_are_pushed_together_as_one_by_one(steps: list[tuple[int, int, bool]], above: bool) -> None:  # noqa: FBT001
    """What comes in columns is remembered as what comes record by record: with gaps, and also where nothing rises."""
    firsts, lasts, positions = [], [], []
    sequence = position = 0 if above else -3
    for gap, more, rises in steps:
        sequence += gap if rises else -gap
        position += gap
        firsts.append(sequence)
        lasts.append(sequence + more)
        positions.append(position + 10)
        sequence, position = sequence + more, position + more
    one, many = Producers(), Producers()
    push(one, 0)
    push(many, 0)
    for first, last, begin in zip(firsts, lasts, positions, strict=True):
        one.push("p", first, last, begin, 0)
    many.push_runs("p", np.array(firsts), np.array(lasts), np.array(positions), 0)
    for name in ("firsts", "lasts", "positions", "next_sequence"):
        assert getattr(one._sessions["p"], name) == getattr(many._sessions["p"], name)


def test_many_gaps_at_once_are_forgotten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences that are offsets in a file have a gap behind each: what is pending is not gone through for each."""
    forgets: list[int] = []
    forget = module._Session._forget

    def counted(self: module._Session, stored_position: int) -> None:
        forgets.append(len(self.firsts))
        forget(self, stored_position)

    monkeypatch.setattr(module._Session, "_forget", counted)
    producers, count = Producers(), 10_000
    for table in range(3):
        numbers = np.arange(table * count, (table + 1) * count)
        producers.push_runs("p", 7 * numbers, 7 * numbers, numbers, table * count)
    assert len(forgets) <= 6
    assert len(producers._sessions["p"].firsts) <= count + module.RUNS_MAX
    assert producers.find("p", 7 * (3 * count - 1)) == 3 * count - 1


def test_the_inactive_go_and_the_active_stay() -> None:
    """Inactivity and the cap take the least recently active, never one with something on its way, and are counted."""
    producers = Producers()
    for number, name in enumerate("abcde"):
        producers.persist({name: Pushed(number, number)}, 10 * number)
    producers.push("b", 9, 9, 100, 50)
    producers.touch("c", 100)
    producers.evict(100, inactive_us=75, max_producers=9, stored_position=50)
    assert set(producers.marks()) == {"b", "c", "d", "e"}
    producers.evict(100, inactive_us=1000, max_producers=2, stored_position=50)
    assert set(producers.marks()) == {"b", "c"}
    assert (producers.expired, producers.evicted) == (1, 2)


def test_a_cap_that_was_lowered_takes_the_least_recently_active_of_a_snapshot() -> None:
    """A snapshot with more producers than the cap loses none of the active, whatever order it has them in."""
    marks = {f"p{number}": ProducerMark(number, number, (number * 7) % 10) for number in range(10)}
    producers = Producers(marks)
    producers.evict(10, inactive_us=1000, max_producers=3, stored_position=100)
    assert {mark.active_us for mark in producers.marks().values()} == {7, 8, 9}


def test_the_last_of_each_producer_in_columns() -> None:
    """The fold of stored records is that of its last: nulls, gaps and repeats change nothing."""
    records = [
        Record(b"", producer="a", sequence=5),
        Record(b""),
        Record(b"", producer="b", sequence=-2),
        Record(b"", producer="a", sequence=3),
        Record(b"", producer="c"),
    ]
    payload = columns.from_records(records)
    assert last_marks(payload) == {"b": Pushed(-2, 2), "a": Pushed(3, 3)}
    assert last_marks(payload.slice(3)) == {"a": Pushed(3, 0)}
    assert last_marks(columns.from_records([Record(b"")])) == {}
    producers = Producers()
    producers.fold(payload, 100, np.arange(5))
    assert producers.marks() == {"b": ProducerMark(-2, 102, 2), "a": ProducerMark(3, 103, 3)}
    assert isinstance(payload, pa.RecordBatch)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 3)), max_size=30), st.integers(0, 12), st.data())
def test_the_map_says_what_a_list_says(steps: Sequence[tuple[int, int]], floor: int, data: st.DataObject) -> None:
    """Whatever is pushed in whatever runs, a sequence is new, known or refused as a list of all would have it."""
    producers = Producers({"p": ProducerMark(floor, 0, 0)})
    known: dict[int, int] = {}
    position = 1
    for sequence, count in steps:
        highest = max([floor, *known])
        if sequence <= floor:
            assert producers.find("p", sequence) in (0, UNKNOWN)
        elif sequence > highest:
            assert producers.find("p", sequence) is None
            producers.push("p", sequence, sequence + count - 1, position, position)
            known |= {sequence + row: position + row for row in range(count)}
            position += count + data.draw(st.integers(0, 1))
        elif sequence in known:
            assert producers.find("p", sequence) == known[sequence]
        else:
            with pytest.raises(InvalidArgument):
                producers.find("p", sequence)
