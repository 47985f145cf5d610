"""Becoming a writer: a log that somebody else took meanwhile is not opened under that other writer's epoch."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.connect import Database
from oncelog.errors import NotFound, WriterFenced
from oncelog.log import open_writer
from oncelog.log.takeover import recovery
from oncelog.settings import LogSettings
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage


def test_a_log_that_was_taken_during_recovery_is_not_opened(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery finds files gone and reads the newest manifest: it is that of another writer, who goes on alone."""
    with Database(ObjectStorage(memory_bucket)) as slow, Database(ObjectStorage(memory_bucket)) as quick:
        slow.log("orders", create=True)
        taken: list[Any] = []
        real = recovery.recover

        def recover(*args: Any, **kwargs: Any) -> Any:
            if not taken:
                taken.append(None)
                taken[0] = quick.log("orders").writer(takeover="force")
                message = "a file that the other writer has replaced"
                raise NotFound(message)
            return real(*args, **kwargs)

        monkeypatch.setattr(recovery, "recover", recover)
        with pytest.raises(WriterFenced):
            slow.log("orders").writer(takeover="force")
        with taken[0] as writer:
            assert not writer.append(b"x", id="1").duplicate


def test_settings_that_change_during_recovery_are_for_the_next_writer(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery found no ids, because the log kept none: a writer that gave out ids now would not recognise them."""
    with Database(ObjectStorage(memory_bucket)) as slow, Database(ObjectStorage(memory_bucket)) as quick:
        log = slow.log("orders", LogSettings(idempotence="off"), create=True)
        changed: list[str] = []
        real = open_writer.recovered_producers

        def recovered_producers(*args: Any) -> Any:
            if not changed:
                changed.append("content")
                quick.log("orders").configure(LogSettings(idempotence="content"))
                message = "a file that was replaced"
                raise NotFound(message)
            return real(*args)

        monkeypatch.setattr(open_writer, "recovered_producers", recovered_producers)
        with log.writer() as writer:
            writer.append(b"x")
        with log.writer() as writer:
            writer.append(b"x")
        assert [entry.id is None for entry in log.read()] == [True, False]
