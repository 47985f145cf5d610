"""The connections that an inbox makes and keeps: each is used by the threads that may use it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from oncelog import Inbox, InvalidArgument, Unavailable
from oncelog.inbox.stores import connections


@pytest.fixture
def threads() -> Iterator[list[ThreadPoolExecutor]]:
    """Return executors of one thread each. All threads live until the end: no number of a thread is given twice."""
    with ExitStack() as stack:
        yield [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(3)]


def test_a_thread_gets_no_connection_that_only_another_may_use(
    tmp_path: Path, threads: list[ThreadPoolExecutor]
) -> None:
    """sqlite3 by default lets no thread use what another made: a worker would wait for its inbox for ever."""
    made: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        made.append(sqlite3.connect(tmp_path / "shop.db"))
        return made[-1]

    inbox = Inbox(connect)
    for _ in range(2):
        for thread in threads:
            thread.submit(inbox.ping).result()
    inbox.ping()
    inbox.close()
    assert len(made) == len(threads) + 1


def test_connections_of_single_threads_are_bounded(
    tmp_path: Path, threads: list[ThreadPoolExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that come and go leave no more than so many behind."""
    monkeypatch.setattr(connections, "_IDLE_MAX", 2)
    inbox = Inbox(lambda: sqlite3.connect(tmp_path / "shop.db"))
    for thread in threads:
        thread.submit(inbox.ping).result()
        assert len(inbox._home._idle) <= 2
    inbox.close()


def test_a_connection_by_url_is_for_every_thread(tmp_path: Path, threads: list[ThreadPoolExecutor]) -> None:
    """Those are made so: one is enough for threads that take turns."""
    inbox = Inbox(f"sqlite:///{tmp_path}/shop.db")
    for thread in threads:
        thread.submit(inbox.ping).result()
    assert len(inbox._home._idle) == 1
    inbox.close()


def _had(inbox: Inbox, key: str) -> bool:
    """Have an effect; return whether it was there already."""
    with inbox.once(key=key) as effect:
        return effect.done


def test_a_file_that_is_removed_comes_back_with_its_keys(tmp_path: Path) -> None:
    """While the file of an inbox is gone, nothing can be done, and no empty file takes its place: every effect would
    happen again. When it is put back, the inbox goes on, without a new process.
    """
    file, kept = tmp_path / "shop.db", tmp_path / "kept.db"
    with Inbox(f"sqlite:///{file}") as inbox:
        assert not _had(inbox, "one")
        file.rename(kept)
        for _ in range(3):
            with pytest.raises(Unavailable, match="moved"):
                _had(inbox, "two")
        assert not file.exists()
        kept.rename(file)
        assert [_had(inbox, key) for key in ("one", "two", "two")] == [True, False, True]


def test_a_file_that_is_replaced_is_opened_again(tmp_path: Path) -> None:
    """A copy takes the place of an inbox's file (a backup is restored, say). One effect says so; the next is there."""
    file = tmp_path / "shop.db"
    with Inbox(f"sqlite:///{file}") as inbox:
        assert not _had(inbox, "one")
        (tmp_path / "copy.db").write_bytes(file.read_bytes())
        (tmp_path / "copy.db").rename(file)
        with pytest.raises(Unavailable, match="replaced"):
            _had(inbox, "two")
        assert [_had(inbox, key) for key in ("one", "two", "two")] == [True, False, True]


def test_a_url_of_sqlite_names_a_file() -> None:
    """Each connection to ``:memory:`` is a database of its own: two threads would have one effect twice."""
    for url in ("sqlite:///", "sqlite:///:memory:"):
        with pytest.raises(InvalidArgument, match="names no file"):
            Inbox(url)
