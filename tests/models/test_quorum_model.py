"""The segment protocol of a quorum, in every order of steps: nothing is lost or split, and each mistake is found."""

from __future__ import annotations

import pytest

from tests.models.segment_model import MISTAKES, Model
from tests.models.segment_walk import walked

pytestmark = pytest.mark.xdist_group("segment-model")  # compiled once, not in each worker

ONE, WIPED, TWO_BLOCKS, TWO_RECOVERERS = Model(), Model(wipes=1), Model(numbers=2), Model(recoverers=2)
DAMAGED = Model(damages=1)


@pytest.mark.parametrize(
    "model",
    [
        ONE,
        WIPED,
        TWO_BLOCKS,
        TWO_RECOVERERS,
        Model(width=2, ack=2),
        Model(width=4, ack=3),
        Model(width=5, ack=3),
        Model(width=5, ack=4),
        Model(width=5, ack=3, wipes=1),
        Model(recoverers=2, wipes=1),
        Model(numbers=2, wipes=1),
        DAMAGED,
        Model(recoverers=2, damages=1),
        Model(numbers=2, damages=1),
        Model(width=5, ack=3, damages=1),
        pytest.param(Model(numbers=2, recoverers=2), marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_no_order_of_steps_loses_or_splits_anything(model: Model) -> None:
    """Acknowledged blocks are before the tail, kept blocks survive the loss of a node, and a decision stands."""
    states, broken = walked(model)
    assert broken is None
    assert states > 100


@pytest.mark.parametrize("mistake", range(1, len(MISTAKES)), ids=lambda number: MISTAKES[number])
def test_each_planted_mistake_is_found(mistake: int) -> None:
    """The model can complain: each of these one-line mistakes breaks a promise in some order of steps."""
    models = (ONE, WIPED, TWO_BLOCKS, TWO_RECOVERERS, DAMAGED)
    assert any(walked(model._replace(mistake=mistake))[1] for model in models)
