"""Bytes that were received and are not stored yet."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.errors import Unavailable
from oncelog.server.budget import Budget


def test_who_waits_is_served_in_order_and_a_small_one_does_not_overtake() -> None:
    """A large write that waits is not starved by small ones that would fit."""

    async def run() -> list[str]:
        budget, served = Budget(100, "test"), list[str]()

        async def take(name: str, size_bytes: int) -> None:
            await budget.take(size_bytes)
            served.append(name)

        await budget.take(80)
        waiting = [asyncio.create_task(take("large", 90)), asyncio.create_task(take("small", 10))]
        await asyncio.sleep(0)
        assert not budget.try_take(1)
        budget.give(80)
        await asyncio.gather(*waiting)
        assert budget.used_bytes == 100
        return served

    assert asyncio.run(run()) == ["large", "small"]


def test_without_room_in_time_a_write_is_refused_and_takes_nothing() -> None:
    """The refusal says that nothing was written; those behind it go on."""

    async def run() -> None:
        budget = Budget(100, "test")
        await budget.take(100)
        behind = asyncio.create_task(budget.take(50))
        with pytest.raises(Unavailable) as refused:
            await budget.take(60, timeout_s=0.01)
        assert refused.value.outcome == "not written"
        budget.give(100)
        await behind
        assert budget.used_bytes == 50

    asyncio.run(run())


def test_a_write_larger_than_the_budget_goes_alone() -> None:
    """A batch may have 64 MiB, whatever the budget is: it waits until it is alone."""

    async def run() -> None:
        budget = Budget(100, "test")
        await budget.take(1)
        large = asyncio.create_task(budget.take(1000))
        await asyncio.sleep(0)
        assert not large.done()
        budget.give(1)
        await large
        assert not budget.try_take(1)

    asyncio.run(run())


def test_a_waiter_that_leaves_lets_the_next_one_in() -> None:
    """A cancelled caller that stood first does not block those behind it."""

    async def run() -> None:
        budget = Budget(100, "test")
        await budget.take(90)
        first, second = (asyncio.create_task(budget.take(size)) for size in (50, 10))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert budget.used_bytes == 100

    asyncio.run(run())
