"""Locks, conditions, queues and pools between simulated threads, with the names and arguments of the real ones."""

from __future__ import annotations

import queue as real_queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from greenlet import GreenletExit

from oncelog.testing.simulation.scheduler import Process, Task, current_task

_T = TypeVar("_T")
_LOOK_US = 10_000


def _me() -> Task:
    task = current_task()
    assert task is not None, "used outside the simulation that made it"
    return task


def _micros(timeout_s: float | None) -> int | None:
    return None if timeout_s is None or timeout_s < 0 else round(timeout_s * 1e6)


class Lock:
    """A lock between simulated threads. A lock whose holder's process died is free."""

    reentrant = False

    def __init__(self) -> None:
        self._owner: Task | None = None
        self._depth = 0
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002  as the real one
        """Take the lock; another thread may run first."""
        task = _me()
        scheduler = task.scheduler
        if scheduler.over:
            return self._acquire_at_the_end(task)
        if self.reentrant and self._owner is task:
            self._depth += 1
            return True
        scheduler.pause()
        deadline_us = None if timeout < 0 else scheduler.now_us + round(timeout * 1e6)
        while self._is_held():
            left_us = None if deadline_us is None else deadline_us - scheduler.now_us
            if not blocking or (left_us is not None and left_us <= 0):
                return False
            self._waiting.append(task)
            if not scheduler.wait(self._patience_us(task, left_us)):
                self._waiting.remove(task)
        self._owner, self._depth = task, 1
        return True

    def _acquire_at_the_end(self, task: Task) -> bool:
        """Take the lock from others, who will not run again. To wait for oneself, as conditions do, is to wait for
        ever.
        """
        if self._owner is task and not self.reentrant:
            raise GreenletExit
        self._owner, self._depth = task, 1
        return True

    def _patience_us(self, task: Task, left_us: int | None) -> int | None:
        """Return how long to wait: a holder in another process may die, and then nobody wakes those who wait."""
        if self._owner is None or self._owner.process is task.process:
            return left_us
        return _LOOK_US if left_us is None else min(left_us, _LOOK_US)

    def _is_held(self) -> bool:
        return self._owner is not None and self._owner.process.alive

    def release(self) -> None:
        """Give the lock back."""
        if _me().scheduler.over:
            self._owner = None
            return
        if self._owner is None:
            message = "release unlocked lock"
            raise RuntimeError(message)
        self._depth -= 1
        if not self._depth:
            self._owner = None
            while self._waiting:
                task = self._waiting.popleft()
                if task.process.alive:
                    task.scheduler.wake(task)
                    break

    def locked(self) -> bool:
        """Tell whether somebody holds the lock."""
        return self._is_held()

    def is_held_in(self, process: Process) -> bool:
        """Tell whether a thread of a process holds the lock, or held it when the process died."""
        return self._owner is not None and self._owner.process is process

    def is_mine(self) -> bool:
        """Tell whether this thread holds the lock."""
        return self._owner is _me()

    def give_up(self) -> int:
        """Release the lock however often it was taken; return how often."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def take_back(self, depth: int) -> None:
        """Take the lock as often as it was taken before."""
        self.acquire()
        self._depth = depth

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """A lock that its holder may take again."""

    reentrant = True


class SimulatedCondition:
    """A condition between simulated threads."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._waiting: list[Task] = []
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified; ``False`` when the time is over first."""
        task = _me()
        self._check()
        self._waiting.append(task)
        depth = self._lock.give_up()
        notified = task.scheduler.wait(_micros(timeout) if timeout is None or timeout > 0 else 0)
        if not notified and task in self._waiting:
            self._waiting.remove(task)
        self._lock.take_back(depth)
        return notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until a predicate holds, or the time is over."""
        scheduler = _me().scheduler
        deadline_us = None if timeout is None else scheduler.now_us + round(timeout * 1e6)
        result = predicate()
        while not result:
            left_us = None if deadline_us is None else deadline_us - scheduler.now_us
            if left_us is not None and left_us <= 0:
                break
            self.wait(None if left_us is None else left_us / 1e6)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        """Wake some of those who wait."""
        self._check()
        woken, self._waiting = self._waiting[:n], self._waiting[n:]
        for task in woken:
            task.scheduler.wake(task)

    def notify_all(self) -> None:
        """Wake all who wait."""
        self.notify(len(self._waiting))

    def _check(self) -> None:
        task = _me()
        if not task.scheduler.over and not self._lock.is_mine():
            message = "the condition is not held"
            raise RuntimeError(message)


class SimulatedEvent:
    """An event between simulated threads."""

    def __init__(self) -> None:
        self._condition = SimulatedCondition()
        self._flag = False

    def is_set(self) -> bool:
        """Tell whether it happened."""
        return self._flag

    def set(self) -> None:
        """Let it happen."""
        with self._condition:
            self._flag = True
            self._condition.notify_all()

    def clear(self) -> None:
        """Let it not have happened."""
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it happens."""
        with self._condition:
            return bool(self._condition.wait_for(lambda: self._flag, timeout))


class Thread:
    """A thread that a simulated thread starts. It belongs to the same process."""

    def __init__(
        self,
        group: None = None,  # noqa: ARG002  as the real one
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self.ident: int | None = None
        self._target = target
        self._args = tuple(args)
        self._kwargs = kwargs or {}
        self._task: Task | None = None

    def start(self) -> None:
        """Begin to run."""
        me = _me()
        self._task = me.scheduler.spawn(me.process, self.name, self.run)
        self._task.locals[0] = {"thread": self}
        self.ident = self._task.number

    def run(self) -> None:
        """Do the work."""
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended."""
        assert self._task is not None, "never started"
        _me().scheduler.join(self._task, _micros(timeout))

    def is_alive(self) -> bool:
        """Tell whether the thread runs."""
        return self._task is not None and not self._task.finished


class Local:
    """What each simulated thread has for itself."""

    def __getattr__(self, name: str) -> Any:
        try:
            return _me().locals[id(self)][name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        _me().locals.setdefault(id(self), {"keeps the id taken": self})[name] = value

    def __delattr__(self, name: str) -> None:
        del _me().locals[id(self)][name]


class SimpleQueue:
    """A queue between simulated threads."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._condition = SimulatedCondition()

    def put(self, item: object) -> None:
        """Add an item."""
        with self._condition:
            self._items.append(item)
            self._condition.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002  as the real one
        """Take the oldest item; ``queue.Empty`` when there is none in time."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._items, timeout if block else 0):
                raise real_queue.Empty
            return self._items.popleft()


class Pool:
    """A pool of simulated threads."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "pool") -> None:
        self._max = max_workers or 4
        self._name = thread_name_prefix
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._condition = SimulatedCondition()
        self._idle = 0
        self._threads: list[Thread] = []
        self._closed = False

    def submit(self, work: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Have something done by a thread of the pool."""
        with self._condition:
            if self._closed:
                message = "cannot schedule new futures after shutdown"
                raise RuntimeError(message)
            future: Future[_T] = Future()
            self._work.append((future, lambda: work(*args, **kwargs)))
            if len(self._work) > self._idle and len(self._threads) < self._max:
                thread = Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}")
                self._threads.append(thread)
                thread.start()
            self._condition.notify()
        return future

    def _serve(self) -> None:
        while True:
            with self._condition:
                self._idle += 1
                self._condition.wait_for(lambda: self._work or self._closed)
                self._idle -= 1
                if not self._work:
                    return
                future, work = self._work.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except Exception as error:  # noqa: BLE001  goes to the one who asked
                    future.set_exception(error)
                else:
                    future.set_result(result)

    def map(self, work: Callable[..., _T], *iterables: Iterable[Any]) -> Iterator[_T]:
        """Do the same with many things at once; return the results in order."""
        futures = [self.submit(work, *args) for args in zip(*iterables, strict=False)]
        return (future.result() for future in futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002  as the real one
        """Take nothing more."""
        with self._condition:
            self._closed = True
            cancelled = [future for future, _ in self._work] if cancel_futures else []
            if cancel_futures:
                self._work.clear()
            self._condition.notify_all()
        for future in cancelled:
            future.cancel()
        for thread in self._threads if wait else ():
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
