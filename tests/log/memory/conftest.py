"""Runs of a few ids, so that ids go from table to run to merged run within a few appends."""

from __future__ import annotations

import pytest

from oncelog import limits
from oncelog.log.upkeep import memory_keeper
from tests.log.shop import Shop, in_memory, on_disk


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close a segment after eight ids, and make a run of every four."""
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS", 8)
    monkeypatch.setattr(limits, "MEMORY_MERGED_RUNS", 4)
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS_MIN", 4)
    monkeypatch.setattr(memory_keeper, "_PIECE_RECORDS", 7)
    monkeypatch.setattr(limits, "MEMORY_TABLE_IDS_MAX", 1 << 20)


@pytest.fixture(params=["memory", "disk"])
def shop(request: pytest.FixtureRequest) -> Shop:
    """Return a shop in memory, and one on a disk."""
    return in_memory() if request.param == "memory" else on_disk()
