"""Bodies that come slowly, or not at all: on a clock that the test moves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog import limits
from oncelog.server.budget import Budget
from oncelog.server.http.bodies import Body, Gone
from oncelog.server.http.problem import HttpRefusal
from oncelog.testing.clock import SimulatedClock


def _body(parts: list[bytes | float | None], budget: Budget, declared: str | None = None) -> Body:
    """Return a body of parts; a number is seconds that pass first, ``None`` a client that leaves."""
    clock = SimulatedClock()
    left = list(parts)

    async def receive() -> dict[str, Any]:
        while left and isinstance(left[0], float):
            clock.advance(left.pop(0))  # type: ignore[arg-type]
        part = left.pop(0)
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    return Body(receive, declared, budget, clock)


def _whole(body: Body, bytes_max: int = 1000) -> bytes:
    return asyncio.run(body.whole(bytes_max))


def test_a_body_is_whole_or_nothing() -> None:
    """A client that leaves half-way has sent nothing; what was held is given back."""
    budget = Budget(10_000, "test")
    body = _body([b"a", b"b"], budget)
    assert _whole(body) == b"ab"
    assert budget.used_bytes == 2
    body.close()
    cut = _body([b"a", None], budget)
    with pytest.raises(Gone):
        _whole(cut)
    cut.close()
    assert budget.used_bytes == 0


@pytest.mark.parametrize(("parts", "declared"), [([b"x" * 600, b"x" * 600], None), ([b""], "1001")])
def test_a_body_that_is_too_large_is_refused(parts: list[bytes | float | None], declared: str | None) -> None:
    """By what it says, or by what comes."""
    with pytest.raises(HttpRefusal) as refused:
        _whole(_body(parts, Budget(10_000, "test"), declared))
    assert refused.value.status == 413


def test_a_body_that_drips_is_refused() -> None:
    """One byte now and then holds memory and a connection for ever; a large body that flows may take its time."""
    slow: list[bytes | float | None] = [b"x", limits.HTTP_BODY_S_MAX + 1.0, b"x", b"x"]
    with pytest.raises(HttpRefusal) as refused:
        _whole(_body(slow, Budget(10_000, "test")))
    assert refused.value.status == 408
    part = b"x" * 100_000
    flowing: list[bytes | float | None] = [part, 10.0, part, 10.0, part, 10.0, part, 10.0, part]
    assert len(_whole(_body(flowing, Budget(10**9, "test")), 10**6)) == 500_000


def test_the_bodies_of_all_requests_share_a_budget() -> None:
    """One more than there is room for waits, and is refused; it does not fill the memory."""

    async def run() -> str:
        budget = Budget(1000, "HTTP")
        first = _body([b"x" * 900], budget)
        await first.whole()
        second = _body([b"x" * 900], budget)
        waiting = asyncio.ensure_future(second.whole())
        await asyncio.sleep(0)
        assert not waiting.done()
        first.close()
        return (await waiting).decode()

    assert asyncio.run(run()) == "x" * 900
