"""Storing blocks: what goes wrong while nobody waits is told."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import oncelog
from oncelog import Unavailable


def test_an_outage_of_storage_is_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    """A line when storage begins to fail, one when it takes blocks again; neither names the record, which is stored."""
    caplog.set_level(logging.INFO, "oncelog.log")
    with oncelog.connect("memory://") as db, db.log("orders", create=True).writer() as writer:
        writer.append(b"first")
        segment: Any = writer._run._segment_writer
        store, failures = segment.append, [Unavailable("disk full")] * 3

        def failing(*given: Any) -> int:
            if failures:
                raise failures.pop()
            return int(store(*given))

        segment.append = failing
        assert writer.submit(b"secret", id="someone").result(60).position == 1
    lines = [(line.levelname, line.getMessage()) for line in caplog.records if line.name == "oncelog.log"]
    assert [level for level, _ in lines] == ["WARNING", "INFO"]
    assert lines[0][1].endswith("fails, and is tried again: disk full")
    assert "someone" not in caplog.text
    assert "secret" not in caplog.text
