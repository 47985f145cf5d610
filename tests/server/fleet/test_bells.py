"""Bells: who follows a log that another server holds is woken by the holder, and polls nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog.connect import Database
from oncelog.server import server as server_module
from oncelog.server.fleet.bells import Bells, Ringing
from oncelog.server.server import Server
from oncelog.server.settings import ServeSettings
from oncelog.server.tails import ENTRIES
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.types import Record
from oncelog.wire import messages

LONG_S = 120.0
HOLDER = ("holder", 1)


class _Requests:
    """The requests of a call, as a service has them."""

    def __init__(self, sent: AsyncIterator[bytes]) -> None:
        self._sent = sent

    async def next(self) -> Any:
        """Return the next one."""
        return messages.WatchRequest.FromString(await anext(self._sent))


class _Fleet:
    """What a follower knows of the others: one holder, in this process, while it lives."""

    def __init__(self, follower: Server, holder: Server) -> None:
        self._holder = holder
        self.lives = True
        self.bells = Bells(follower)
        self.peers = self.members = self
        self.forgotten: list[str] = []
        self.is_cut_off = False

    async def place(self, _: str, *, takes: bool) -> Any:
        """Return the holder."""
        assert not takes
        return SimpleNamespace(card=SimpleNamespace(holder=HOLDER))

    def find(self, holder: tuple[str, int]) -> object:
        """Return the holder while it lives."""
        assert holder == HOLDER
        return True if self.lives else None

    def forget(self, log: str) -> None:
        """Note that a log is not where it was."""
        self.forgotten.append(log)

    async def watch(self, _: object, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Call the holder."""
        async for said in Ringing(self._holder).names(_Requests(requests).next):
            yield said.SerializeToString()


def _run(bucket: Bucket, work: Any) -> None:
    """Run a test with a server that holds the log ``a``, and one that does not."""

    async def run() -> None:
        databases = [Database(ObjectStorage(bucket)) for _ in range(2)]
        holder, follower = (Server(one, ServeSettings(url="memory://")) for one in databases)
        databases[0].log("a", create=True)
        await holder.seats["a"].append([Record(b"first")])
        fleet = _Fleet(follower, holder)
        follower.fleet = fleet  # type: ignore[assignment]
        try:
            async with asyncio.timeout(LONG_S):
                await work(holder, follower, fleet)
        finally:
            fleet.bells.close()
            for server in (holder, follower):
                server.begin_drain()
            await holder.leave_logs()
            for database in databases:
                await asyncio.to_thread(database.close)

    asyncio.run(run())


async def _until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110 (a deadline is around it)
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look by itself in an hour: what comes before was rung for."""
    monkeypatch.setattr(server_module, "LOOK_BUCKET_S", 3600.0)
    monkeypatch.setattr(server_module, "RUNG_S", 3600.0)


def test_a_follower_elsewhere_is_woken_by_the_holder(memory_bucket: Bucket) -> None:
    """Records reach who follows on another server, though nobody there looks; when nobody follows, nobody rings."""

    async def work(holder: Server, follower: Server, fleet: _Fleet) -> None:
        following = follower.tails.follow("a", 0, ENTRIES)
        seen: list[bytes] = []
        for value in (b"second", b"third"):
            piece, entries = await anext(following)
            seen += [entry.value for entry in entries]  # type: ignore[union-attr]
            assert piece is not None
            await holder.seats["a"].append([Record(value)])
        await _until(lambda: fleet.bells.is_heard("a"))
        _, entries = await anext(following)
        seen += [entry.value for entry in entries]  # type: ignore[union-attr]
        while len(seen) < 3:
            seen += [entry.value for entry in (await anext(following))[1]]  # type: ignore[union-attr]
        assert seen == [b"first", b"second", b"third"]
        await following.aclose()
        follower.tails.forget("a")
        await _until(lambda: "a" not in follower._wakers and not holder._wakers)

    _run(memory_bucket, work)


@pytest.mark.parametrize("ends", ["let go", "dead"])
def test_a_log_that_is_held_no_more_is_looked_for_again(memory_bucket: Bucket, ends: str) -> None:
    """The holder lets the log go, or dies: who follows wakes up, and does not trust the bell any more."""

    async def work(holder: Server, follower: Server, fleet: _Fleet) -> None:
        with follower.woken("a") as woken:
            await _until(lambda: fleet.bells.is_heard("a"))
            woken.clear()
            if ends == "dead":
                fleet.lives = False
            else:
                assert await asyncio.to_thread(holder.seats["a"].release)
            await woken.wait()
            assert fleet.forgotten == ["a"]
            assert not any("a" in call.heard for call in fleet.bells._calls.values())
        assert not fleet.bells._asked

    _run(memory_bucket, work)
