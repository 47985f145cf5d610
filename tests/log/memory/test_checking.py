"""Verification finds what is wrong with a run, whatever it is."""

from __future__ import annotations

import msgspec
import pytest

from oncelog.dedup.runs import filters
from oncelog.errors import CorruptionError, OncelogError
from oncelog.format.runs.run import Digest
from oncelog.log.memory.checking import check_run
from oncelog.log.memory.objects import RunObjects
from oncelog.storage.memory import MemoryStorage
from tests.log.memory.ids import Ids


def test_the_digest_is_that_of_the_log() -> None:
    """Summed over the records of the log in any order, from the first position on that is not truncated."""
    home = MemoryStorage().home("shop")
    ids = Ids.random(1, 5000, 700)
    run = ids.stored(home, "sealed/1")
    entries = ids.entries()
    assert check_run(RunObjects(home), run) == entries.digest().moved(5000)
    assert check_run(RunObjects(home), run, 5200) == entries[entries.positions >= 200].digest().moved(5000)


def test_every_changed_byte_is_found() -> None:
    """In head, filter, index, pages and times: all but padding."""
    home = MemoryStorage().home("shop")
    run = Ids.random(5, 0, 50).stored(home, "sealed/1")
    for key in list(run.keys()):
        whole = bytearray(home.read(key).to_pybytes())
        used = len(bytes(whole[:4096]).rstrip(b"\0"))
        for at in [*range(0, used, 3), *range(4096, 8192, 13)]:
            whole[at] ^= 1 << at % 8
            home.delete(key)
            home.create(key, [bytes(whole)])
            try:
                check_run(RunObjects(home), run)
                assert not whole[at] & ~(1 << at % 8), f"{key}, byte {at}"  # zero: padding behind the head
            except OncelogError:
                pass
            whole[at] ^= 1 << at % 8
        home.delete(key)
        home.create(key, [bytes(whole)])
    check_run(RunObjects(home), run)


def test_a_filter_that_lacks_a_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are what was written, and were written wrong."""
    home = MemoryStorage().home("shop")
    real = filters.add
    monkeypatch.setattr(filters, "add", lambda words, high, low, bits: real(words, high[1:], low[1:], bits))
    run = Ids.random(1, 0, 50).stored(home, "sealed/1")
    monkeypatch.undo()
    with pytest.raises(CorruptionError, match="does not pass the filter"):
        check_run(RunObjects(home), run)


def test_what_the_manifest_says_is_held_against_the_run() -> None:
    """Another digest, another count, a range that is too short."""
    home = MemoryStorage().home("shop")
    run = Ids.random(1, 0, 50).stored(home, "sealed/1")
    changes = [
        (msgspec.structs.replace(run, digest=Digest(1, 2)), "do not add up"),
        (msgspec.structs.replace(run, ids=51), "do not add up"),
        (msgspec.structs.replace(run, next_position=49), "outside the range"),
    ]
    for changed, match in changes:
        with pytest.raises(CorruptionError, match=match):
            check_run(RunObjects(home), changed)


def test_memory_does_not_matter() -> None:
    """A run of many pages is read a few at a time, and its order is checked across them."""
    home = MemoryStorage().home("shop")
    run = Ids.random(1, 0, 20_000).stored(home, "sealed/1")
    assert check_run(RunObjects(home), run).weights == run.digest.weights
