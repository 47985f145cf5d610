"""Truncation takes ids with their records, and never sooner than the floor allows."""

from __future__ import annotations

import pytest

from oncelog import limits
from oncelog.log.upkeep.background import Housekeeper
from tests.log.memory.orders import (
    SETTINGS,
    many,
    remember,
    retried,
    runs,
    table,
)
from tests.log.shop import Shop

pytestmark = pytest.mark.usefixtures("tiny")


def test_truncation_takes_ids_with_their_records(shop: Shop) -> None:
    """An id is known up to the truncation of its record, and new behind it; runs go with what they cover."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        many(writer, range(64))
        remember(writer)
        shop.clock.advance(601)
        many(writer, range(64, 80))
        assert log.truncate(before=64).first_position == 64
        assert [ack.duplicate for ack in many(writer, [63, 64, 70])] == [False, True, True]
        remember(writer)
    assert runs(log)[0][1] > 64
    with log.writer() as writer:
        assert [ack.duplicate for ack in many(writer, [5, 63, 64, 70])] == [False, True, True, True]
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


def test_a_writer_learns_what_another_process_truncated(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the writer closes a segment it forgets such ids, those in the table too: a record that is sent again is
    stored. It answered that the record was there, as long as it was open.
    """
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS_MIN", 1_000)  # all ids stay in the table
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        many(writer, range(64))
        shop.clock.advance(601)
        many(writer, range(64, 80))
        assert shop.log().truncate(before=50).first_position == 50
        many(writer, range(80, 96))  # two segments
        remember(writer)
        assert not log._manifest().memory
        assert [ack.duplicate for ack in many(writer, [0, 49, 50, 70])] == [False, False, True, True]
        assert [ack.duplicate for ack in many(writer, [0, 49])] == [True, True]
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


def test_room_that_another_process_made_by_truncation_is_seen(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends wait while the table is full. What another process truncates away makes room, also if the rest is not
    worth a run: the writer takes records again.
    """
    monkeypatch.setattr(Housekeeper, "ask", lambda *_: None)
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS_MIN", 40)
    monkeypatch.setattr(limits, "MEMORY_TABLE_IDS_MAX", 64)
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        many(writer, range(48))
        shop.clock.advance(601)
        core, count = writer._keeper._core, 48
        while not core.behind:
            many(writer, [count])
            count += 1
            assert count < 80
        assert shop.log().truncate(48).first_position == 48
        writer._keeper._memory.work()
        assert not many(writer, [count])[0].duplicate


def test_truncation_is_held_back_by_the_floor(shop: Shop) -> None:
    """Send, consume, trim, retry within ten minutes: nothing is forgotten sooner than a default window would."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(30))
        remember(writer)
        held = log.truncate(before=30)
        assert (held.first_position, held.held_by) == (0, "window")
        assert many(writer, range(30)) == retried(acks)
        shop.clock.advance(599)
        assert log.truncate(before=30).first_position == 0
        shop.clock.advance(2)
        assert log.truncate(before=24).first_position == 24


def test_the_floor_lets_go_beyond_a_hundred_thousand_ids(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within ten minutes, what lies before so many newer ids may go: as a default window would have it."""
    monkeypatch.setattr("oncelog.log.upkeep.retention.MAX_KEYS", 20)
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        many(writer, range(64))
        remember(writer)
    assert log.truncate(before=64).first_position == 44


def test_a_merge_behind_a_truncation_within_an_adopted_file_is_sound(shop: Shop) -> None:
    """The merged run begins within the file: ``verify`` does not take the file's ids for stored twice."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        writer.ingest([log.stage([table(range(8))])])
        shop.clock.advance(601)
        writer.ingest([log.stage([table(range(8, 16))])])
        assert log.truncate(before=6).first_position == 6
        for first in (16, 24):
            writer.ingest([log.stage([table(range(first, first + 8))])])
        remember(writer)
        assert [ack.duplicate for ack in many(writer, range(4, 32))] == [False] * 2 + [True] * 26
    assert runs(log)[0] == (6, 32)
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


def test_an_id_that_was_truncated_within_an_adopted_file_may_come_again(shop: Shop) -> None:
    """No run covers the file, and its first ids are forgotten: ``verify`` does not call their return a repeat."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        writer.ingest([log.stage([table(range(3))])])
        shop.clock.advance(601)
        many(writer, [3])
        assert log.truncate(before=2).first_position == 2
        assert [ack.duplicate for ack in many(writer, range(4))] == [False, False, True, True]
    assert runs(log) == []
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []
