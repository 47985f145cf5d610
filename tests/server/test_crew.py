"""Threads for calls that block."""

from __future__ import annotations

import asyncio
import threading

import pytest

from oncelog.errors import Unavailable
from oncelog.server.crew import Crew


def test_no_more_threads_than_allowed_and_no_more_callers_than_can_wait() -> None:
    """Two threads work; one caller waits; the next is refused and can try again later."""

    async def run() -> None:
        crew = Crew("test", 2, waiting_max=1)
        gate, begun = threading.Event(), threading.Semaphore(0)

        def work() -> bool:
            begun.release()
            return gate.wait()

        tasks = [asyncio.create_task(crew.run(work)) for _ in range(2)]
        await asyncio.sleep(0)
        for _ in range(2):
            await asyncio.to_thread(begun.acquire)
        tasks.append(asyncio.create_task(crew.run(work)))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await crew.run(work)
        assert crew.threads == 2
        gate.set()
        assert await asyncio.gather(*tasks) == [True] * 3

    asyncio.run(run())


def test_a_cancelled_caller_takes_back_what_has_not_begun() -> None:
    """Work that no thread has begun is not done for nobody; work that has begun is done to its end."""

    async def run() -> list[str]:
        crew = Crew("test", 1)
        gate, begun, done = threading.Event(), threading.Event(), list[str]()

        def first() -> None:
            begun.set()
            gate.wait()
            done.append("first")

        tasks = [asyncio.create_task(crew.run(first)), asyncio.create_task(crew.run(lambda: done.append("second")))]
        await asyncio.to_thread(begun.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gate.set()
        await crew.run(lambda: None)
        return done

    assert asyncio.run(run()) == ["first"]


def test_errors_reach_the_caller() -> None:
    """Whatever a function raises, its caller gets."""

    async def run() -> None:
        await Crew("test", 1).run(lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())
