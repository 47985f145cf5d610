"""The nth request fails before it happens, or after it has, or the process dies in it: the ladder, in a bucket."""

from __future__ import annotations

import pytest

from oncelog.testing.faults import When
from tests.crash.test_log_ladder import abandoned, climb, failed, few, killed, opening, recovered
from tests.log.worlds import BucketWorld, World


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_a_request(when: When) -> None:
    """Nothing acknowledged is lost and nothing is there twice, whichever request was the last."""
    top = climb(lambda n: killed(BucketWorld, n, when, "crash"), *few(len(when), 9))
    assert top > 150, "the work has shrunk: it no longer does what this ladder is to climb through"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_request_that_fails_once(when: When) -> None:
    """A store that is away for a moment, or whose answer is lost, is offered the same again: once is what is there."""
    climb(lambda n: failed(BucketWorld, n, when, 0, "crash"), *few(len(when), 9))


@pytest.mark.parametrize("when", ["before", "after"])
def test_requests_that_the_client_repeats(when: When) -> None:
    """A client that repeats creates by itself learns that its own object exists: it is still its own."""

    def make(seed: int) -> World:
        return BucketWorld(seed, duplicate_creates=True)

    climb(lambda n: failed(make, n, when, 0, "crash"), *few(0, 29))
    climb(lambda n: killed(make, n, when, "crash"), *few(0, 29))


@pytest.mark.parametrize("start", range(20, 200, 60))
def test_killed_again_and_again_while_taking_over(start: int) -> None:
    """A takeover that dies at every request in turn is taken up by the next one, from the same crash."""
    world = BucketWorld(start)
    history = abandoned(world, start, "after" if start % 8 else "before", "crash")

    def step(number: int) -> bool:
        when: When = "after" if number % 2 else "before"
        return opening(world, history, number, lambda: world.faults.kill_at(number, when), "crash")

    climb(step)
    recovered(world, history)
