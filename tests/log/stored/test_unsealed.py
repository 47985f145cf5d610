"""Which segments of a log are not sealed, while another process seals them."""

from __future__ import annotations

from unittest import mock

import pytest

from oncelog import LogSettings
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.log.stored import manifests
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.stored.unsealed import unsealed
from oncelog.storage.base import Unsealed
from oncelog.storage.memory import MemoryStorage

SEGMENTS = 12


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few segments fill a page."""
    monkeypatch.setattr(manifests, "INLINE_SEGMENTS_MAX", 4)
    monkeypatch.setattr(manifests, "PAGE_SEGMENTS", 2)


def test_a_page_that_is_replaced_between_two_reads_is_looked_for_again() -> None:
    """Another process seals after the manifest was read and before its pages are: the old pages are gone then."""
    storage = MemoryStorage()
    with Database(storage) as database:
        log = database.log("orders", LogSettings(seal="off"), create=True)
        for number in range(SEGMENTS):
            with log.writer() as writer:
                writer.append(b"x", id=str(number))
        home = storage.home("orders")
        before = unsealed(home, SYSTEM)
        assert before.first_open == len(before.closed) == SEGMENTS
        real = Manifests.newest
        paged: list[int] = []

        def newest(self: Manifests, known: Known | None = None) -> Known | None:
            found = real(self, known)
            if not paged and found is not None:
                paged.append(len(found.manifest.pages))
                log.seal()
            return found

        with mock.patch.object(Manifests, "newest", newest):
            assert unsealed(home, SYSTEM) == Unsealed(first_open=SEGMENTS)
        assert paged[0] > 1
