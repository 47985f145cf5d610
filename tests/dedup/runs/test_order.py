"""Numbers are put into order whatever they are, and fast where they are as good as random."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.dedup import kernels
from oncelog.dedup.runs.order import in_order, leading, leading_order
from tests.dedup.test_compiled import Chosen

WORD = st.integers(0, 2**64 - 1) | st.integers(0, 5) | st.integers(2**64 - 3, 2**64 - 1)


@pytest.fixture(scope="module", params=["numpy", "numba"])
def chosen(request: pytest.FixtureRequest) -> Iterator[Chosen]:
    """Let numpy, or numba, compute."""
    if request.param == "numba":
        pytest.importorskip("numba")
    with pytest.MonkeyPatch.context() as patch:
        choice = Chosen(patch)
        choice.by(request.param)
        yield choice


@given(numbers=st.lists(WORD, max_size=200))
@settings(deadline=None)
def test_order(chosen: Chosen, numbers: list[int]) -> None:
    """Numbers that are near each other, equal, few or none."""
    high = np.array(numbers, np.uint64)
    placed_order, placed = in_order(high)
    assert placed.tolist() == high[placed_order].tolist() == sorted(numbers)
    order = leading_order(high)
    assert sorted(order.tolist()) == list(range(len(numbers)))
    if numbers:
        bits = leading(high[order], high.min(), high.max())
        assert (bits[1:] >= bits[:-1]).all()


def test_many_equal_ones_do_not_take_for_ever(chosen: Chosen) -> None:
    """A bucket with everything in it is left to numpy: an insertion sort would take the square of its size."""
    high = np.full(300_000, 7, np.uint64)
    high[:1000] = np.random.default_rng(1).integers(0, 2**64, 1000, np.uint64)
    assert (np.diff(in_order(high)[1].astype(np.float64)) >= 0).all()
    compiled = kernels.kernels(len(high))
    if compiled is not None:
        room = np.zeros(1025, np.int64), np.empty(len(high), np.int64)
        assert not compiled.bucket_order(kernels.fixed(high), high.min(), 54, *room)
