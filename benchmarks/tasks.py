"""Tasks of one event loop that append, beside as many threads, and beside ``asyncio.wrap_future``."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import oncelog
from benchmarks.embedded import settings
from benchmarks.measure import Measurement, Plan, timed
from benchmarks.records import Source

WORKLOAD = "256 that append and wait for each answer, embedded"
LAG = "the event loop of 256 tasks that append: its longest block"
TASKS, THREADS, WRAPPED = "Oncelog, tasks", "Oncelog, threads", "Oncelog, tasks by wrap_future"
FULL_WRITER = "Oncelog, tasks, with a writer that is full"
COUNT = 256
_PAUSE_S = 0.001

Rows = Sequence[Sequence[tuple[str, bytes]]]
"""What each task, or each thread, appends."""


def tasks(folder: Path, plan: Plan) -> list[Measurement]:
    """Append by threads and by tasks, in turn; and see how long the loop is blocked meanwhile."""
    folder.mkdir()
    plan = plan.finer()
    appends = 2 if plan.quick else 20
    source = Source(100)
    ways: dict[str, Callable[[oncelog.Writer, Rows], None]] = {
        TASKS: lambda writer, rows: asyncio.run(_by_tasks(writer, rows, _awaited)),
        THREADS: _by_threads,
        WRAPPED: lambda writer, rows: asyncio.run(_by_tasks(writer, rows, asyncio.wrap_future)),
    }
    found = [Measurement(workload=WORKLOAD, contender=way, unit="records/s", rounds=[]) for way in ways]
    lags = [
        Measurement(workload=LAG, contender=way, unit="s", rounds=[], larger_is_better=False)
        for way in (TASKS, FULL_WRITER)
    ]
    with oncelog.connect(folder) as db, db.log("bench", settings(), create=True).writer() as writer:
        for number in range(plan.rounds + 1):
            for row, way in zip(found, ways.values(), strict=True):
                rows = [source.batch(appends).rows() for _ in range(COUNT)]
                cpu_s = time.process_time()
                seconds = timed(lambda way=way, rows=rows: way(writer, rows))  # type: ignore[misc]
                if number:
                    row.rounds.append(COUNT * appends / seconds)
                    spent_us = 1e6 * (time.process_time() - cpu_s) / (COUNT * appends)
                    row.more["cpu_us"] = row.more.get("cpu_us", 0.0) + spent_us / plan.rounds
            rows = [source.batch(appends).rows() for _ in range(COUNT)]
            lags[0].rounds += [asyncio.run(_watched(writer, rows))] if number else []
    lags[1].rounds += _full(folder, plan, source)
    return [*found, *lags]


def _full(folder: Path, plan: Plan, source: Source) -> list[float]:
    """Return the longest blocks of a loop whose writer has no room: the records queue at its door."""
    small = oncelog.LogSettings(pending_records=100)
    rounds = []
    with oncelog.connect(folder) as db, db.log("full", small, create=True).writer() as writer:
        for _ in range(plan.rounds):
            rows = [source.batch(1).rows() for _ in range(150)]
            rounds.append(asyncio.run(_watched(writer, rows)))
    return rounds


async def _awaited(pending: oncelog.Pending[Any]) -> Any:
    return await pending


async def _by_tasks(
    writer: oncelog.Writer, parts: Rows, wait: Callable[[Any], Awaitable[Any]] | Callable[[Future[Any]], Any]
) -> None:
    async def append(rows: Sequence[tuple[str, bytes]]) -> None:
        for id, value in rows:
            await wait(writer.submit(value, id=id))

    await asyncio.gather(*(append(rows) for rows in parts))


def _by_threads(writer: oncelog.Writer, parts: Rows) -> None:
    def append(rows: Sequence[tuple[str, bytes]]) -> None:
        for id, value in rows:
            writer.append(value, id=id)

    threads = [threading.Thread(target=append, args=(rows,)) for rows in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def _watched(writer: oncelog.Writer, parts: Rows) -> float:
    """Append by tasks; return by how much the loop was late at most, for a task that sleeps a millisecond."""
    longest_s = 0.0
    working = asyncio.create_task(_by_tasks(writer, parts, _awaited))
    while not working.done():
        started = time.perf_counter()
        await asyncio.sleep(_PAUSE_S)
        longest_s = max(longest_s, time.perf_counter() - started - _PAUSE_S)
    await working
    return longest_s
