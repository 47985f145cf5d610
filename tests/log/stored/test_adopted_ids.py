"""The identities of adopted files: found in few runs as in many files, forgotten in time, and not read twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from oncelog.format.identities import Identities
from oncelog.format.manifest import Segment
from oncelog.log.stored.adopted_ids import PIECES_MIN, Adopted
from oncelog.log.takeover import recovery
from tests.log.shop import SETTINGS, Shop, plain, stage

DURATION_US = 10


def keys_of(numbers: list[int]) -> NDArray[np.uint64]:
    """Return identities whose halves are often alike, as those of real ids hardly ever are."""
    return np.array([[number // 3, number % 7] for number in numbers], np.uint64).reshape(-1, 2)


def segment(number: int, first_position: int, entries: int, uptime_us: int) -> Segment:
    """Return an adopted segment."""
    stored_us = 1000 + number
    place = (number, first_position, entries, 1, 0, 0, 0)
    return Segment(*place, stored_us, stored_us, uptime_us, 0, identities=f"{number}.ids")


@given(st.lists(st.sets(st.integers(0, 40), max_size=12), max_size=40), st.integers(0, 3))
def test_runs_find_what_files_hold(files: list[set[int]], step_us: int) -> None:
    """However many files there are, and however their runs are merged: the newest that is not too old is found."""
    adopted = Adopted(DURATION_US)
    expected: dict[tuple[int, int], tuple[int, int, int]] = {}
    position = uptime_us = 0
    everything = keys_of(list(range(45)))
    for number, numbers in enumerate(files):
        uptime_us += step_us
        adopted.evict(uptime_us)
        expected = {key: found for key, found in expected.items() if found[2] + DURATION_US > uptime_us}
        fresh = [one for one in sorted(numbers) if tuple(keys_of([one])[0].tolist()) not in expected]
        unique = {tuple(keys_of([one])[0].tolist()): one for one in fresh}
        keys = keys_of(list(unique.values()))
        fingerprints = np.arange(len(keys), dtype=np.uint64) + np.uint64(100 * number)
        file = segment(number, position, len(keys), uptime_us)
        adopted.add(file, Identities.sorted(keys, fingerprints, np.arange(len(keys), dtype=np.uint32)))
        for row, key in enumerate(unique):
            expected[key] = (position + row, 100 * number + row, uptime_us)
        position += len(keys)
        found = adopted.find(everything)
        for key, at, fingerprint in zip(everything.tolist(), found.positions, found.fingerprints, strict=True):
            known = expected.get((key[0], key[1]))
            assert (int(at), int(fingerprint)) == ((-1, 0) if known is None else known[:2])
    assert bool(adopted) == bool(files)


def test_few_runs_hold_many_files(quick: Shop) -> None:
    """A thousand files are not searched one by one."""
    adopted = Adopted(DURATION_US)
    for number in range(1000):
        keys = np.array([[number * 7919 % 1000, number]], np.uint64)
        identities = Identities.sorted(keys, np.zeros(1, np.uint64), np.zeros(1, np.uint32))
        adopted.add(segment(number, number, 1, 0), identities)
    found = adopted.find(np.array([[number * 7919 % 1000, number] for number in range(1000)], np.uint64))
    assert found.positions.tolist() == list(range(1000))
    assert len(adopted._pieces) <= PIECES_MIN + 3


def test_the_next_writer_reads_what_is_new(quick: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that lets the log go after every batch does not read all identities again for the next one."""
    read: list[int] = []
    load = recovery._identities

    def counting(*arguments: object) -> Identities:
        read.append(1)
        return load(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(recovery, "_identities", counting)
    log, other = quick.log(SETTINGS), quick.log(SETTINGS)
    for number in range(20):
        with log.writer() as writer:
            writer.ingest([stage(log, plain([number]))])
            assert writer.append(b"0:......", id="id-0").duplicate
    assert len(read) == 0
    with other.writer() as writer:
        writer.ingest([stage(other, plain([100]))])
    assert len(read) == 20
    with log.writer() as writer:
        assert writer.append(b"100:....", id="id-100").position == 20
        assert writer.ingest([stage(log, plain(range(20)))]).duplicates == 20
    assert len(read) == 21
