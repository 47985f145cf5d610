"""Answers that can be awaited: any loop, any thread, any number of times, one wake-up for many."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from oncelog.concurrency import pending
from oncelog.concurrency.pending import Pending, begun, later


def ended(work: Callable[[], object]) -> threading.Thread:
    """Run something in a thread of its own."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_an_answer_can_be_awaited_again_and_elsewhere() -> None:
    """A future is an answer, not a queue: every task of every loop that awaits it gets it, before it came and after."""
    answer: Pending[int] = begun()

    async def wait() -> int:
        return await answer

    found: list[int] = []
    threads = [ended(lambda: found.append(asyncio.run(wait()))) for _ in range(3)]

    async def main() -> list[int]:
        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        ended(lambda: answer.set_result(42)).join()
        return [*await asyncio.gather(*tasks), await answer, await answer]

    assert asyncio.run(main()) == [42] * 5
    for thread in threads:
        thread.join()
    assert found == [42] * 3


def test_many_answers_wake_a_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up is a write to a pipe and a turn of the loop: one for each answer is what ``wrap_future`` costs."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        wakes = 0
        real = loop.call_soon_threadsafe

        def counted(*given: Any, **more: Any) -> asyncio.Handle:
            nonlocal wakes
            wakes += 1
            return real(*given, **more)

        answers: list[Pending[int]] = [begun() for _ in range(256)]
        tasks = [asyncio.create_task(_result(answer)) for answer in answers]
        await asyncio.sleep(0)
        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        # The loop stands still meanwhile: all answers come between two of its turns.

        def answer_all() -> None:
            for number, answer in enumerate(answers):
                answer.set_result(number)

        ended(answer_all).join()
        assert await asyncio.gather(*tasks) == list(range(256))
        return wakes

    assert asyncio.run(main()) == 1


async def _result(answer: Pending[int]) -> int:
    return await answer


def test_a_cancelled_task_leaves_the_call_alone() -> None:
    """Cancelling ends the wait; the answer comes all the same, and others who wait for it get it."""
    answer: Pending[int] = begun()

    async def main() -> int:
        one, other = asyncio.create_task(_result(answer)), asyncio.create_task(_result(answer))
        await asyncio.sleep(0)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        assert not answer.done()
        assert not answer.cancel()
        answer.set_result(7)
        return await other

    assert asyncio.run(main()) == 7


def test_a_closed_loop_is_nobody_waiting() -> None:
    """A loop may end while its tasks wait: the thread that has the answer must not fail for that."""
    answer: Pending[int] = begun()

    async def main() -> None:
        waiting = asyncio.create_task(_result(answer))
        await asyncio.sleep(0)
        waiting.cancel()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    answer.set_result(1)
    assert asyncio.run(_result(answer)) == 1


def test_a_loop_is_not_kept_alive() -> None:
    """Programs that make a loop a request must not keep all of them for ever."""
    loop = asyncio.new_event_loop()
    answer: Pending[int] = begun()
    ended(lambda: answer.set_result(1)).join()
    other: Pending[int] = begun()
    loop.call_soon(lambda: other.set_result(2))
    assert loop.run_until_complete(_result(other)) == 2
    loop.close()
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None


def test_later_runs_elsewhere_with_its_context() -> None:
    """What waits is called in a pool, with the caller's context variables; its error is the answer's."""
    import contextvars

    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    async def main() -> tuple[str, int]:
        name.set("mine")
        return await later(lambda: (name.get(), threading.get_ident()))

    found, thread = asyncio.run(main())
    assert found == "mine"
    assert thread != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(_result(later(lambda: 1 // 0)))


def test_later_works_in_a_forked_process() -> None:
    """A pool's threads do not survive a fork: a child that waited for them would wait for ever."""
    assert later(lambda: 1).result() == 1
    child = os.fork()
    if child == 0:
        os._exit(later(lambda: 7).result(timeout=60))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_loop_is_known_where_it_runs_alone() -> None:
    """``submit`` must wait in a thread and must not on a loop."""
    seen: list[bool] = []

    async def main() -> None:
        seen.append(pending.on_loop())
        await later(lambda: seen.append(pending.on_loop()))

    asyncio.run(main())
    assert (seen, pending.on_loop()) == ([True, False], False)
