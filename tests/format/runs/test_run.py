"""A digest can be added, subtracted and moved, as its entries are."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from oncelog.format.runs.run import BLOCKED, Digest, Run, RunPart, TimesPart

WORD = st.integers(0, 2**64 - 1)
DIGEST = st.builds(Digest, WORD, WORD)


@given(one=DIGEST, other=DIGEST, by=st.integers(-(2**40), 2**40), more=st.integers(-(2**40), 2**40))
def test_moving_is_linear(one: Digest, other: Digest, by: int, more: int) -> None:
    """The digest of a merge follows from those of its inputs, wherever they lie."""
    assert (one + other).moved(by) == one.moved(by) + other.moved(by)
    assert one.moved(by).moved(more) == one.moved(by + more)
    assert one + other - other == one


def test_a_run_names_all_its_objects() -> None:
    """What nothing names is swept: a part that is missing here would be deleted after a day."""
    run = Run("sealed/1-a", (RunPart(1, 2, 3, 4),) * 4, 5, 9, 4, 99, Digest(1, 2), times=(TimesPart(1, 0, 1, 2, 3),))
    assert run.bits == 2
    assert run.keys() == [*(f"sealed/1-a.{number}.ids" for number in range(4)), "sealed/1-a.0.times"]


def test_a_run_survives_the_manifest() -> None:
    """Digests and checksums use all 64 bits of their numbers."""
    top = 2**64 - 1
    run = Run("k", (RunPart(1, 2, 3, top),), 5, 9, 4, 99, Digest(top, top), BLOCKED, (TimesPart(1, 0, 1, 2, top),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(run), type=Run) == run
