"""The scheduler: simulated threads are greenlets, one runs at a time, and the seed decides which runs next.

Time is virtual. It moves only when no task can run, and then to the moment of the next timer. A crashed process is a
process whose tasks are never resumed: no ``finally`` of theirs runs, as after ``kill -9``.
"""

from __future__ import annotations

import heapq
import itertools
import random
import zlib
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

SWITCH_CHANCE = 0.1
"""How often a task that takes a lock lets another task run first: without it nothing is preempted between locks."""

STEPS_MAX = 2_000_000
"""A run with more steps does not end by itself."""


class Stuck(AssertionError):
    """No task can run and no timer is left, or time is over: somebody waits for what never comes."""


class Process:
    """A simulated operating-system process: the tasks that die, pause and share a clock together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused_until_us = 0
        self.paused_us = 0
        self.wall_offset_us = 0


class Task(greenlet):  # type: ignore[misc]
    """One simulated thread."""

    def __init__(self, scheduler: Scheduler, process: Process, name: str, work: Callable[[], object]) -> None:
        # The parent must be the scheduler: a task that ends gives control to its parent.
        super().__init__(self._run, parent=scheduler.hub)
        self.scheduler = scheduler
        self.process = process
        self.number = next(scheduler.numbers)
        self.name = f"{process.name}/{name}"
        self.started = False
        self.finished = False
        self.timer = 0
        """The number of the timer that may end the present wait; another timer is an old one."""
        self.woken = True
        self.waiters: list[Task] = []
        self.locals: dict[int, dict[str, Any]] = {}
        self._work = work

    def _run(self) -> None:
        scheduler = self.scheduler
        self.started = True
        try:
            self._work()
        except GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001  a bug in the code under test, told by ``Scheduler.run``
            if not scheduler.over:
                scheduler.failures.append((self.name, error))
        finally:
            self.finished = True
            for waiter in self.waiters:
                scheduler.wake(waiter)


class Scheduler:
    """Runs tasks in the order that a seed decides."""

    active: Scheduler | None = None
    """The scheduler that runs now. Only one runs at a time in an operating-system thread."""

    def __init__(self, seed: int | str, *, keep_trace: bool = False) -> None:
        self.random = random.Random(f"scheduler {seed}")
        self.now_us = 0
        self.hub = getcurrent()
        self.over = False
        self.failures: list[tuple[str, BaseException]] = []
        self.steps = 0
        self.digest = 0
        """A checksum over everything that happened, in order."""
        self.trace: list[str] | None = [] if keep_trace else None
        self.numbers = itertools.count(1)
        self._ready: list[Task] = []
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._timer_numbers = itertools.count(1)
        self._tasks: list[Task] = []  # dead ones are kept: collecting a greenlet would run its ``finally``

    # Called by anybody.

    def note(self, event: str) -> None:
        """Add an event to the trace."""
        line = f"{self.now_us} {event}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        if self.trace is not None:
            self.trace.append(line)

    def spawn(self, process: Process, name: str, work: Callable[[], object]) -> Task:
        """Start a task."""
        task = Task(self, process, name, work)
        self._tasks.append(task)
        self._ready.append(task)
        return task

    def at(self, moment_us: int, action: Callable[[], None]) -> None:
        """Call something at a moment. It runs in the scheduler, so it must not wait."""
        heapq.heappush(self._timers, (moment_us, next(self._timer_numbers), action))

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Call something after so long."""
        self.at(self.now_us + delay_us, action)

    def wake(self, task: Task) -> None:
        """Let a task that waits go on."""
        if not task.woken and not task.finished:
            task.woken = True
            self._ready.append(task)

    # Called by a task.

    def pause(self) -> None:
        """Let other tasks run first, now and then."""
        if not self.over and self.random.random() < SWITCH_CHANCE:
            task = _current(self)
            self._ready.append(task)
            self.hub.switch()

    def wait(self, timeout_us: int | None) -> bool:
        """Wait to be woken; ``False`` when the time is over first."""
        if self.over:
            raise GreenletExit
        task = _current(self)
        task.woken = False
        timed_out = False
        task.timer += 1
        if timeout_us is not None:
            number = task.timer

            def ring() -> None:
                nonlocal timed_out
                if task.timer == number and not task.woken:
                    timed_out = True
                    self.wake(task)

            self.after(max(0, timeout_us), ring)
        self.hub.switch()
        task.timer += 1
        return not timed_out

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.wait(round(seconds * 1e6))

    def join(self, task: Task, timeout_us: int | None = None) -> bool:
        """Wait until a task has finished; ``False`` when the time is over first."""
        if not task.finished and not self.over:
            me = _current(self)
            task.waiters.append(me)
            if not self.wait(timeout_us):
                task.waiters.remove(me)
        return task.finished

    # Called by the one who runs the simulation.

    def run(self, until: Callable[[], bool], limit_us: int) -> None:
        """Run tasks until a condition holds. ``Stuck`` when that cannot happen, or not before ``limit_us``."""
        Scheduler.active = self
        try:
            while not until():
                self._step(limit_us)
                if self.failures:
                    name, error = self.failures[0]
                    error.add_note(f"in {name}, at {self.now_us} us of virtual time")
                    raise error
        finally:
            Scheduler.active = None

    def _step(self, limit_us: int) -> None:
        self.steps += 1
        if self._ready:
            task = self._ready.pop(self.random.randrange(len(self._ready)))
            self._resume(task)
            return
        if not self._timers or self.now_us > limit_us or self.steps > STEPS_MAX:
            waiting = [task.name for task in self._tasks if not task.finished and task.process.alive]
            message = f"after {self.steps} steps, at {self.now_us} us, these still wait: {waiting}"
            raise Stuck(message)
        moment_us, _, action = heapq.heappop(self._timers)
        self.now_us = max(self.now_us, moment_us)
        action()

    def _resume(self, task: Task) -> None:
        process = task.process
        if task.finished or not process.alive:
            return
        if process.paused_until_us > self.now_us:
            self.at(process.paused_until_us, lambda: self._ready.append(task))
            return
        self.digest = zlib.crc32(b"%d %d" % (task.number, self.now_us), self.digest)
        task.switch()

    def end(self) -> None:
        """End every task that is left. From now on nothing waits, so that what they clean up comes to an end."""
        self.over = True
        Scheduler.active = self
        try:
            for task in self._tasks:
                if task.started and not task.dead:
                    task.throw(GreenletExit)
        finally:
            Scheduler.active = None
        self._tasks.clear()
        self._timers.clear()
        self._ready.clear()


def _current(scheduler: Scheduler) -> Task:
    task = getcurrent()
    assert isinstance(task, Task), "only a simulated thread can wait"
    assert task.scheduler is scheduler, "a thread of another simulation"
    return task


def current_task() -> Task | None:
    """Return the simulated thread that runs now; ``None`` outside a simulation."""
    task = getcurrent()
    return task if isinstance(task, Task) else None
