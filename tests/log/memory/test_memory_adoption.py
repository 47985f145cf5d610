"""Adopted files in a log without bounds: their ids are in the table, or in a run that they bring."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog import limits
from oncelog.dedup.table import Table
from oncelog.log.append.decisions import Seen
from oncelog.log.ingest import adopter
from oncelog.log.upkeep.background import Housekeeper
from tests.log.memory.orders import (
    SETTINGS,
    check,
    ids,
    many,
    remember,
    runs,
    table,
)
from tests.log.shop import Shop, in_memory

pytestmark = pytest.mark.usefixtures("tiny")


def test_many_small_adoptions_leave_few_runs(shop: Shop) -> None:
    """A writer that opens, adopts ten rows and leaves, as Spark's sink does: runs stay few, and all ids are known."""
    log = shop.log(SETTINGS)
    for number in range(0, 600, 10):
        with log.writer() as writer:
            assert writer.ingest([log.stage([table(range(number, number + 10))])]).records == 10
    assert len(runs(log)) < limits.MEMORY_RUNS_MAX
    with log.writer() as writer:
        assert all(ack.duplicate for ack in many(writer, range(600)))
    check(log, 600)


def test_a_snapshot_around_a_run_of_an_adopted_file_is_sound(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has the ids before and behind the file, and the run the others: the snapshot lacks nothing."""
    monkeypatch.setattr(Housekeeper, "ask", lambda *_: None)  # the writer is killed before it puts the rest into runs
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        many(writer, range(3))
        writer.ingest([log.stage([table(range(3, 20))])])
        many(writer, range(20, 22))
        writer.snapshot()
    assert runs(log) == [(3, 20)]
    check(log, 22)
    with shop.log().writer() as writer:
        assert all(ack.duplicate for ack in many(writer, range(22)))
    check(log, 22)


def test_adopted_ids_are_in_the_table_or_bring_a_run(shop: Shop) -> None:
    """Few ids of a staged file go into the table, many bring a run; retries meet both, and so do other files."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        few = log.stage([table(range(3))])
        writer.ingest([few])
        assert not runs(log)
        writer.ingest([log.stage([table(range(3, 20))]), log.stage([table(range(20, 40))])])
        assert (3, 40) in runs(log)
        found = many(writer, range(40))
        assert [ack.position for ack in found] == list(range(40))
        assert all(ack.duplicate for ack in found)
        again = writer.ingest([log.stage([table(range(41))])])
        assert (again.records, again.duplicates) == (1, 40)
        remember(writer)
        assert all(ack.duplicate for ack in many(writer, range(41)))
    log = shop.log()
    with log.writer() as writer:
        assert many(writer, range(41))[:40] == found
    check(log, 41)


@pytest.mark.parametrize("what", ["append", "build", "fail"])
def test_what_happens_while_a_file_is_looked_up_in_the_table(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is let go between parts of a large file. An id that is appended then is there once; one that leaves the
    table for a run then is known; one that is pending then, and is never stored, comes in with the file.
    """
    monkeypatch.setattr(adopter, "LOCKED_KEYS", 4)
    shop = in_memory()
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        monkeypatch.setattr(writer._keeper._housekeeper, "ask", lambda *_: None)
        many(writer, range(20))
        staged = log.stage([table(range(40))])
        look = adopter.Adopter._in_window
        calls: list[int] = []

        def meanwhile(self: adopter.Adopter, keys: Any, *rest: Any) -> None:
            calls.append(len(keys))
            if what == "fail":
                before = self._seen
                assert before.window is not None
                pending = Table()
                pending.fold(before.window.dump())
                for high, low in keys.tolist():
                    pending.find_or_add_one(high, low, self._committer.core.next_position, 0)
                self._seen = Seen(pending, before.adopted)
                look(self, keys, *rest)
                self._seen = before
                return
            look(self, keys, *rest)
            if len(calls) == 1:
                self._committer.lock.release()
                try:
                    many(writer, range(36, 40)) if what == "append" else remember(writer)
                finally:
                    self._committer.lock.acquire()

        monkeypatch.setattr(adopter.Adopter, "_in_window", meanwhile)
        done = writer.ingest([staged])
        assert (done.records, done.duplicates) == ((16, 24) if what == "append" else (20, 20))
        assert max(calls) == 4
        assert len(calls) == (10 if what == "fail" else 20), "looked up again, as the log had moved on"
        assert all(ack.duplicate for ack in many(writer, range(40)))
    assert sorted(map(str, ids(log))) == sorted(f"o-{number}" for number in range(40))
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []
