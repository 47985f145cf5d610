"""A control of a model: something is broken on purpose, and the model says so."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def assert_noticed(machine: type[RuleBasedStateMachine], steps: int = 50) -> None:
    """Find a life of the machine that does not say what the model says.

    Hypothesis lives a life that failed once more. Threads of the writer work beside the steps, so the second life may
    fail at another step, or not: hypothesis calls that flaky. The life has failed all the same.
    """
    looking = settings(
        max_examples=200,
        phases=[Phase.generate],
        database=None,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, Flaky)):
        run_state_machine_as_test(machine, settings=looking)
