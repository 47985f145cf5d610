"""A run is built whole, or nothing of it stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oncelog.dedup.runs.builder import PartBuilder
from oncelog.errors import CorruptionError, Unavailable
from oncelog.log.memory import building
from oncelog.log.memory.building import delete_run
from oncelog.log.memory.checking import check_run
from oncelog.log.memory.objects import RunObjects
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.faults import Killed
from oncelog.testing.storage import FaultyStorage
from tests.log.memory.ids import Ids


@pytest.mark.parametrize("when", ["before", "after"])
def test_every_io_may_fail(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nth I/O fails: an error that says try again, and nothing stays behind, also where only an answer was lost."""
    monkeypatch.setattr(building, "PART_IDS", 100)
    storage = FaultyStorage(MemoryStorage())
    home = storage.home("shop")
    ids = Ids.random(1, 70, 350)
    failures = 0
    while True:
        storage.fail_at(failures + 1, "before" if when == "before" else "after")
        try:
            run = ids.stored(home, f"sealed/{failures}")
            break
        except Unavailable:
            failures += 1
            storage.faults.heal()
            assert home.list("") == []
    storage.faults.heal()
    assert failures == 5  # four parts and the times
    assert home.list("") == sorted(run.keys())
    assert check_run(RunObjects(home), run) == ids.entries().digest().moved(70)
    delete_run(home, run)
    assert home.list("") == []


def test_a_deletion_that_fails_too_leaves_the_first_error() -> None:
    """Storage that went away altogether: the error of the create is told, the sweep finds the rest."""
    storage = FaultyStorage(MemoryStorage())
    home = storage.home("shop")
    storage.faults.fail_forever(lambda operation, what: Unavailable(f"{operation} of {what}"))
    with pytest.raises(Unavailable, match="create"):
        Ids.random(1, 0, 10).stored(home, "sealed/1")


@pytest.mark.parametrize("number", [1, 2])
def test_a_process_that_dies_leaves_whole_objects(tmp_path: Path, number: int) -> None:
    """Nobody ever sees a part of an object; nothing refers to those that are there."""
    storage = FaultyStorage(LocalStorage(tmp_path))
    home = storage.home("shop")
    storage.kill_at(number, "after")
    with pytest.raises(Killed):
        Ids.random(1, 0, 200).stored(home, "sealed/1")
    storage.restart()
    left = ["sealed/1.0.ids", "sealed/1.0.times"][:number]
    assert home.list("") == left
    run = Ids.random(1, 0, 200).stored(home, "sealed/2")
    assert [home.read(key) for key in left] == [home.read(key) for key in run.keys()[:number]]


def test_entries_out_of_order_are_never_stored() -> None:
    """They would not be found: the id would be stored a second time."""
    entries = Ids.random(1, 0, 300).entries().sorted()
    for wrong in (entries[np.arange(299, -1, -1)], entries[np.append(np.arange(1, 300), 0)]):
        builder = PartBuilder("log", 0, 0)
        builder.add(wrong)
        with pytest.raises(CorruptionError, match="out of order"):
            builder.finish()
    builder = PartBuilder("log", 1, 1)
    builder.add(entries)
    with pytest.raises(CorruptionError, match="out of order"):
        builder.finish()


def test_a_run_takes_32_bytes_an_id() -> None:
    """Pages, filter and index; and eight bytes for a commit."""
    run = Ids.random(1, 0, 100_000).stored(MemoryStorage().home("shop"), "sealed/1")
    assert run.parts[0].size_bytes / run.ids < 32
    assert run.parts[0].front_bytes / run.ids < 2.7
    assert run.times[0].size_bytes / run.times[0].commits < 8 + 2 * 8192 / 1000
