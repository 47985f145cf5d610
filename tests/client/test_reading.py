"""Many tails in one process."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import oncelog
from oncelog import later
from oncelog.connect import Database
from oncelog.log.log import Log
from oncelog.log.read.reader import Tail

TAILS = 1000
LONG_S = 120.0


@pytest.mark.soak
def test_a_thousand_tails_in_one_process(remote: Database) -> None:
    """Each has every record once, in order; one that is appended when all are idle reaches every one of them."""
    log = remote.log("orders", create=True)
    with log.writer() as writer:
        writer.append(b"first")
        tails = [log.tail("earliest") for _ in range(TAILS)]
        for value in (b"first", b"second", b"third"):
            found = [tail.poll(LONG_S) for tail in tails]
            assert [None if entry is None else entry.value for entry in found] == [value] * TAILS
            writer.append({b"first": b"second", b"second": b"third"}.get(value, b"behind"))
        for tail in tails:
            tail.close()


async def _followed(log: Log, count: int) -> tuple[list[list[bytes]], int]:
    """Follow a log by so many tasks; return what each saw, and how many threads looked for them."""
    tails = [await later(log.tail, "earliest") for _ in range(count)]
    seen: list[list[bytes]] = [[] for _ in tails]

    async def follow(tail: Tail, found: list[bytes]) -> None:
        async for entry in tail:
            found.append(entry.value)
            if entry.value == b"last":
                return

    following = [asyncio.create_task(follow(tail, found)) for tail, found in zip(tails, seen, strict=True)]
    async with await later(log.writer) as writer:
        for number in range(5):
            await writer.submit(b"%d" % number)
        threads = [thread for thread in threading.enumerate() if thread.name == "oncelog-feeder"]
        await writer.submit(b"last")
    async with asyncio.timeout(LONG_S):
        await asyncio.gather(*following)
    for tail in tails:
        await later(tail.close)
    return seen, len(threads)


@pytest.mark.parametrize("count", [40, pytest.param(TAILS, marks=pytest.mark.soak)])
@pytest.mark.parametrize("where", ["embedded", "remote"])
def test_many_tasks_follow_a_log_in_one_process(where: str, count: int, remote: Database, tmp_path: Path) -> None:
    """Each task sees every record once, in order; one thread looks for all of them."""
    with oncelog.connect(tmp_path) as embedded:
        log = (embedded if where == "embedded" else remote).log("orders", create=True)
        before = sum(thread.name == "oncelog-feeder" for thread in threading.enumerate())
        seen, threads = asyncio.run(_followed(log, count))
    assert seen == [[b"0", b"1", b"2", b"3", b"4", b"last"]] * count
    assert threads <= before + 1


def test_a_reader_does_not_go_on_in_another_log_of_the_name(remote: Database) -> None:
    """A log is deleted and made again while a reader of it has begun, or was opened: it does not mix their records."""
    log = remote.log("orders", create=True)
    with log.writer() as writer:
        writer.append_many([oncelog.Record(b"old")] * 3)
    opened, columns = log.read(), log.read_arrow()
    begun = iter(log.read())
    assert next(begun).value == b"old"
    remote.delete("orders")
    with remote.log("orders", create=True).writer() as writer:
        writer.append_many([oncelog.Record(b"new")] * 3)
    for found in (opened, columns):
        with pytest.raises(oncelog.NotFound, match="was deleted"):
            list(found)
    assert b"new" not in [entry.value for entry in begun]
