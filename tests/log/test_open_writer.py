"""Becoming a writer: a log that somebody else took meanwhile is not opened under that other writer's epoch."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.connect import Database
from oncelog.errors import NotFound, WriterFenced
from oncelog.log.takeover import recovery
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
