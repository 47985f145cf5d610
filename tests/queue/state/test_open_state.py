"""The state of queues is made by whoever makes a queue, and by nobody who looks."""

from __future__ import annotations

from pathlib import Path

import pytest

import oncelog
from oncelog import NotFound


def test_looking_for_queues_makes_no_state(tmp_path: Path) -> None:
    """Who misspells a path, or looks at a database that never had a queue, leaves nothing behind."""
    with oncelog.connect(tmp_path / "shop") as db:
        assert db.queues() == []
        with pytest.raises(NotFound, match="create=True makes it"):
            db.queue("emails")
        assert not (tmp_path / "shop").exists()
        db.queue("emails", create=True).send(b"welcome", id="user-7")
        assert db.queues() == ["emails"]
    with oncelog.connect(tmp_path / "shop") as db:
        assert db.queue("emails").send(b"welcome", id="user-7").duplicate


def test_a_queue_that_another_process_makes_later_is_seen(tmp_path: Path) -> None:
    """A handle that found no state looks again with the next call."""
    with oncelog.connect(tmp_path / "shop") as looking, oncelog.connect(tmp_path / "shop") as making:
        assert looking.queues() == []
        making.queue("emails", create=True)
        assert looking.queues() == ["emails"]
        assert looking.queue("emails").partitions == 1


def test_a_state_that_is_lost_is_said_and_not_made_again(tmp_path: Path) -> None:
    """The logs of a queue without its state are no empty queue: opening it says so, and makes no new state."""
    with oncelog.connect(tmp_path / "shop") as db:
        db.queue("emails", create=True).send(b"welcome", id="user-7")
    for file in (tmp_path / "shop" / "queues").iterdir():
        file.unlink()
    with oncelog.connect(tmp_path / "shop") as db:
        with pytest.raises(NotFound, match="not what became of their messages"):
            db.queue("emails")
        assert list((tmp_path / "shop" / "queues").iterdir()) == []
