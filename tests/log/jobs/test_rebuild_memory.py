"""Rebuilding the memory: the same runs no matter who makes them, in pieces, and nothing left behind when it fails."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from oncelog import limits
from oncelog.errors import CorruptionError
from oncelog.limits import KIB
from oncelog.log.jobs import rebuild_memory
from oncelog.log.jobs.workers import JobContext
from oncelog.log.log import Log
from oncelog.settings import LogSettings
from oncelog.types import Ack, Record
from tests.log.shop import Shop, in_memory

SETTINGS = LogSettings(segment_bytes=64 * KIB, seal="off", snapshot_interval_s=1e6)
IDS = 60


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close a segment after eight ids, and let a piece of work have two segments."""
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS", 8)
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS_MIN", 1 << 30)
    monkeypatch.setattr(rebuild_memory, "RUN_RECORDS", 16)


class Elsewhere:
    """Does work as another process would: what goes there and comes back is pickled, and each piece is done twice."""

    def __init__(self) -> None:
        self.pieces = 0

    def each(self, desk: JobContext, work: Any, parts: Sequence[Any]) -> Iterator[Any]:
        """Yield the second result for each part."""
        for part in parts:
            self.pieces += 1
            there, given = pickle.loads(pickle.dumps((work, part)))
            there(desk, given)
            yield pickle.loads(pickle.dumps(there(desk, given)))


def filled(shop: Shop) -> tuple[Log, list[Ack]]:
    """Return a log whose ids are in no run, and the acks of its records."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        records = [Record(b"paid", id=f"o-{number}") for number in range(IDS)]
        acks = [ack for at in range(0, IDS, 4) for ack in writer.append_many(records[at : at + 4])]
    assert not log._manifest().memory
    return log, acks


def objects(shop: Shop) -> set[str]:
    """Return the keys of all objects of runs."""
    return {key for key in shop.home.list("sealed/") if key.endswith((".ids", ".times"))}


def check(shop: Shop, acks: list[Ack]) -> None:
    """See that every id is known with its ack, and that no object is there that the manifest does not name."""
    log = shop.log()
    assert objects(shop) == {key for run in log._manifest().memory for key in run.keys()}  # noqa: SIM118
    with log.writer() as writer:
        for number, ack in enumerate(acks):
            again = writer.append(b"paid", id=f"o-{number}")
            assert (again.position, again.timestamp, again.duplicate) == (ack.position, ack.timestamp, True)
    assert log.verify().ok


def test_pieces_are_made_elsewhere_and_become_one_run() -> None:
    """Work and results can be sent to other processes; the pieces of neighbouring segments are merged into one run."""
    shop = in_memory()
    log, acks = filled(shop)
    hands, told = Elsewhere(), list[tuple[int, int]]()
    done = log.rebuild(lambda *progress: told.append(progress), hands=hands)
    assert (done.ids, done.runs, done.records) == (IDS, 1, IDS)
    assert hands.pieces > 3
    assert told[-1] == (IDS, IDS)
    assert told == sorted(told)
    (run,) = log._manifest().memory
    assert (run.first_position, run.next_position) == (0, IDS)
    shop.clock.advance(2 * 86_400)
    log.seal()  # sweeps what the work that was done twice has left
    check(shop, acks)


def test_a_piece_whose_segments_are_sealed_meanwhile_is_read_where_they_are() -> None:
    """A segment's blocks go when it is sealed: the piece is made from the file."""
    shop = in_memory()
    log, acks = filled(shop)

    class Sealed(Elsewhere):
        def each(self, desk: JobContext, work: Any, parts: Sequence[Any]) -> Iterator[Any]:
            if not self.pieces:
                log.seal()
            self.pieces += len(parts)
            return (work(desk, part) for part in parts)

    hands = Sealed()
    assert log.rebuild(hands=hands).ids == IDS
    assert hands.pieces > len(log._manifest().segments) // 2, "all were made again"
    check(shop, acks)


def test_a_segment_that_is_lost_is_an_error_and_leaves_nothing() -> None:
    """Nobody waits for ever for a segment that is gone, and no part of the memory is made up without it."""
    shop = in_memory()
    log, _ = filled(shop)
    log.seal()
    shop.home.delete(log._manifest().segments[-1].file.key)  # type: ignore[union-attr]
    with pytest.raises(CorruptionError, match="restore it from a copy"):
        log.rebuild()
    assert not objects(shop)
    assert not log._manifest().memory


def test_work_that_fails_leaves_nothing_behind() -> None:
    """A task that fails for good ends the rebuilding, and what the others made is deleted."""
    shop = in_memory()
    log, acks = filled(shop)

    class Failing:
        def each(self, desk: JobContext, work: Any, parts: Sequence[Any]) -> Iterator[Any]:
            yield from (work(desk, part) for part in parts[:2])
            message = "a task failed"
            raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="a task failed"):
        log.rebuild(hands=Failing())
    assert not objects(shop)
    log.rebuild()
    check(shop, acks)
