"""Where positions are: one search, however many segments there are, and the same answer as asking one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oncelog.format.manifest import INLINE_SEGMENTS_MAX
from oncelog.log.stored.segment_index import SegmentIndex
from oncelog.settings import LogSettings
from tests.log.shop import in_memory


def test_places_are_those_that_one_position_has_and_pages_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of rows of many segments: the work does not grow with the segments, and gaps are told as gaps."""
    shop = in_memory()
    log = shop.log(LogSettings(segment_age_s=0.001, seal="off", snapshot_interval_s=1e6))
    count = INLINE_SEGMENTS_MAX + 600
    with log.writer() as writer:
        for number in range(count):
            writer.append(b"x", id=str(number))
            shop.clock.advance(1)
        run = writer._run
        assert run.known.manifest.pages, "old segments are in pages"
        positions = np.random.default_rng(0).permutation(np.arange(-1, count))
        told = run.places_of(positions)
        one_by_one = [run.place_of(p) if p >= 0 else (None, None) for p in positions.tolist()]
        expected = [(-1, -1) if segment is None else (segment, entry) for segment, entry in one_by_one]
        assert list(zip(told.segments.tolist(), told.entries.tolist(), strict=True)) == expected
        filled: list[object] = []
        index = SegmentIndex(run._manifests)
        fill = SegmentIndex._fill

        def noted(*given: Any) -> None:
            filled.append(given)
            fill(*given)

        monkeypatch.setattr(index, "_fill", noted)
        index.places(run.known.manifest, positions)
        assert len(filled) == len(run.known.manifest.pages) + 1, "one search a page, not one a segment"
