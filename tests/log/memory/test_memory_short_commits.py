"""Writers that are closed after each batch: a long merge is never done in time, and the log goes on all the same."""

from __future__ import annotations

import os
from typing import Any

import pytest

from oncelog import limits
from oncelog.clock import SYSTEM
from oncelog.errors import Unavailable
from oncelog.format.runs.run import Run
from oncelog.log.log import Log
from oncelog.log.memory import merging
from oncelog.log.memory.merging import merge_runs
from oncelog.log.upkeep import memory_keeper
from oncelog.types import Ack, Record
from tests.log.memory.orders import SETTINGS
from tests.log.shop import in_memory
from tests.log.watched import LONG_S

ROUNDS = 10_000 if os.environ.get("ONCELOG_SOAK") == "1" else 500
ROWS = 10
LONG_IDS = 100
"""A merge of more ids takes longer than an append waits."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs of two commits, merge a few ids at a time, and let few runs be there."""
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS", 8 * ROWS)
    monkeypatch.setattr(limits, "MEMORY_MERGED_RUNS", 4)
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS_MIN", 2 * ROWS)
    monkeypatch.setattr(limits, "MEMORY_TABLE_IDS_MAX", 24 * ROWS)
    monkeypatch.setattr(merging, "SLICE_IDS", ROWS)


def records(number: int) -> list[Record]:
    """Return the records of one commit."""
    return [Record(b"v", id=f"{number}, {row}") for row in range(ROWS)]


def committed(log: Log, number: int, timeout_s: float = LONG_S) -> list[Ack]:
    """Open a writer, append a few rows, close it."""
    with log.writer() as writer:
        assert len(writer._absorber._recall.view.runs.runs) <= limits.MEMORY_RUNS_MAX
        return writer.append_many(records(number), timeout_s=timeout_s)


def check_all(log: Log, rounds: int) -> None:
    """Send everything again: each record is there, once."""
    with log.writer() as writer:
        again = [ack for number in range(rounds) for ack in writer.append_many(records(number), timeout_s=LONG_S)]
    assert [ack.position for ack in again] == list(range(rounds * ROWS))
    assert all(ack.duplicate for ack in again)


def test_short_commits_never_leave_too_many_runs() -> None:
    """The number of runs stays below its bound, and no append fails for it."""
    log = in_memory().log(SETTINGS)
    for number in range(ROUNDS):
        assert not any(ack.duplicate for ack in committed(log, number))
    check_all(log, ROUNDS)


def test_short_commits_go_on_where_a_long_merge_is_never_done_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writer began the same long merge, and none ended it: once there were too many runs, nobody could append."""
    log, rounds = in_memory().log(SETTINGS), 150
    monkeypatch.setattr(limits, "MEMORY_RUNS_MAX", 8)

    def slow(objects: Any, log_id: str, key: str, runs: list[Run], first: int, *given: Any) -> Run:
        until_us = SYSTEM.elapsed_us() + 200_000 * (sum(run.ids for run in runs) > LONG_IDS)
        while SYSTEM.elapsed_us() < until_us:
            given[0]()
        return merge_runs(objects, log_id, key, runs, first, *given)

    monkeypatch.setattr(memory_keeper, "merge_runs", slow)
    for number in range(rounds):
        for attempt in range(4):
            try:
                committed(log, number, timeout_s=0.02)
                break
            except Unavailable:
                assert attempt < 3, "closing has waited for the merge, and the next writer can append"
    check_all(log, rounds)
