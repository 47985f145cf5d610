"""Retries that come among many: answered as columns, each with the answer its original got."""

from __future__ import annotations

import pytest

import oncelog
from oncelog import LogSettings, Record
from oncelog.errors import AppendErrors, IdConflict
from oncelog.types import Ack

SMALL = LogSettings(segment_bytes=65536, seal="off")


def records(first: int, last: int) -> list[Record]:
    """Return records by their numbers."""
    return [Record(b"%01000d" % number, id=f"id-{number}") for number in range(first, last)]


def original(ack: Ack) -> tuple[object, ...]:
    """Return what an ack has in common with the ack of a retry."""
    return ack.position, ack.segment, ack.entry, ack.timestamp


@pytest.mark.parametrize("way", ["append_many", "submit"])
def test_a_retry_has_its_original_s_answer_whatever_segment_that_is_in(way: str) -> None:
    """Old and new, of segments long closed and of the one that is open, in one call: places and times stay."""
    with oncelog.connect("memory://") as db, db.log("orders", SMALL, create=True).writer() as writer:
        first = [ack for low in range(0, 400, 40) for ack in writer.append_many(records(low, low + 40))]
        assert len({ack.segment for ack in first}) > 3
        again = records(0, 500)
        if way == "submit":
            acks = [future.result() for future in [writer.submit(each.value, id=each.id) for each in again]]
        else:
            acks = writer.append_many(again)
    assert [original(ack) for ack in acks[:400]] == [original(ack) for ack in first]
    assert [ack.duplicate for ack in acks] == [True] * 400 + [False] * 100
    assert [ack.position for ack in acks[400:]] == list(range(400, 500))


def test_a_conflict_among_many_is_the_only_one_refused() -> None:
    """One bad row gets its own error; its neighbours, old and new, have their acks."""
    with oncelog.connect("memory://") as db, db.log("orders", create=True).writer() as writer:
        writer.append_many(records(0, 40))
        mixed = [*records(20, 60), Record(b"other", id="id-7")]
        with pytest.raises(AppendErrors) as caught:
            writer.append_many(mixed)
        futures = [writer.submit(each.value, id=each.id) for each in mixed]
        errors: list[Ack | BaseException] = [future.exception() or future.result() for future in futures]
    for results in (caught.value.results, errors):
        assert isinstance(results[40], IdConflict)
        assert results[40].position == 7
        assert [ack.position for ack in results[:40] if isinstance(ack, Ack)] == list(range(20, 60))
