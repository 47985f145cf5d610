"""Shops for the tests of a log's life."""

import pytest

from tests.life.shop import Shop, in_memory, on_disk


@pytest.fixture(params=["memory", "disk"])
def shop(request: pytest.FixtureRequest) -> Shop:
    """Return an empty shop, once in memory and once on a disk."""
    return in_memory() if request.param == "memory" else on_disk()


@pytest.fixture
def quick() -> Shop:
    """Return an empty shop in memory."""
    return in_memory()
