"""Runs of a few ids, so that ids go from table to run to merged run within a few appends."""

from __future__ import annotations

import pytest

from oncelog import limits


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close a segment after eight ids, and make a run of every four."""
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS", 8)
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS_MIN", 4)
    monkeypatch.setattr(limits, "MEMORY_TABLE_IDS_MAX", 1 << 20)
