"""Runs stored by earlier versions are searched as they were meant, and are written the same."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from oncelog.format.runs.run import Run
from oncelog.log.memory.checking import check_run
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.run_set import RunSet
from oncelog.storage.memory import MemoryStorage
from tests.golden import make
from tests.golden.test_format import FILES


@pytest.mark.parametrize("name", ["run", "run_part", "run_times"])
def test_runs_are_written_the_same(name: str) -> None:
    """The mix, the filter, the pages, the digest and the times: an older Oncelog reads what this one writes."""
    assert make.make_run()[name] == FILES[name]


def test_runs_are_read() -> None:
    """An id that an earlier version stored is known for ever, with position, fingerprint, batch and time."""
    home = MemoryStorage().home("golden")
    run = msgspec.msgpack.decode(FILES["run"], type=Run)
    home.create(run.part_key(0), [FILES["run_part"]])
    home.create(run.times_key(0), [FILES["run_times"]])
    known = RunSet.open(RunObjects(home), [run])
    row = np.arange(1, 199, dtype=np.uint64)
    found = known.find_many(np.stack([row * np.uint64(0x9E37_79B9_7F4A_7C15), ~row], axis=1))
    relative = row.astype(np.int64) * ((1 << 38) // 200)
    assert (found.positions == make.RUN_FIRST + relative).all()
    assert (found.fingerprints == row * np.uint64(0xC2B2_AE3D_27D4_EB4F)).all()
    assert (found.starts == (row % 3 == 0)).all()
    assert (found.ends == (row % 3 == 2)).all()
    hit = known.find_one(0, 2**64 - 1)
    assert hit is not None
    assert hit.position == make.RUN_FIRST + 199 * ((1 << 38) // 200)
    begun = row.astype(np.int64) // 20 * 20 * ((1 << 38) // 200)
    assert (known.timestamps_of(found.positions) == 1_700_000_000_000_000 + begun).all()
    check_run(RunObjects(home), run)
