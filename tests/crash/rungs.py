"""A rung of a ladder over a piece of work: the nth call kills, and the work is done again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from oncelog.errors import Closed, WriterFenced
from oncelog.log.writer import Writer
from oncelog.testing.faults import Killed, When
from tests.log.worlds import Ending, World, living

MakeWorld = Callable[[int], World]
"""Makes the world of a seed."""


class Repeatable(Protocol):
    """Work that can be done again, by another process, after it was cut short."""

    def run(self, born: Callable[[Writer], Writer]) -> None:
        """Do the work. Each writer is named to ``born``."""
        ...

    def check(self) -> None:
        """See that the work was done once."""
        ...


def killed(prepare: Callable[[World], Repeatable], make: MakeWorld, number: int, when: When, ending: Ending) -> bool:
    """Let the nth call kill, do the work again, and look; return whether it came to that."""
    world = make(number)
    work = prepare(world)
    with living(world) as born:
        world.faults.kill_at(number, when)
        with contextlib.suppress(Killed, Closed, WriterFenced):
            work.run(born)
        came = world.faults.is_killed
    world.end(ending, number)
    with living(world) as born:
        work.run(born)
    world.end("crash", number)
    work.check()
    return came
