"""Adoption where it meets scale, lost answers and other processes: files by the hundred, rows by the million."""

from __future__ import annotations

import contextlib
import itertools
import os

import numpy as np
import pytest

from oncelog.errors import (
    CorruptionError,
    IdConflict,
    PartialOverlap,
)
from oncelog.format.identities import Identities
from oncelog.limits import KIB
from oncelog.log.stored import adopted_ids
from oncelog.log.stored import manifests as manifests_module
from oncelog.log.stored.staged import Staged
from oncelog.settings import LogSettings, Window
from oncelog.storage.memory import MemoryHome, MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.faults import Killed, When
from oncelog.testing.storage import FaultyStorage
from oncelog.types import Record
from tests.log.ingest.adoption import adopt, overlap
from tests.log.shop import (
    SETTINGS,
    Shop,
    append,
    entries,
    known,
    plain,
    record,
    stage,
    stage_many,
    values,
)
from tests.log.worlds import LOG, DiskWorld, living, read

SOAK = os.environ.get("ONCELOG_SOAK") == "1"
MANY = 1_000_000 if SOAK else 200_000


def test_one_manifest_version_makes_it_all_visible(shop: Shop) -> None:
    """Adoption is one step: closing what was open, all the files, and the next segment, in one version."""
    log = shop.log(SETTINGS)
    other = shop.log()
    with log.writer() as writer, other.tail("earliest") as tail:
        append(writer, record(1))
        files = [stage(log, plain([2])), stage(log, plain([3]))]
        assert tail.poll() is not None
        assert tail.poll() is None, "what is staged is not there yet"
        version = known(log).version
        adopt(writer, files)
        assert known(log).version == version + 1
        assert [entry.value if (entry := tail.poll()) else None for _ in range(2)] == [
            each.value for each in plain([2, 3])
        ]
        append(writer, record(5))
        entry = tail.poll()
        assert entry is not None
        assert entry.position == 3


def test_adopt_append_and_roll(quick: Shop) -> None:
    """After an adoption the writer goes on, through as many segments as it takes, and adopts again."""
    log = quick.log(SETTINGS)
    numbers = iter(range(1000))
    sent: list[Record] = []
    with log.writer() as writer:
        for _ in range(4):
            staged = plain([next(numbers) for _ in range(5)])
            assert adopt(writer, [stage(log, staged)]) == [len(sent)]
            appended = plain([next(numbers) for _ in range(4)], 30 * KIB)
            assert [append(writer, each).position for each in appended] == list(range(len(sent) + 5, len(sent) + 9))
            sent += [*staged, *appended]
    assert values(log) == [each.value for each in sent]
    assert log.info().segments > 8
    with log.writer() as writer:
        assert all(append(writer, each).duplicate for each in sent)
    assert log.verify().findings == ()


def test_what_is_pending_is_stored_before_files_are_adopted(quick: Shop) -> None:
    """Records that were submitted first come first, and nobody's position is given twice."""
    log = quick.log(SETTINGS)
    with log.writer() as writer:
        futures = [writer.submit(each.value, id=each.id) for each in plain(range(20))]
        assert adopt(writer, [stage(log, plain([100]))]) == [20]
        assert [future.result().position for future in futures] == list(range(20))
    assert len(values(log)) == 21


@pytest.mark.parametrize("files", [1, 7, 20])
def test_many_files_at_once(shop: Shop, monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    """However many there are, also more than a manifest keeps in its body, each gets its place and the writer goes
    on.
    """
    monkeypatch.setattr(manifests_module, "INLINE_SEGMENTS_MAX", 6)
    monkeypatch.setattr(manifests_module, "PAGE_SEGMENTS", 3)
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        staged = [stage(log, plain([10 * number, 10 * number + 1])) for number in range(files)]
        assert adopt(writer, staged) == list(range(0, 2 * files, 2))
        assert writer.append(b"after", id="after").position == 2 * files
        for number in range(files):
            assert append(writer, plain([10 * number + 1])[0]).position == 2 * number + 1
        assert writer.last_position == 2 * files
    assert len(values(log)) == 2 * files + 1
    assert log.verify().findings == ()


def test_a_million_adopted_rows_do_not_push_a_fresh_id_out(quick: Shop) -> None:
    """The window's keys are for what is appended: a bulk load of any size costs none of them."""
    log = quick.log(LogSettings(window=Window(duration_s=1000, max_keys=5), seal="off"))
    with log.writer() as writer:
        fresh = writer.append(b"fresh", id="fresh")
        bulk = stage_many(log, 0, MANY)
        assert adopt(writer, [bulk]) == [1]
        assert writer.append(b"fresh", id="fresh").position == fresh.position
        assert writer.window_state["keys"] == 1
        assert writer.append(f"adopted-{MANY - 1}".encode(), id=f"adopted-{MANY - 1}").position == MANY
        assert [len(rows) for rows in overlap(writer, [bulk])] == [MANY]
    quick.lose_snapshots()
    log = quick.log()
    with log.writer() as writer:
        assert writer.append(b"fresh", id="fresh").duplicate
        assert writer.append(b"adopted-7", id="adopted-7").position == 8
        with pytest.raises(IdConflict):
            writer.append(b"other", id="adopted-7")
    verified = log.verify()
    assert (verified.records, verified.findings) == (MANY + 1, ())


def test_the_same_file_twice(shop: Shop) -> None:
    """An adoption that is repeated is refused by its ids, also after a restart: there is one copy."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        file = stage(log, plain(range(3)))
        adopt(writer, [file])
        with pytest.raises(PartialOverlap):
            adopt(writer, [file])
    with shop.log().writer() as writer, pytest.raises(PartialOverlap):
        adopt(writer, [file])
    assert len(values(log)) == 3


def test_without_idempotence_nothing_overlaps(shop: Shop) -> None:
    """A log that keeps no window adopts what it is given; switched on later, it knows what came with ids."""
    log = shop.log(LogSettings(idempotence="off", seal="off"))
    with log.writer() as writer:
        file = stage(log, plain(range(3)))
        assert [rows.tolist() for rows in overlap(writer, [file])] == [[]]
        adopt(writer, [file])
    log.configure(SETTINGS)
    with log.writer() as writer:
        ack = append(writer, plain([1])[0])
        assert (ack.position, ack.duplicate) == (1, True)


def test_a_lost_answer_leaves_one_copy() -> None:
    """The version is created and the answer lost: looked up by its nonce, it is found to be ours."""
    clock = SimulatedClock()
    storage = FaultyStorage(MemoryStorage(clock=clock), duplicate_creates=True)
    shop = Shop(storage, clock)
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        assert adopt(writer, [stage(log, plain(range(3)))]) == [0]
        assert writer.append(b"x", id="x").position == 3
    assert len(values(log)) == 4


def test_a_staged_file_that_is_damaged(quick: Shop) -> None:
    """Its bytes are those that were staged, or nothing of it is believed: not by readers, not by ``verify``."""
    log = quick.log(SETTINGS)
    with log.writer() as writer:
        file = stage(log, plain(range(3)))
        damage(quick, file.key)
        adopt(writer, [file])
    with pytest.raises(CorruptionError):
        entries(log)
    assert not log.verify().ok


def damage(shop: Shop, key: str) -> None:
    """Change one byte of an object."""
    content = bytearray(shop.home.read(key).to_pybytes())
    content[len(content) // 2] ^= 1
    shop.home.delete(key)
    shop.home.create(key, [bytes(content)])


def test_identities_whose_halves_are_alike_are_told_apart() -> None:
    """Half of a hash says nothing: keys that share one are searched on until both halves match."""
    keys = np.array([[5, 9], [5, 1], [5, 4], [7, 1], [1, 1], [5, 6]], np.uint64)
    found = Identities.sorted(keys, np.arange(6, dtype=np.uint64), np.arange(6, dtype=np.uint32))
    assert found.rows.tolist() == [4, 1, 2, 5, 0, 3]
    at = adopted_ids.search(found, keys)
    assert found.rows[at].tolist() == list(range(6))
    missing = np.array([[5, 5], [5, 10], [0, 0], [7, 2], [9, 9]], np.uint64)
    assert adopted_ids.search(found, missing).tolist() == [-1] * 5
    assert adopted_ids.search(found, np.empty((0, 2), np.uint64)).tolist() == []


def test_staging_is_anybody_s(quick: Shop) -> None:
    """A process without the writer stages files while another one writes; only adoption needs the writer."""
    log = quick.log(SETTINGS)
    staged: list[Staged] = []
    with log.writer() as writer:
        for number in range(3):
            staged.append(stage(quick.log(), plain([number])))
            append(writer, plain([10 + number])[0])
        assert adopt(writer, staged) == [3, 4, 5]
    assert isinstance(quick.home, MemoryHome)
    assert len(values(log)) == 6


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_reader_saw_of_an_adoption_outlives_a_power_cut(when: When) -> None:
    """Visible means durable: where the adopter is killed, a reader that saw the records made sure that they stay."""
    seen_counts = set()
    for number in itertools.count(1):
        world = DiskWorld(number)
        with living(world) as born:
            log = world.database().log(LOG, SETTINGS, create=True)
            writer = born(log.writer(wait_s=0))
            append(writer, plain([0])[0])
            file = stage(log, plain(range(1, 4)))
            world.faults.kill_at(number, when)
            with contextlib.suppress(Killed):
                adopt(writer, [file])
            killed = world.faults.is_killed
        seen = read(world)
        world.end("none", number)
        assert read(world)[: len(seen)] == seen, f"killed {when} call {number}: taken back"
        seen_counts.add(len(seen))
        if not killed:
            break
    assert seen_counts == {1, 4}
