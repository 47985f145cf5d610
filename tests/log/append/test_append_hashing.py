"""Values are hashed by the thread that appends, without the writer's lock and in no event: large ones take long."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from oncelog import LogSettings, Window
from oncelog.concurrency.steady import SteadyCondition
from oncelog.connect import Database
from oncelog.dedup import kernels
from oncelog.dedup.identity import Hasher
from oncelog.log.append.committer import Committer
from oncelog.log.log import Log
from oncelog.storage.local.home import LocalStorage


def rows(name: str, count: int) -> pa.Table:
    """Return new rows whose ids begin with a name."""
    ids = [f"{name}-{number}" for number in range(count)]
    return pa.table({"id": ids, "value": [id.encode() for id in ids]})


def new(log: Log) -> None:
    """Append new rows while there is little to remember."""
    with log.writer() as writer:
        writer.append_arrow(rows("order", 1000))


def new_beside_many(log: Log) -> None:
    """Append new rows to a log that remembers many: a table decides by its sieve."""
    with log.writer() as writer:
        for part in range(4):
            writer.append_arrow(rows(f"order-{part}", 20_000))


def some_without_id(log: Log) -> None:
    """Append rows of which some carry an id."""
    table = rows("order", 1000)
    ids = pa.array([None if number % 3 else f"{number}" for number in range(1000)])
    with log.writer() as writer:
        writer.append_arrow(table.set_column(0, "id", ids))


def beside_known(log: Log) -> None:
    """Append rows of which the runs know one."""
    new(log)
    log.rebuild()
    with log.writer() as writer:
        submission = writer.append_arrow(pa.concat_tables([rows("more", 100), rows("order", 1)]))
        assert submission.duplicates.tolist() == [False] * 100 + [True]


def submitted_beside_known(log: Log) -> None:
    """Submit records of which the runs know one."""
    new(log)
    log.rebuild()
    with log.writer() as writer:
        futures = [writer.submit(b"v", id=f"more-{number}") for number in range(100)]
        assert writer.submit(b"order-0", id="order-0").result().duplicate
        assert not any(future.result().duplicate for future in futures)


def holds_the_lock() -> bool:
    """Tell whether this thread has taken a writer's lock and not given it back."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code in {Committer.locked.__code__, Committer._work.__code__}:
            return True
        if frame.f_code is SteadyCondition.unlocked.__code__:
            return False
        frame = frame.f_back
    return False


ALL, BOUNDED = Window(), Window(max_keys=100_000)


@pytest.mark.parametrize(
    ("work", "window"),
    [
        *itertools.product([new, new_beside_many, some_without_id], [ALL, BOUNDED]),
        (beside_known, ALL),
        (submitted_beside_known, ALL),
    ],
)
def test_others_do_not_wait_while_values_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Log], None], window: Window
) -> None:
    """A server answers many clients with one thread: it must not wait for a lock that is held for long."""
    held: list[bool] = []
    hashed = Hasher.fingerprints

    def watched(hasher: Hasher, payload: pa.RecordBatch) -> Any:
        held.append(holds_the_lock())
        return hashed(hasher, payload)

    monkeypatch.setattr(kernels._Choice, "allowed", False)
    monkeypatch.setattr(Hasher, "fingerprints", watched)
    with Database(LocalStorage(tmp_path)) as db:
        work(db.log("orders", LogSettings(window=window), create=True))
    assert held
    assert not any(held)


@pytest.mark.parametrize("window", [ALL, BOUNDED], ids=["all", "bounded"])
def test_ctrl_c_while_values_are_hashed_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: Window
) -> None:
    """Nothing is decided yet, or all that was decided is noted."""
    hashed, raised = Hasher.fingerprints, [KeyboardInterrupt()]

    def interrupted(hasher: Hasher, payload: pa.RecordBatch) -> Any:
        if raised:
            raise raised.pop()
        return hashed(hasher, payload)

    monkeypatch.setattr(kernels._Choice, "allowed", False)
    monkeypatch.setattr(Hasher, "fingerprints", interrupted)
    with Database(LocalStorage(tmp_path)) as db:
        log = db.log("orders", LogSettings(window=window), create=True)
        with log.writer() as writer:
            with pytest.raises(KeyboardInterrupt):
                writer.append_arrow(rows("order", 1000))
            writer.append_arrow(rows("order", 1000))
            assert writer.append_arrow(rows("order", 1000)).duplicates.all()
        assert log.info().last_position == 999
