"""Zeros ahead of a segment's end: nothing depends on them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from oncelog.limits import MIB
from oncelog.storage.local.disk import RealDisk
from oncelog.storage.local.filler import ZeroFiller


def test_without_a_thread_nothing_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started, an append goes on, and so does the end of the segment."""
    path = tmp_path / "segment"
    path.touch()
    filler = ZeroFiller(RealDisk(), path)

    def refuse(_: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        filler.fill_ahead(2 * MIB)
    filler.stop()
    assert path.stat().st_size == 0
