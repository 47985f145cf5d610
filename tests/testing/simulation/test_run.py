"""The real log in simulated worlds: nothing acknowledged is lost, nothing is twice, and planted mistakes are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from oncelog.testing.simulation.faces import QueueRun, StreamsRun
from oncelog.testing.simulation.run import RunSummary, SimulatedRun
from oncelog.testing.simulation.world import KINDS, Kind
from tests.testing.simulation.planted import PLANTED, RARE, Planted

SEEDS: dict[Kind, int] = {"quorum": 80, "bucket": 60, "local": 20, "memory": 20}
FACE_SEEDS: dict[Kind, int] = {"quorum": 12, "bucket": 8, "local": 4, "memory": 4}
SOAK_SEEDS = int(os.environ.get("ONCELOG_SEEDS", "2500"))
PARTS = 4
PLANTED_SEEDS, RARE_SEEDS = 30, 1_000
"""Each planted mistake is found within so many seeds."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_no_seed_breaks_a_promise(kind: Kind, part: int) -> None:
    """Requests are lost, late and repeated, processes crash and pause, stores leave: the history is true of the log."""
    runs = [SimulatedRun(kind, seed).run() for seed in range(part, SEEDS[kind], PARTS)]
    assert sum(run.takeovers for run in runs) > len(runs), "nobody took the log over: nothing was tried"
    assert sum(run.acks for run in runs) > len(runs)
    assert sum(run.duplicates for run in runs)
    assert sum(run.seen for run in runs)
    if kind != "memory":
        assert sum(run.crashes for run in runs) > len(runs)


@pytest.mark.parametrize("face", [StreamsRun, QueueRun])
@pytest.mark.parametrize("kind", KINDS)
def test_no_seed_breaks_a_promise_of_a_face(kind: Kind, face: type[StreamsRun | QueueRun]) -> None:
    """Versions of streams, and settlements of messages, are right under the same faults."""
    runs = [face(kind, seed) for seed in range(FACE_SEEDS[kind])]
    for run in runs:
        run.run()
    assert sum(len(run.offered) for run in runs) > len(runs)


@pytest.mark.soak
@pytest.mark.parametrize("face", [StreamsRun, QueueRun])
@pytest.mark.parametrize("kind", KINDS)
def test_no_seed_of_hundreds_breaks_a_promise_of_a_face(kind: Kind, face: type[StreamsRun | QueueRun]) -> None:
    """The same for many seeds that the ordinary tests do not run."""
    for seed in range(1_000, 1_000 + SOAK_SEEDS // 5):
        face(kind, seed).run()


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_no_seed_of_thousands_breaks_a_promise(kind: Kind) -> None:
    """The same for many seeds that the ordinary tests do not run."""
    for seed in range(1_000, 1_000 + SOAK_SEEDS):
        SimulatedRun(kind, seed, duration_s=8.0).run()


@pytest.mark.parametrize(("plant", "kind"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_mistake_is_found(plant: Callable[[], Planted], kind: Kind) -> None:
    """The simulator and its checker see each of these mistakes: without that, silence would mean nothing."""
    assert is_found(plant, kind, PLANTED_SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize(("plant", "kind"), RARE, ids=[plant.__name__ for plant, _ in RARE])
def test_a_planted_mistake_is_found_at_last(plant: Callable[[], Planted], kind: Kind) -> None:
    """These need a node away here and a crash there: the model, and directed tests, find them at once."""
    assert is_found(plant, kind, RARE_SEEDS)


def is_found(plant: Callable[[], Planted], kind: Kind, seeds: int) -> bool:
    """Tell whether a planted mistake shows: a violation, damage that the log sees, or a process that is stuck."""
    for seed in range(seeds):
        try:
            with plant():
                SimulatedRun(kind, seed).run()
        except Exception:  # noqa: BLE001
            return True
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_repeats_its_run(kind: Kind) -> None:
    """The same seed gives the same trace, line by line; another seed another one. So a failure can be looked at."""
    first, again = SimulatedRun(kind, 3, keep_trace=True), SimulatedRun(kind, 3, keep_trace=True)
    assert first.run() == again.run()
    assert first.world.scheduler.trace == again.world.scheduler.trace
    assert SimulatedRun(kind, 4).run().digest != first.world.scheduler.digest


def test_a_seed_repeats_its_run_in_another_process() -> None:
    """The order of sets and dicts differs from process to process, and must not decide anything."""
    script = "from oncelog.testing.simulation.run import SimulatedRun; print(SimulatedRun('quorum', 3).run().digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_run_tells_what_happened() -> None:
    """A summary counts what clients did, so that a run in which nothing happened can be told from a good one."""
    found = SimulatedRun("quorum", 0).run()
    assert isinstance(found, RunSummary)
    assert found.attempts >= found.acks > 0
    assert found.virtual_s > 0
