"""A storage that fails when it is told to, and tells the truth about it."""

from __future__ import annotations

import pytest

from oncelog.errors import LogBusy, Unavailable
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.blocks import BlockChain
from oncelog.testing.faults import Killed
from oncelog.testing.storage import FaultyStorage
from oncelog.testing.writing import read_all


def test_a_failure_before_leaves_nothing_and_one_after_everything() -> None:
    """The outcome that an error names is the one that happened, or may have."""
    storage = FaultyStorage(MemoryStorage())
    home = storage.home("orders")
    storage.fail_at(1, "before")
    with pytest.raises(Unavailable) as before:
        home.create("x", [b"1"])
    assert (before.value.outcome, home.exists("x")) == ("not written", False)
    storage.fail_at(1, "after")
    with pytest.raises(Unavailable) as after:
        home.create("x", [b"1"])
    assert (after.value.outcome, home.exists("x")) == ("unknown", True)
    assert not home.create("x", [b"1"])


def test_a_lost_answer_to_an_append() -> None:
    """The block is there once, and offered again it is recognised."""
    storage = FaultyStorage(MemoryStorage())
    home = storage.home("orders")
    writer, chain = home.start_segment(0, 1), BlockChain(0)
    block = chain.block(b"one")
    storage.fail_at(1, "after")
    with pytest.raises(Unavailable):
        writer.append(0, block)
    writer.append(0, block)
    assert read_all(home, 0, None) == chain.made


def test_killed_and_started_again() -> None:
    """A dead process answers nothing and gives nothing back; started again, its locks are free."""
    inner = MemoryStorage()
    storage = FaultyStorage(inner)
    home = storage.home("orders")
    claim = home.claim(0, force=False)
    storage.kill_at(1, "after")
    with pytest.raises(Killed):
        home.create("x", [b"1"])
    with pytest.raises(Killed):
        home.exists("x")
    claim.release()
    with pytest.raises(LogBusy):
        inner.home("orders").claim(0, force=False)
    storage.restart()
    assert home.exists("x")
    inner.home("orders").claim(0, force=False).release()


def test_a_create_that_is_sent_twice() -> None:
    """The object is ours though the answer says that it was there: only its content tells."""
    home = FaultyStorage(MemoryStorage(), duplicate_creates=True).home("orders")
    assert not home.create("x", [b"mine"])
    assert home.read("x").to_pybytes() == b"mine"


def test_failing_until_healed() -> None:
    """A predicate makes every operation of a kind fail until the storage is healed."""
    storage = FaultyStorage(MemoryStorage())
    home = storage.home("orders")
    storage.faults.fail_forever(lambda operation, _: Unavailable("away") if operation == "read" else None)
    home.create("x", [b"1"])
    for _ in range(3):
        with pytest.raises(Unavailable, match="away"):
            home.read("x")
    storage.faults.heal()
    assert home.read("x").to_pybytes() == b"1"
    assert storage.faults.operations == ["create", "read", "read", "read", "read"]
