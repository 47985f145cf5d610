"""Shops for the tests of a log's life, and holders of a log that answer at once."""

import pytest

from oncelog.log.takeover import handover
from tests.log.shop import Shop, in_memory, on_disk


@pytest.fixture(params=["memory", "disk"])
def shop(request: pytest.FixtureRequest) -> Shop:
    """Return an empty shop, once in memory and once on a disk."""
    return in_memory() if request.param == "memory" else on_disk()


@pytest.fixture
def quick() -> Shop:
    """Return an empty shop in memory."""
    return in_memory()


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the holder of a log answer at once, and keep the log; those who ask are patient."""
    monkeypatch.setattr(handover, "TENURE_S", 600.0)
    monkeypatch.setattr(handover, "LOOK_S", 0.01)
    monkeypatch.setattr(handover, "ANSWER_S", 60.0)
    monkeypatch.setattr(handover, "POLL_S", 0.005)
