"""The base: what truncation takes out of the log and must not take out of its memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from oncelog.connect import Database
from oncelog.errors import Closed, CorruptionError
from oncelog.format import snapshot as snapshot_format
from oncelog.format.base import Base, decode, encode
from oncelog.format.manifest import Manifest
from oncelog.format.snapshot import ProducerMark
from oncelog.limits import KIB
from oncelog.log.log import Log
from oncelog.log.stored import bases, object_keys, snapshots
from oncelog.log.stored.manifests import Manifests
from oncelog.log.stored.segment_index import Places
from oncelog.log.upkeep import sealing
from oncelog.settings import LogSettings, ProducerPolicy, Window
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.faults import Killed, When
from tests.crash.test_log_ladder import ENDINGS, WHENS, climb, few, patiently
from tests.log.worlds import LOG, DiskWorld, Ending, MemoryWorld, World, living

SETTINGS = LogSettings(
    window=Window(duration_s=5.0), segment_bytes=64 * KIB, segment_age_s=1.0, snapshot_interval_s=1e6, seal="off"
)


def shop(settings: LogSettings = SETTINGS) -> tuple[SimulatedClock, Log]:
    """Return a log whose ids are soon forgotten, and its clock."""
    clock = SimulatedClock()
    return clock, Database(MemoryStorage(clock=clock), clock).log(LOG, settings, create=True)


def fill(clock: SimulatedClock, log: Log, first: int = 0) -> int:
    """Append by two producers, a segment a record, without ids; return the position behind it."""
    with log.writer() as w:
        for number in range(first, first + 3):
            w.append(b"x", producer="a", sequence=10 * number)
            clock.advance(2)
            w.append(b"x", producer="b", sequence=number, stream="s")
            clock.advance(2)
        w.append(b"plain")
        w.snapshot()
    return log.info().last_position + 1


def lose_snapshots(log: Log) -> None:
    """Delete every snapshot."""
    for key in log._home.list(snapshots.prefix(log.info().log_id)):
        log._home.delete(key)


def last(log: Log) -> dict[str, int]:
    """Return the last sequences."""
    return {name: mark.last_sequence for name, mark in log.producers().items()}


@pytest.mark.parametrize("seal", [False, True])
def test_everything_truncated_and_every_snapshot_gone_producers_are_still_known(*, seal: bool) -> None:
    """A retry from before a truncation is a duplicate for as long as its producer is remembered."""
    clock, log = shop()
    for round_ in range(3):
        end = fill(clock, log, 3 * round_)
        if seal:
            log.seal()
        assert log.truncate(end).first_position == end
        lose_snapshots(log)
        expected = 3 * round_ + 2
        assert last(log) == {"a": 10 * expected, "b": expected}
        with log.writer() as w:
            assert w.append(b"x", producer="a", sequence=10 * expected).duplicate
            assert w.append(b"x", producer="b", sequence=0).duplicate
    base = bases.load(log._home, log._manifest())
    assert base.streams == {"s": 9}
    assert [key for key in log._home.list(object_keys.PREFIX) if key.endswith(bases.SUFFIX)] == [log._manifest().base]
    assert log.verify().ok


def test_a_truncation_in_the_midst_of_a_segment_counts_what_it_takes() -> None:
    """A base stands for the records before its position, and for no other."""
    _, log = shop(LogSettings())
    with log.writer() as w:
        for number in range(10):
            w.append(b"x", producer="a", sequence=number)
        w.snapshot()
    assert log.truncate(4).first_position == 4
    assert bases.load(log._home, log._manifest()).producers["a"].last_sequence == 3
    lose_snapshots(log)
    assert last(log) == {"a": 9}


def test_a_log_without_labels_is_truncated_without_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What uses neither producers nor streams pays nothing for those who do."""
    clock, log = shop()
    with log.writer() as w:
        for number in range(5):
            w.append(b"x", id=str(number))
            clock.advance(2)
        clock.advance(10)
        w.append(b"last")
    assert log._manifest().labels == 0
    monkeypatch.setattr(bases, "rows_of", None)
    assert log.truncate(5).first_position == 5
    assert log._manifest().base is None


@pytest.mark.parametrize("damage", ["lost", "flipped", "of another log"])
def test_a_base_that_is_lost_or_damaged_is_never_read_as_an_empty_one(damage: str) -> None:
    """Nothing can rebuild it: stop and look, instead of taking every retry for new."""
    clock, log = shop()
    log.truncate(fill(clock, log))
    lose_snapshots(log)
    home, key = log._home, log._manifest().base
    assert key is not None
    content = bytearray(home.read(key).to_pybytes())
    home.delete(key)
    if damage == "flipped":
        content[-3] ^= 1
        home.create(key, [content])
    elif damage == "of another log":
        home.create(key, [encode(Base(log_id="other", position=0))])
    with pytest.raises(CorruptionError):
        log.writer()
    with pytest.raises(CorruptionError):
        log.producers()
    verified = log.verify()
    assert not verified.ok
    assert any(finding.where == key for finding in verified.findings)


def test_a_snapshot_that_tells_another_sequence_is_found() -> None:
    """Verifying holds what a snapshot says of producers against their records."""
    _, log = shop(LogSettings())
    with log.writer() as w:
        w.append(b"x", producer="a", sequence=7)
        w.append(b"x", producer="b", sequence=1)
        w.snapshot()
    assert log.verify().ok
    home = log._home
    (key,) = home.list(snapshots.prefix(log.log_id))
    taken = snapshot_format.decode(home.read(key), key)
    wrong = msgspec.structs.replace(taken, producers={**taken.producers, "a": ProducerMark(9, 0, 0)})
    home.delete(key)
    home.create(key, snapshot_format.encode(wrong))
    (finding,) = log.verify().findings
    assert finding.severity == "error"
    assert "'a'" in finding.what


def test_every_byte_of_a_base_counts() -> None:
    """A flipped byte is an error, never another sequence."""
    base = Base(log_id="log", position=9, producers={"p": ProducerMark(7, 8, 9)}, streams={"s": 4})
    data = encode(base)
    assert decode(data, "base") == base
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x40
        with pytest.raises(CorruptionError):
            decode(bytes(changed), "base")


def test_a_base_that_was_left_behind_is_swept_away() -> None:
    """A truncation that was killed behind its base leaves a file nobody refers to, which goes by age."""
    clock, log = shop()
    fill(clock, log)
    manifest = log._manifest()
    everybody = bases.Remembering(ProducerPolicy(), lambda _: {})
    key = bases.write(log._home, log._manifests, manifest, clock, manifest.next_position, remembering=everybody)
    assert key is not None
    clock.advance(3 * 86_400)
    log.truncate(manifest.next_position)
    assert sealing.sweep(log._home, Manifests(log._home, clock), clock) == [key]
    assert last(log) == {"a": 20, "b": 2}


def one_each(clock: SimulatedClock, log: Log, names: Sequence[str], sequence: int = 0) -> int:
    """Append by producers, one after the other, a segment a record; return the position behind it."""
    with log.writer() as w:
        for name in names:
            w.append(b"x", producer=name, sequence=sequence)
            clock.advance(2)
        clock.advance(10)
        w.append(b"plain")
        clock.advance(10)
    return log.info().last_position + 1


def in_base(log: Log) -> list[str]:
    """Return the producers that the base has."""
    return list(bases.load(log._home, log._manifest()).producers)


def test_a_base_forgets_whom_the_policy_forgets() -> None:
    """It does not grow for ever with names that come once; a producer that a writer would remember stays."""
    policy = ProducerPolicy(max_producers=3, inactive_s=100.0)
    clock, log = shop(msgspec.structs.replace(SETTINGS, producers=policy))
    log.truncate(one_each(clock, log, [f"p{number}" for number in range(8)]))
    assert in_base(log) == ["p5", "p6", "p7"]
    clock.advance(80)
    log.truncate(one_each(clock, log, ["p6"], sequence=1))
    lose_snapshots(log)
    with log.writer() as w:
        assert w.append(b"x", producer="p5", sequence=0).duplicate, "the least recently active is still remembered"
        clock.advance(80)
        assert w.append(b"x", producer="p6", sequence=1).duplicate
    log.truncate(one_each(clock, log, ["late"]))
    assert set(in_base(log)) <= {"p5", "p6", "late"}
    assert "p7" not in in_base(log), "a hundred seconds of up-time have passed"


@pytest.mark.parametrize("writing", [True, False])
def test_a_base_keeps_who_is_active_without_storing_anything(*, writing: bool) -> None:
    """A producer that only sends again what is known is remembered by its writer, so also behind a truncation."""
    policy = ProducerPolicy(inactive_s=100.0)
    clock, log = shop(msgspec.structs.replace(SETTINGS, producers=policy))
    one_each(clock, log, ["faithful", "gone"])
    with log.writer() as w:
        for _ in range(4):
            clock.advance(40)
            assert w.append(b"x", producer="faithful", sequence=0).duplicate
            w.append(b"plain")
        end = w.last_position
        if writing:
            log.truncate(end)
        else:
            w.snapshot()
    if not writing:
        log.truncate(end)
    assert in_base(log) == ["faithful"]
    lose_snapshots(log)
    with log.writer() as w:
        assert w.append(b"x", producer="faithful", sequence=0).duplicate


def test_who_was_forgotten_is_not_noted_for_ever() -> None:
    """Once a base stands for all that a forgotten producer stored, nothing need be said of it any more."""
    clock, log = shop()
    one_each(clock, log, ["a", "b"])
    assert log.forget_producer("a")
    assert len(log._manifest().forgotten) == 1
    log.truncate(one_each(clock, log, ["b"], sequence=1))
    assert log._manifest().forgotten == ()
    lose_snapshots(log)
    with log.writer() as w:
        assert not w.append(b"x", producer="a", sequence=0).duplicate
        assert w.append(b"x", producer="b", sequence=1).duplicate


def test_a_base_stands_for_those_that_nobody_remembers() -> None:
    """Where the truncated records told of a producer that is forgotten, the base before would not know that they did:
    an old snapshot would be taken for newer than it, and bring back what it knew.
    """
    clock, log = shop()
    end = one_each(clock, log, ["a"])
    assert log.forget_producer("a")
    assert log.truncate(end).first_position == end
    base = bases.load(log._home, log._manifest())
    assert (base.position, base.producers) == (end, {})
    with log.writer() as w:
        assert not w.append(b"x", producer="a", sequence=0).duplicate


def test_the_places_of_what_was_truncated_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer may send again thousands of records that are gone: a look at the manifest for each takes hours."""
    clock, log = shop()
    end = fill(clock, log)
    log.truncate(end - 3)
    with log.writer() as w:
        w.append(b"new")
        positions = np.arange(-2, end + 1)
        expected = [w._run.place_of(position) if position >= 0 else (None, None) for position in positions.tolist()]
        looked: list[Manifest] = []
        look = w._run._index.places

        def noted(manifest: Manifest, wanted: NDArray[np.int64]) -> Places:
            looked.append(manifest)
            return look(manifest, wanted)

        monkeypatch.setattr(w._run._index, "places", noted)
        segments, entries, _, _ = w._run.places_of(positions)
    assert list(zip(segments.tolist(), entries.tolist(), strict=True)) == [
        (-1, -1) if place[0] is None else place for place in expected
    ]
    assert len(looked) == 1, "one look at what is gone"


# Killed at every call.


def work(world: World, born: Callable[..., object], told: dict[str, int]) -> None:
    """Append by producers, forget ids, truncate, twice. ``told`` is what was acknowledged."""
    database = world.database()
    log = patiently(lambda: database.log(LOG, SETTINGS, create=True))
    for round_ in range(2):
        write(world, log, born, told, round_)
        end = patiently(log.info).last_position
        patiently(partial(log.truncate, end))


def write(world: World, log: Log, born: Callable[..., object], told: dict[str, int], round_: int) -> None:
    """Append as a process does that comes and goes."""
    writer = patiently(lambda: log.writer(wait_s=0))
    born(writer)
    for number in range(2 * round_, 2 * round_ + 2):
        for name in ("a", "b"):
            known = told.get(name, -1)
            ack = writer.append(b"x", producer=name, sequence=number, timeout_s=None)
            assert ack.duplicate == (number <= known)
            told[name] = max(known, number)
            world.clock.advance(2)
    world.clock.advance(10)
    writer.append(b"last", timeout_s=None)
    if round_ == 1:
        patiently(writer.snapshot)
    patiently(lambda: writer.close(timeout_s=None))


def rung(world: World, number: int, when: When, ending: Ending) -> bool:
    """Climb one rung: killed at a call, ended, and then everything that was acknowledged is remembered, exactly."""
    told: dict[str, int] = {}
    before = world.faults.calls
    with living(world) as born:
        world.faults.kill_at(number, when)
        with contextlib.suppress(Killed, Closed):
            work(world, born, told)
        touched = world.faults.calls - before >= number
    world.end(ending, seed=number)
    with living(world) as born:
        log = world.database().log(LOG, SETTINGS, create=True)
        if number % 2:
            lose_snapshots(log)
        with log.writer(wait_s=0):  # which decides what was in flight
            stored = last(log)
        for name, sequence in told.items():
            assert stored[name] in (sequence, sequence + 1), f"{name}: told {sequence}, remembered {stored}"
        work(world, born, dict(stored))
        log = world.database().log(LOG)
        sent = [(entry.producer, entry.sequence) for entry in log.read() if entry.producer]
        assert len(sent) == len(set(sent)), "a sequence is there twice"
        assert last(log) == {"a": 3, "b": 3}
        assert log.verify().ok
    return touched


@pytest.mark.parametrize("ending", ENDINGS)
def test_killed_while_truncating_on_a_disk(ending: Ending) -> None:
    """Wherever the power goes between base, manifest and deletion, producers are remembered."""
    climb(lambda n: rung(DiskWorld(n), n, WHENS[n // 5 % 3], ending), *few(ENDINGS.index(ending) * 37, 149))


@pytest.mark.parametrize("when", WHENS)
def test_killed_while_truncating_in_any_home(when: When) -> None:
    """The same where the home is anything that keeps the contract."""
    climb(lambda n: rung(MemoryWorld(n), n, when, "crash"), *few(WHENS.index(when), 37))


def test_a_truncation_that_forgets_the_base_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: without a base, what was truncated is forgotten, and the ladder finds that."""
    monkeypatch.setattr(bases, "write", lambda *_, **__: None)
    with pytest.raises((AssertionError, KeyError)):
        climb(lambda n: rung(MemoryWorld(n), n, "before", "crash"), 1, 7)
