"""Workers have their effects where inboxes are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog import Database, Queue, QueueSettings, RetryPolicy
from tests.inbox.conftest import database, kind

__all__ = ["database", "kind"]

PROMPT = QueueSettings(retry=RetryPolicy(max_attempts=3, backoff_s=0.0, max_backoff_s=0.0, jitter=0.0))


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Return a database on a disk."""
    with oncelog.connect(f"file://{tmp_path}/db") as opened:
        yield opened


@pytest.fixture
def queue(db: Database) -> Queue:
    """Return a queue that retries at once."""
    return db.queue("emails", PROMPT, create=True)
