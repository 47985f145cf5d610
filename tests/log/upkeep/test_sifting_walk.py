"""The sieve against all that happens to runs, drawn by chance: whatever stands behind it, it has every id of.

A sieve that claims a run, and lacks one of its ids, stores that id a second time without a word.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from oncelog import limits
from oncelog.log.log import Log
from oncelog.log.memory.merging import pieces_of
from oncelog.log.memory.run_sieve import RunSieve
from oncelog.log.upkeep import sifting
from oncelog.log.upkeep.background import Housekeeper
from oncelog.log.writer import Writer
from tests.log.memory.conftest import shop, tiny
from tests.log.memory.orders import SETTINGS, append, many, remember, table
from tests.log.shop import Shop

__all__ = ["shop", "tiny"]

pytestmark = pytest.mark.usefixtures("tiny", "_quiet")

SEEDS = 200 if os.environ.get("ONCELOG_SOAK") == "1" else 6
STEPS = 40


@pytest.fixture
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs built and merged only when a step says so, in small slices, and sieves that are soon full."""
    monkeypatch.setattr(Housekeeper, "ask", lambda *_: None)
    monkeypatch.setattr(sifting, "IDS_MIN", 1)
    monkeypatch.setattr(sifting, "READ_PER_LOOK", 4)
    monkeypatch.setattr("oncelog.dedup.runs.sieve._BLOCKS_MIN", 2)
    monkeypatch.setattr("oncelog.log.memory.merging.SLICE_IDS", 4)


class Walk:
    """A log that things happen to, and what was stored in it."""

    def __init__(self, shop: Shop, seed: int) -> None:
        self.shop = shop
        self.chance = random.Random(seed)
        self.log: Log = shop.log(SETTINGS)
        self.writer: Writer = self.log.writer()
        self.count = 0
        self.behind = 0

    def append_new(self) -> None:
        """Append some new records, some of them together with known ones."""
        count = self.chance.choice((1, 3, 8, 20))
        way = self.chance.choice((append, many))
        assert not any(ack.duplicate for ack in way(self.writer, range(self.count, self.count + count)))
        self.count += count

    def append_known(self) -> None:
        """Append records again: each is where it was."""
        first = self.chance.randrange(self.count) if self.count else 0
        numbers = range(first, min(self.count, first + self.chance.choice((1, 40))))
        way = self.chance.choice((append, many))
        acks = way(self.writer, numbers)
        assert [(ack.position, ack.duplicate) for ack in acks] == [(number, True) for number in numbers]

    def remember(self) -> None:
        """Build runs and merge them."""
        remember(self.writer)

    def be_cut_short(self) -> None:
        """Begin to build and merge, and end at some slice of a merge, or piece of a run, that was being read."""
        memory, left = self.writer._keeper._memory, self.chance.randrange(6)
        make_way = memory._make_way
        self.writer._admitter._recall.looked = 1 << 20  # so many that runs are read into the sieve

        def end() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            make_way()

        memory._make_way = end  # type: ignore[method-assign]
        try:
            memory.work()
        except KeyboardInterrupt:
            pass
        finally:
            memory._make_way = make_way  # type: ignore[method-assign]

    def rebuild(self) -> None:
        """Have another process make all runs again, beside the writer."""
        self.shop.log().rebuild()

    def ingest(self) -> None:
        """Adopt a file, which may bring a run."""
        self.writer.ingest([self.log.stage([table(range(self.count, self.count + 10))])])
        self.count += 10

    def reopen(self) -> None:
        """Close the writer, and open the next one of this process."""
        self.writer.close()
        self.writer = self.log.writer()

    def restart(self) -> None:
        """Close the writer, and open the next one in another process."""
        self.writer.close()
        self.log = self.shop.log()
        self.writer = self.log.writer()

    def check(self) -> None:
        """Ask the sieve for each id of each run that is said to be behind it."""
        runs = self.writer._admitter._recall.view.runs
        self.behind += len(runs._behind)
        for each in runs._behind:
            for part in each.parts:
                for _, entries in pieces_of(part):
                    passed = cast("RunSieve", runs.sieve).passing(entries.high, entries.low)
                    assert len(passed) == len(entries), f"{each.run.key} is said to be behind the sieve, and is not"


@pytest.mark.parametrize("here", [True, False], ids=["here", "in a bucket"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_sieve_has_every_id_of_what_is_behind_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, seed: int, *, here: bool
) -> None:
    """Whoever builds, merges, adopts, reads or makes a run again, and whatever cuts that short."""
    walk = Walk(shop, seed)
    monkeypatch.setattr(sifting, "memory_bytes", lambda: 0)
    if walk.chance.random() < 0.3:
        monkeypatch.setattr(limits, "MEMORY_SIEVE_IDS", 64)
    steps: list[Callable[[], None]] = [walk.append_new, walk.append_known, walk.remember, walk.be_cut_short]
    steps += [*steps, walk.rebuild, walk.ingest, walk.reopen, walk.restart]
    for _ in range(STEPS):
        walk.writer._keeper._memory._sifter._objects = SimpleNamespace(is_here=here)  # type: ignore[assignment]
        walk.chance.choice(steps)()
        walk.check()
    assert many(walk.writer, range(walk.count)) is not None
    walk.writer.close()
    with walk.log.read() as entries:
        assert [entry.id for entry in entries] == [f"o-{number}" for number in range(walk.count)]
    assert walk.behind
