"""The checker is itself checked: it accepts a sound history, and notices each way in which one can be unsound."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from oncelog import Entry
from tests.crash.history import Acked, History, Seen
from tests.crash.work import Step, checksum, record

START = datetime(2024, 1, 1, tzinfo=UTC)
BATCH = Step("batch", 1, 3)


def sound() -> tuple[History, list[Entry]]:
    """Return a history and a log that agree."""
    entries = []
    history = History(sent=[Step("append", 0, 1), BATCH, Step("many", 4, 2)])
    for number in range(6):
        sent = record(number, "explicit")
        segment, entry = divmod(number, 4)
        entries.append(Entry(number, segment, entry, START + timedelta(seconds=number), sent.id, sent.value))
        history.acks += [Acked(number, number, segment, entry, again) for again in (False, True)]
        history.seen.append(Seen(number, number, checksum(sent.value)))
    return history, entries


def test_sound_history_is_accepted() -> None:
    """A checker that always complains would prove as little as one that never does."""
    history, entries = sound()
    assert history.complaints(entries) == []


def change(entries: list[Entry], place: int, **changes: object) -> None:
    """Replace an entry by one that differs."""
    entries[place] = msgspec.structs.replace(entries[place], **changes)


def lose_last(history: History, entries: list[Entry]) -> None:
    """Let the last record be gone."""
    del entries[-1]


def lose_first(history: History, entries: list[Entry]) -> None:
    """Let the first record be gone, and the rest move up."""
    for place in range(5):
        change(entries, place, id=entries[place + 1].id, value=entries[place + 1].value)
    del entries[-1]


def store_twice(history: History, entries: list[Entry]) -> None:
    """Let the first record be there again at the end."""
    entries.append(Entry(6, 1, 2, entries[-1].timestamp, entries[0].id, entries[0].value))


def store_another_value(history: History, entries: list[Entry]) -> None:
    """Let a record have another value than was sent."""
    change(entries, 2, value=entries[2].value + b"!")


def store_another_id(history: History, entries: list[Entry]) -> None:
    """Let a record have another id than was sent."""
    change(entries, 2, id="id-7")


def store_what_nobody_sent(history: History, entries: list[Entry]) -> None:
    """Let a record be there that nobody sent."""
    history.sent.pop()


def skip_a_position(history: History, entries: list[Entry]) -> None:
    """Let there be a hole in the positions."""
    change(entries, 5, position=6)


def skip_an_entry(history: History, entries: list[Entry]) -> None:
    """Let there be a hole in a segment."""
    change(entries, 5, entry=2)


def turn_time_back(history: History, entries: list[Entry]) -> None:
    """Let a record be older than the one before it."""
    change(entries, 3, timestamp=START)


def reorder_a_batch(history: History, entries: list[Entry]) -> None:
    """Let a batch that nobody has an answer for be stored in another order."""
    history.acks, history.seen = history.acks[:2], []
    first, second = entries[1], entries[2]
    change(entries, 1, id=second.id, value=second.value)
    change(entries, 2, id=first.id, value=first.value)


def halve_a_batch(history: History, entries: list[Entry]) -> None:
    """Let only a part be there of a batch that nobody has an answer for."""
    history.acks, history.seen = history.acks[:2], []
    del entries[3:]


def answer_with_another_position(history: History, entries: list[Entry]) -> None:
    """Let two answers for one id differ."""
    history.acks[1] = history.acks[1]._replace(position=1)


def answer_as_new_again(history: History, entries: list[Entry]) -> None:
    """Let two answers for one id say that it is new."""
    history.acks[1] = history.acks[1]._replace(duplicate=False)


def answer_with_another_segment(history: History, entries: list[Entry]) -> None:
    """Let an answer name the right position and a wrong segment."""
    history.acks[1] = history.acks[1]._replace(segment=5)


def show_what_is_not_there(history: History, entries: list[Entry]) -> None:
    """Let a reader have seen a record that a crash took back."""
    history.seen.append(Seen(6, 6, 0))


def show_another_value(history: History, entries: list[Entry]) -> None:
    """Let a reader have seen other bytes."""
    history.seen[0] = history.seen[0]._replace(checksum=0)


@pytest.mark.parametrize(
    ("doctor", "complaint"),
    [
        (lose_last, "was acknowledged at position 5 and is not there"),
        (lose_first, "was acknowledged at position 0 and is not there"),
        (store_twice, "0 is there 2 times"),
        (store_another_value, "2 is not what was sent"),
        (store_another_id, "2 is not what was sent"),
        (store_what_nobody_sent, "was never sent"),
        (skip_a_position, "position 6 where 5 is due"),
        (skip_an_entry, "1/2 comes right after 1/0"),
        (turn_time_back, "the time goes back at position 3"),
        (reorder_a_batch, "of the batch range(1, 4) there is [2, 1, 3]"),
        (halve_a_batch, "of the batch range(1, 4) there is [1, 2]"),
        (answer_with_another_position, "was acknowledged at position 0, then at 1"),
        (answer_as_new_again, "was acknowledged before, and then as new"),
        (answer_with_another_segment, "was acknowledged at 5/0"),
        (show_what_is_not_there, "a reader saw 6 at position 6"),
        (show_another_value, "a reader saw 0 at position 0"),
    ],
)
def test_doctored_history_is_noticed(doctor: Callable[[History, list[Entry]], None], complaint: str) -> None:
    """Each promise that a history can break is one that the checker sees broken."""
    history, entries = sound()
    doctor(history, entries)
    found = history.complaints(entries)
    assert any(complaint in each for each in found), found
