"""``async for`` over handles: one thread for many that wait, nothing lost to a cancelled task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog import InvalidArgument, NotFound, Record, later
from oncelog.connect import Database


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Return a database on a disk."""
    with oncelog.connect(tmp_path) as opened:
        yield opened


def feeders() -> set[threading.Thread]:
    """Return the threads that look for more."""
    return {thread for thread in threading.enumerate() if thread.name == "oncelog-feeder"}


async def taken(items: AsyncIterator[Any], count: int) -> list[Any]:
    """Return the next items."""
    return [await anext(items) for _ in range(count)]


def test_a_task_reads_to_the_end(db: Database) -> None:
    """``async for`` over a reader yields what ``for`` does, and ends."""
    log = db.log("orders", create=True)
    with log.writer() as writer:
        writer.append_many([Record(b"%d" % number) for number in range(1000)])

    async def main() -> list[bytes]:
        async with await later(log.read, 3) as reader:
            return [entry.value async for entry in reader]

    assert asyncio.run(main()) == [b"%d" % number for number in range(3, 1000)]


def test_many_tails_wait_in_one_thread(db: Database) -> None:
    """100 tasks that tail a log are one thread, and one append reaches all of them."""
    log = db.log("orders", create=True)

    before = feeders()

    async def main(writer: Any) -> list[bytes]:
        tails = [await later(log.tail, 0) for _ in range(100)]
        waiting = [asyncio.create_task(taken(aiter(tail), 1)) for tail in tails]
        await asyncio.sleep(0)
        assert len(feeders() - before) == 1
        await writer.submit(b"paid")
        found = [(await task)[0].value for task in waiting]
        for tail in tails:
            await later(tail.close)
        return found

    with log.writer() as writer:
        assert asyncio.run(main(writer)) == [b"paid"] * 100


def test_closing_a_tail_ends_its_task(db: Database) -> None:
    """A task in ``async for`` ends when somebody closes the handle, as a thread does."""
    log = db.log("orders", create=True)

    async def main() -> list[bytes]:
        tail = await later(log.tail, 0)

        async def follow() -> list[bytes]:
            return [entry.value async for entry in tail]

        task = asyncio.create_task(follow())
        await asyncio.sleep(0)
        await later(tail.close)
        return await task

    assert asyncio.run(main()) == []


def test_what_came_for_a_cancelled_task_is_there_for_the_next(db: Database) -> None:
    """``wait_for(anext(…))`` that runs out of time must not swallow the entry that came meanwhile."""
    log = db.log("orders", create=True)

    async def main(writer: Any) -> list[bytes]:
        async with await later(log.tail, 0) as tail:
            entries = aiter(tail)
            for number in range(20):
                task = asyncio.create_task(taken(entries, 1))
                await asyncio.sleep(0)
                pending = writer.submit(b"%d" % number)
                if number % 2:
                    await pending
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if not task.cancelled():
                    return []  # it was quicker: nothing to see in this round
            return [entry.value for entry in await taken(entries, 20)]

    with log.writer() as writer:
        found = asyncio.run(main(writer))
    assert found in ([], [b"%d" % number for number in range(20)])


def test_a_loop_that_was_left_goes_on_where_it_was(db: Database) -> None:
    """A task that leaves ``async for`` has taken many entries ahead. The next loop has them, and so has a thread."""
    log = db.log("orders", create=True)
    with log.writer() as writer:
        writer.append_many([Record(b"%d" % number) for number in range(600)])

    async def main() -> list[bytes]:
        found: list[bytes] = []
        async with await later(log.tail, 0) as tail:
            while len(found) < 400:
                async for entry in tail:
                    found.append(entry.value)
                    if len(found) % 7 == 0:
                        break
            while (polled := await later(tail.poll)) is not None:
                found.append(polled.value)
        return found

    assert asyncio.run(main()) == [b"%d" % number for number in range(600)]


def test_a_cancelled_task_leaves_the_handle_to_the_next(db: Database) -> None:
    """The next loop may begin at once; the iterator of the cancelled task takes nothing from it."""
    log = db.log("orders", create=True)

    async def main(writer: Any) -> list[bytes]:
        async with await later(log.tail, 0) as tail:
            for _ in range(50):
                entries = aiter(tail)
                task = asyncio.create_task(taken(entries, 1))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            others = aiter(tail)
            with pytest.raises(InvalidArgument, match="another iteration"):
                await anext(entries)
            await writer.submit(b"paid")
            return [entry.value for entry in await taken(others, 1)]

    with log.writer() as writer:
        assert asyncio.run(main(writer)) == [b"paid"]


def test_one_iteration_at_a_time(db: Database) -> None:
    """A thread and a task that share a handle would each miss what the other takes."""
    log = db.log("orders", create=True)

    async def main() -> None:
        tail = await later(log.tail, 0)
        entries = aiter(tail)
        with pytest.raises(InvalidArgument):
            tail.poll()
        with pytest.raises(InvalidArgument):
            aiter(tail)
        del entries
        assert tail.poll() is None
        thread = threading.Thread(target=lambda: list(tail))
        thread.start()
        while not tail._iterated:  # noqa: ASYNC110 (another thread sets it)
            await asyncio.sleep(0)
        with pytest.raises(InvalidArgument):
            aiter(tail)
        tail.close()
        thread.join()

    asyncio.run(main())


def test_an_error_reaches_its_task_alone(db: Database) -> None:
    """A handle that fails ends its own task; others of the same log go on."""
    log = db.log("orders", create=True)

    async def main(writer: Any) -> bytes:
        good, bad = await later(log.tail, 0), await later(log.tail, 0)
        bad._look = lambda: (_ for _ in ()).throw(NotFound("gone"))  # type: ignore[method-assign]
        with pytest.raises(NotFound):
            await asyncio.gather(anext(aiter(bad)))
        waiting = asyncio.create_task(taken(aiter(good), 1))
        await writer.submit(b"paid")
        (entry,) = await waiting
        good.close()
        bad.close()
        return bytes(entry.value)

    with log.writer() as writer:
        assert asyncio.run(main(writer)) == b"paid"


def test_a_task_follows_streams(db: Database) -> None:
    """A subscription catches up and goes live in a task; a filter does not keep it from what it wants."""
    streams = db.streams("orders", create=True)

    async def main() -> list[Any]:
        first = await streams.submit("order-1", Record(b"a", id="1"), expected="no stream")
        assert [ack.version for ack in first] == [0]
        async with await later(streams.subscribe, "order-1") as events:
            items = aiter(events)
            found = await taken(items, 2)
            waiting = asyncio.create_task(taken(items, 1))
            await streams.submit("order-2", Record(b"other"))
            await streams.submit("order-1", Record(b"b"), expected=0)
            return [*found, *await waiting]

    event, caught_up, live = asyncio.run(main())
    assert (event.value, live.value, live.version) == (b"a", b"b", 1)
    assert isinstance(caught_up, oncelog.CaughtUp)


def test_a_task_works_off_a_queue(db: Database) -> None:
    """Messages are submitted, received, acknowledged and refused by tasks; what was claimed for nobody goes back."""
    queue = db.queue("emails", create=True)

    async def main() -> list[bytes]:
        sent = await asyncio.gather(*(queue.submit(b"%d" % number, id=str(number)) for number in range(20)))
        assert sorted(one.position for one in sent) == list(range(20))
        assert (await queue.submit(b"0", id="0")).duplicate
        found = []
        async with await later(queue.consume, "mailer", prefetch=5) as deliveries:
            async for delivery in deliveries:
                found.append(delivery.value)
                await delivery.submit_extend(30)
                await delivery.submit_ack()
                with pytest.raises(oncelog.LeaseLost):
                    await delivery.submit_ack()
                if len(found) == 18:
                    break
        return found

    assert sorted(map(int, asyncio.run(main()))) == list(range(18))
    with queue.consume("mailer") as rest:
        left = rest.receive(5, timeout_s=5) + rest.receive(5)
        assert sorted(one.value for one in left) == [b"18", b"19"]
        assert {one.attempts for one in left} == {1}, "what was claimed ahead and not handed out is no attempt"
        refused = [one.submit_nack("no", retry=False) for one in left]
        assert [pending.result(60) for pending in refused] == [None, None]
    assert len(queue.dead_letters.list()) == 2


def wait_in_a_loop_that_is_closed(handle: Any) -> asyncio.Task[Any]:
    """Have a task wait for a handle, and close its loop under it. Return the task: somebody may still know it."""
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(taken(aiter(handle), 1))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be left so
    return waiting


def test_a_loop_that_is_closed_leaves_the_handle_to_the_next(db: Database) -> None:
    """A loop is closed while a task waits in it. The handle is free again, and what comes is not that task's."""
    log, queue = db.log("orders", create=True), db.queue("emails", create=True)
    with log.writer() as writer, log.tail() as tail, queue.consume("mailer", ack_timeout_s=600.0) as consumer:
        left = [wait_in_a_loop_that_is_closed(handle) for handle in (tail, consumer)]
        writer.append(b"paid")
        queue.send(b"paid")
        for handle in (tail, consumer):
            (found,) = asyncio.run(taken(aiter(handle), 1))
            assert found.value == b"paid"
        found.ack()
        assert not any(task.done() for task in left)


def test_an_iterator_goes_on_in_the_next_loop(db: Database) -> None:
    """An iterator is kept from one ``asyncio.run`` to the next; when another one has begun since, it is refused."""
    log = db.log("orders", create=True)
    with log.writer() as writer, log.tail(0) as tail:
        writer.append_many([Record(b"1"), Record(b"2"), Record(b"3")])
        entries = aiter(tail)
        assert [asyncio.run(taken(entries, 1))[0].value for _ in range(2)] == [b"1", b"2"]
        other = aiter(tail)
        with pytest.raises(InvalidArgument, match="another iteration"):
            asyncio.run(taken(entries, 1))
        assert asyncio.run(taken(other, 1))[0].value == b"3"
