"""What a verification calls too soon does not depend on how many commits it looks at in one go."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.format.manifest import Manifest
from oncelog.log.jobs.window_rules import WindowRepeats
from oncelog.log.takeover.recovery import Remembered
from oncelog.settings import LogSettings, Window
from tests.log.shop import in_memory, known

commits = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 12), min_size=1, max_size=4)), min_size=1, max_size=30
)
"""How much later a commit came than the one before, and the ids in it."""


def remembered(story: list[tuple[int, list[int]]]) -> Remembered:
    """Return the records of commits, in order."""
    ticks = np.array([tick for tick, (_, ids) in zip(_ticks(story), story, strict=True) for _ in ids], np.int64)
    keys = np.array([[number, number] for _, ids in story for number in ids], np.uint64)
    starts = np.array([not row for _, ids in story for row in range(len(ids))])
    count = len(ticks)
    return Remembered(keys, np.arange(count), np.zeros(count, np.uint64), starts, ticks, ticks)


def _ticks(story: list[tuple[int, list[int]]]) -> list[int]:
    return [1_000_000 * seconds for seconds in accumulate(later for later, _ in story)]


WINDOWS = [Window(duration_s=4, max_keys=6), Window(duration_s=2, max_keys=100), Window()]


@pytest.fixture(scope="module", params=WINDOWS, ids=["few", "short", "all"])
def manifest(request: pytest.FixtureRequest) -> Manifest:
    """Return the manifest of a log whose writer had a window."""
    log = in_memory().log(LogSettings(window=request.param))
    log.writer().close()
    return known(log).manifest


@given(story=commits)
def test_many_commits_at_once_are_judged_as_one_by_one(manifest: Manifest, story: list[tuple[int, list[int]]]) -> None:
    """The same ids are called too soon, whether the rule sees commits one by one or all of them together."""
    stored = remembered(story)
    together, singly = (WindowRepeats(manifest, lambda _: False) for _ in range(2))
    found = [what for commit in stored.commits() for what in singly.add(commit)]
    at_once = together.add(stored)
    if manifest.settings.window.unbounded:
        found, at_once = found[:3], at_once[:3]  # it names three of what it sees at once
    assert at_once == found


def test_an_id_that_comes_too_soon_is_found_among_many_commits(manifest: Manifest) -> None:
    """Each window finds the id that comes again in the next commit."""
    assert WindowRepeats(manifest, lambda _: False).add(remembered([(1, [1]), (1, [2]), (1, [2])]))
