"""Rebuilding the memory: the same no matter who makes it, in pieces that stay, beside a writer that never rests."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from oncelog import limits
from oncelog.errors import CorruptionError
from oncelog.format.runs.run import Run
from oncelog.limits import KIB
from oncelog.log.jobs import rebuild_memory
from oncelog.log.jobs.rebuild_memory import RunPiece, make_run
from oncelog.log.jobs.workers import JobContext
from oncelog.log.log import Log
from oncelog.log.memory import coverage
from oncelog.log.memory.coverage import Stretch
from oncelog.log.stored import bases
from oncelog.log.upkeep import retention
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.types import Ack, Record
from tests.log.memory.orders import runs
from tests.log.shop import Shop, in_memory

SETTINGS = LogSettings(segment_bytes=64 * KIB, seal="off", snapshot_interval_s=1e6)
IDS = 64


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close a segment after eight ids, and let a piece of work have two segments."""
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS", 8)
    monkeypatch.setattr(limits, "MEMORY_MERGED_RUNS", 4)
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


def write(writer: Writer, numbers: Sequence[int]) -> list[Ack]:
    """Append records, four at a time."""
    records = [Record(b"paid", id=f"o-{number}") for number in numbers]
    return [ack for at in range(0, len(records), 4) for ack in writer.append_many(records[at : at + 4])]


def filled(shop: Shop) -> tuple[Log, list[Ack]]:
    """Return a log whose ids are in no run, and the acks of its records."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = write(writer, range(IDS))
    assert not log._manifest().memory
    return log, acks


def objects(shop: Shop) -> set[str]:
    """Return the keys of all objects of runs."""
    return {key for key in shop.home.list("sealed/") if key.endswith((".ids", ".times"))}


def check(shop: Shop, acks: list[Ack], first: int = 0) -> None:
    """See that every id is known with its ack, and that no object is there that the manifest does not name.

    The log begins at ``first``: ids before it are new.
    """
    log = shop.log()
    assert objects(shop) == {key for run in log._manifest().memory for key in run.keys()}  # noqa: SIM118
    with log.writer() as writer:
        for number, ack in enumerate(acks):
            again = writer.append(b"paid", id=f"o-{number}")
            assert again.duplicate == (number >= first)
            assert number < first or (again.position, again.timestamp) == (ack.position, ack.timestamp)
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


class Failing(Elsewhere):
    """Does two pieces, then fails."""

    def each(self, desk: JobContext, work: Any, parts: Sequence[Any]) -> Iterator[Any]:
        """Yield the results of two parts, then raise."""
        yield from super().each(desk, work, parts[:2])
        message = "a task failed"
        raise RuntimeError(message)


def test_a_rebuilding_that_is_cut_short_goes_on_where_it_stopped() -> None:
    """What was made before a task failed for good is in the manifest: it is not made again."""
    shop = in_memory()
    log, acks = filled(shop)
    with pytest.raises(RuntimeError, match="a task failed"):
        log.rebuild(hands=Failing())
    assert runs(log) == [(0, 16), (16, 32)]
    hands = Elsewhere()
    done = log.rebuild(hands=hands)
    assert (done.ids, done.records, hands.pieces) == (IDS, IDS - 32, 2)
    shop.clock.advance(2 * 86_400)
    log.seal()
    check(shop, acks)


def lose(shop: Shop, run: Run) -> None:
    """Lose an object of a run."""
    shop.home.delete(run.part_key(0))


def test_a_lost_run_stays_until_all_its_ids_are_in_another() -> None:
    """A writer that has the run open needs it: half of its ids must not take its place, and nothing is left behind."""
    shop = in_memory()
    log, acks = filled(shop)
    log.rebuild()
    (lost,) = log._manifest().memory
    lose(shop, lost)
    with pytest.raises(RuntimeError, match="a task failed"):
        log.rebuild(hands=Failing())
    assert log._manifest().memory == (lost,)
    log.rebuild()
    assert runs(log) == [(0, IDS)]
    shop.clock.advance(2 * 86_400)
    log.seal()
    check(shop, acks)


class Beside(Elsewhere):
    """Lets something happen to the log after each piece."""

    def __init__(self, happen: Callable[[], object]) -> None:
        super().__init__()
        self.made = 0
        self._happen = happen

    def each(self, desk: JobContext, work: Any, parts: Sequence[Any]) -> Iterator[Any]:
        """Yield a result for each part, behind the times."""
        for result in super().each(desk, work, parts):
            self.made += result is not None
            self._happen()
            yield result


def truncate(log: Log, before: int) -> None:
    """Truncate, whatever the floor says."""
    kept = bases.Remembering(log.producer_policy(), log._active_producers)
    retention.truncate(log._home, log._manifests, log._clock, before, window_from=None, remembering=kept)


@pytest.mark.parametrize("lost", [False, True])
def test_what_is_truncated_meanwhile_costs_no_other_work(*, lost: bool) -> None:
    """Each piece loses records that were there when it was read: its run is taken all the same, and not made twice."""
    shop = in_memory()
    log, acks = filled(shop)
    if lost:
        log.rebuild()
        lose(shop, log._manifest().memory[0])
    before = iter((3, 7, 17, 30))
    hands = Beside(lambda: truncate(log, next(before)))
    done = log.rebuild(hands=hands)
    assert hands.pieces == 4
    assert done.runs >= 1
    ends = runs(log)
    assert ends[0][0] <= 30
    assert ends[-1][1] == IDS
    assert all(one[1] == other[0] for one, other in pairwise(ends))
    shop.clock.advance(2 * 86_400)
    log.seal()
    check(shop, acks, 30)


def test_a_busy_writer_costs_a_rebuilding_no_more_than_a_piece() -> None:
    """A bounded writer appends, brings files with runs of their own and truncates while its log is made unbounded."""
    shop = in_memory()
    log = shop.log(msgspec.structs.replace(SETTINGS, window=Window(max_keys=4)))
    acks = list[Ack]()
    for first in range(0, IDS, 8):
        with log.writer() as writer:
            acks += write(writer, range(first, first + 8))
    writer = log.writer()
    log.configure(SETTINGS)
    numbers = iter(range(IDS, 10 * IDS, 8))

    def work() -> None:
        first = next(numbers)
        acks.extend(write(writer, range(first, first + 4)))
        brought = log.stage([pa.table({"id": [f"o-{n}" for n in range(first + 4, first + 8)], "value": [b"paid"] * 4})])
        writer.ingest([brought])
        writer._keeper._memory.work()
        truncate(log, first // 8)
        log.seal()

    hands = Beside(work)
    log.rebuild(hands=hands)
    assert hands.made == 4, "nothing was read twice"
    writer.close()
    truncated = log._manifest().first_position
    assert runs(log)[0][0] <= truncated
    log.rebuild()
    ends = runs(log)
    assert all(one[1] == other[0] for one, other in pairwise(ends))
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []
    with shop.log().writer() as writer:
        for ack in acks:
            assert ack.position is not None
            again = writer.append(b"paid", id=f"o-{ack.position}")
            assert again.duplicate == (ack.position >= truncated)


def test_pieces_that_a_writer_covers_meanwhile_are_left_to_it() -> None:
    """A writer publishes a run across the borders of pieces: only what it does not cover is read again."""
    shop = in_memory()
    log, acks = filled(shop)
    held = log._manifest().segments[1:3]  # half of the first piece, half of the second

    def cover() -> None:
        if not log._manifest().memory:
            stretch = Stretch(held[0].first_position, held)
            piece = RunPiece(log._manifest().log_id, stretch.first_position, stretch.next_position, held, 0)
            made = make_run(JobContext.of(log._home, log._manifest(), shop.clock), piece)
            assert made is not None
            log._manifests.update(coverage.built(log._manifests, made, stretch))

    hands = Beside(cover)
    log.rebuild(hands=hands)
    assert hands.pieces == 4 + 2
    ends = runs(log)
    assert (ends[0][0], ends[-1][1]) == (0, IDS)
    assert all(one[1] == other[0] for one, other in pairwise(ends))
    shop.clock.advance(2 * 86_400)
    log.seal()
    check(shop, acks)


def test_a_lost_segment_is_told_beside_a_writer_that_never_rests() -> None:
    """There is always a newer version: what the newest one names, and is gone, is lost all the same."""
    shop = in_memory()
    log, _ = filled(shop)
    log.seal()
    shop.home.delete(log._manifest().segments[-1].file.key)  # type: ignore[union-attr]
    floors = iter(range(1, 100))
    hands = Beside(
        lambda: log._manifests.update(lambda now: msgspec.structs.replace(now, staging_floor_us=next(floors)))
    )
    with pytest.raises(CorruptionError, match="restore it from a copy"):
        log.rebuild(hands=hands)


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_that_a_bounded_window_does_not_need_is_made_again_too(*, gone: bool) -> None:
    """It is of the time before the bounds. What verify finds damaged is whole after the command that verify names."""
    shop = in_memory()
    log, acks = filled(shop)
    log.rebuild()
    log.configure(msgspec.structs.replace(SETTINGS, window=Window(max_keys=4)))
    (run,) = log._manifest().memory
    content = bytearray(shop.home.read(run.part_key(0)).to_pybytes())
    lose(shop, run)
    if not gone:
        content[run.parts[0].front_bytes + 100] ^= 1
        shop.home.create(run.part_key(0), [content])
    assert any(run.key in finding.where for finding in log.verify().findings)
    done = log.rebuild()
    assert (done.runs, done.snapshot != "") == (1, True)
    assert not any(finding.severity != "note" for finding in log.verify().findings)
    assert log.rebuild().runs == 0
    log.configure(SETTINGS)
    shop.clock.advance(2 * 86_400)
    log.seal()
    check(shop, acks)
