"""Runs that a manifest names are what code takes them for, no matter who wrote the manifest."""

from __future__ import annotations

import msgspec
import pytest

from oncelog.errors import CorruptionError
from oncelog.format.manifest_rules import check_runs
from oncelog.format.runs.run import Digest, Run, RunPart

PART = RunPart(10, 4096, 8192, 1)


def run_of(first: int, end: int, parts: int = 1) -> Run:
    """Return a run of a range, with so many parts of ten ids."""
    return Run("sealed/1-a", (PART,) * parts, first, end, 10 * parts, 8192, Digest(1, 2))


@pytest.mark.parametrize(
    "runs",
    [
        [run_of(0, 10, parts=0)],
        [run_of(0, 10, parts=3)],
        [run_of(10, 0)],
        [run_of(0, 10), run_of(9, 20)],
        [run_of(10, 20), run_of(0, 10)],
        [msgspec.structs.replace(run_of(0, 10), ids=11)],
    ],
)
def test_runs_that_contradict_each_other_are_refused(runs: list[Run]) -> None:
    """No parts, three parts, a range that ends before it begins, ranges that overlap, ids that do not add up."""
    with pytest.raises(CorruptionError, match="does not make sense"):
        check_runs(runs, "manifest")
    check_runs([run_of(0, 10), run_of(10, 20, parts=4), run_of(25, 25)], "manifest")


@pytest.mark.parametrize(
    "change",
    [
        {"key": "../elsewhere"},
        {"first_position": -1},
        {"ids": -1},
        {"kind": -1},
        {"parts": (RunPart(-1, 0, 0, 0),)},
        {"digest": Digest(-1, 0)},
    ],
)
def test_numbers_and_names_are_checked_while_a_run_is_decoded(change: dict[str, object]) -> None:
    """A negative size would read backwards, a path would leave the log's folder."""
    forged = msgspec.msgpack.encode(msgspec.structs.replace(run_of(0, 10), **change))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(forged, type=Run)
