"""Every order of a look-up and a run that is built, published and merged: a retry meets its original in all of them.

The keeper of runs is a thread that stops at every step. A retry looks ids up when the keeper is at one step, and
decides when the keeper is at another. All pairs of steps are tried: there is no chance in it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from oncelog.errors import NotFound, WriterFenced
from oncelog.limits import KIB
from oncelog.log.log import Log
from oncelog.log.memory.building import store_run
from oncelog.log.memory.merging import merge_runs
from oncelog.log.memory.recall import Recall
from oncelog.log.stored.manifests import Manifests
from oncelog.log.upkeep import memory_keeper, sealing
from oncelog.log.upkeep.memory_keeper import MemoryKeeper
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings
from oncelog.types import Record
from tests.log.shop import in_memory

SETTINGS = LogSettings(segment_bytes=64 * KIB, seal="off", snapshot_interval_s=1e6)
IDS = 48
MOVING = 28
"""An id that is in the table when the keeper begins, and in a run when it ends."""

PATIENCE_S = 60
pytestmark = pytest.mark.usefixtures("tiny")


class Keeper:
    """The keeper's work in a thread that stops before every step, until it is told to make it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.steps: list[str] = []
        self.error: BaseException | None = None
        self._work = work
        self._told = threading.Semaphore(0)
        self._at_rest = threading.Semaphore(0)
        self._done = False
        self._thread = threading.Thread(target=self._run, name="keeper")

    def _run(self) -> None:
        try:
            self.stop("begin")
            self._work()
        except BaseException as error:  # noqa: BLE001  (it is raised where the keeper is ended)
            self.error = error
        finally:
            self._done = True
            self._at_rest.release()

    def stop(self, step: str) -> None:
        """Wait here until this step is to be made. Other threads go on."""
        if threading.current_thread() is self._thread:
            self.steps.append(step)
            self._at_rest.release()
            assert self._told.acquire(timeout=PATIENCE_S)

    def begin(self) -> None:
        """Start the thread, which stops before its first step."""
        self._thread.start()
        assert self._at_rest.acquire(timeout=PATIENCE_S)

    def make(self, steps: int) -> None:
        """Let it make so many steps, as far as there are any."""
        for _ in range(steps):
            if self._done:
                return
            self._told.release()
            assert self._at_rest.acquire(timeout=PATIENCE_S)

    def end(self) -> None:
        """Let it make all that is left."""
        while not self._done:
            self.make(1)
        self._thread.join()
        if self.error is not None:
            raise self.error


def records(numbers: Iterable[int]) -> list[Record]:
    """Return the records of numbers."""
    return [Record(b"order %d" % number, id=f"o-{number}") for number in numbers]


def one(log: Log, writer: Writer, numbers: range) -> list[int | None]:
    """Append records one by one, first one that is about to leave the table."""
    chosen = records(numbers)
    order = [*range(MOVING, len(chosen)), *range(MOVING)]
    found = {number: writer.append(chosen[number].value, id=chosen[number].id).position for number in order}
    return [found[number] for number in numbers]


def many(log: Log, writer: Writer, numbers: range) -> list[int | None]:
    """Append records together."""
    return [ack.position for ack in writer.append_many(records(numbers))]


def submit(log: Log, writer: Writer, numbers: range) -> list[int | None]:
    """Submit records."""
    futures = [writer.submit(each.value, id=each.id) for each in records(numbers)]
    return [future.result(PATIENCE_S).position for future in futures]


def ingest(log: Log, writer: Writer, numbers: range) -> list[int | None]:
    """Bring records in as a file; what is known is not brought in."""
    chosen = records(numbers)
    values = pa.array([each.value for each in chosen], pa.binary())
    done = writer.ingest([log.stage([pa.table({"id": [each.id for each in chosen], "value": values})])])
    assert (done.records, done.duplicates) == (0, len(numbers))
    return list(numbers)


@contextlib.contextmanager
def stopping(keeper: Keeper, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the keeper stop before it stores, names, shows and deletes."""

    def before(step: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def stopped(*given: Any, **more: Any) -> Any:
            keeper.stop(step)
            return work(*given, **more)

        return stopped

    with patch.context() as inside:
        inside.setattr(memory_keeper, "store_run", before("store", store_run))
        inside.setattr(memory_keeper, "merge_runs", before("merge", merge_runs))
        inside.setattr(Manifests, "update", before("name", Manifests.update))
        inside.setattr(MemoryKeeper, "show", before("show", MemoryKeeper.show))
        inside.setattr(sealing, "collect", before("delete", sealing.collect))
        yield


def prepared(log: Log, patch: pytest.MonkeyPatch) -> tuple[Writer, Keeper]:
    """Return a writer with three runs and enough in its table for a fourth, and its keeper before it makes that."""
    writer = log.writer()
    patch.setattr(writer._keeper._housekeeper, "ask", lambda *_: None)
    memory = writer._keeper._memory
    assert memory._table is not None
    for first in range(0, IDS, 8):
        writer.append_many(records(range(first, first + 8)))
        if first < IDS - 16:
            memory._build()
    assert len(log._manifest().memory) == 3
    return writer, Keeper(memory.work)


def tried(way: Callable[[Log, Writer, range], list[int | None]], at: int, then: int, patch: pytest.MonkeyPatch) -> int:
    """Retry all ids: looked up when the keeper made ``at`` steps, decided when it made ``then``. Return its steps."""
    log = in_memory().log(SETTINGS)
    writer, keeper = prepared(log, patch)
    with stopping(keeper, patch), patch.context() as inside:
        keeper.begin()
        keeper.make(at)
        left = [then - at]
        for name in ("look", "look_one"):
            look = getattr(Recall, name)

            def then_on(self: Recall, *keys: Any, look: Callable[..., Any] = look) -> Any:
                found = look(self, *keys)
                if left and threading.current_thread() is not keeper._thread:
                    keeper.make(left.pop())
                return found

            inside.setattr(Recall, name, then_on)
        positions = way(log, writer, range(IDS))
        assert positions == list(range(IDS)), f"{way.__name__}: looked up at {at}, decided at {then}: {keeper.steps}"
        assert not left
        keeper.end()
        assert way(log, writer, range(IDS)) == list(range(IDS))
    writer.close()
    assert [entry.id for entry in log.read()] == [f"o-{number}" for number in range(IDS)]
    return len(keeper.steps)


@pytest.mark.parametrize("way", [one, many, submit, ingest])
def test_a_retry_meets_its_original_in_every_order(
    way: Callable[[Log, Writer, range], list[int | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table, run, merged run, and the moments between: none of them lets an id be stored twice."""
    steps = tried(way, 0, 0, monkeypatch)
    assert steps >= 8, "the keeper builds, names, shows, merges, names, shows and deletes"
    for at in range(steps + 1):
        for then in range(at, steps + 1):
            tried(way, at, then, monkeypatch)


def test_a_writer_that_is_taken_over_at_any_step_and_goes_on_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old writer's keeper is at every one of its steps when another takes the log, and makes the rest afterwards.

    What it publishes late is true, or refused: nothing that the new writer knows is lost, and nothing is stored twice.
    """
    step, steps = 0, 1
    while step <= steps:
        shop = in_memory()
        log = shop.log(SETTINGS)
        old, keeper = prepared(log, monkeypatch)
        with stopping(keeper, monkeypatch):
            keeper.begin()
            keeper.make(step)
            late = shop.log()
            new = late.writer(takeover="force")
            more = range(IDS + 8)
            assert many(late, new, more) == list(more), keeper.steps
            with contextlib.suppress(WriterFenced, NotFound):  # the new writer may have merged its run away
                keeper.end()
            assert many(late, new, more) == list(more), keeper.steps
            new._keeper._housekeeper.stop()
            new._keeper._memory.work()
            assert many(late, new, more) == list(more), keeper.steps
        new.close()
        with contextlib.suppress(WriterFenced):
            old.close()
        with shop.log().writer() as last:
            assert many(log, last, more) == list(more)
        assert [entry.id for entry in shop.log().read()] == [f"o-{number}" for number in more]
        assert shop.log().verify().ok
        step, steps = step + 1, max(steps, len(keeper.steps))
    assert steps >= 8
