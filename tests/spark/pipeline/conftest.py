"""A shop whose orders go through pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.pipeline.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Return a shop with a spec and nothing in it."""
    return Shop(tmp_path)
