"""The upkeep of rows that were put aside: they are put together, verified and let go as the log's own are."""

from __future__ import annotations

import itertools
from contextlib import suppress

import msgspec
import pytest

from oncelog.errors import Unsupported
from oncelog.log.log import Log
from oncelog.log.stored import manifests
from oncelog.log.stored.object_keys import STAGED_S
from oncelog.settings import LogSettings, Window
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.faults import Killed
from oncelog.testing.storage import FaultyStorage
from oncelog.types import Record
from tests.log.shop import HOUR_S, LOG, SETTINGS, Shop, known, stage, values

SHORT = msgspec.structs.replace(SETTINGS, retention_s=HOUR_S, window=Window(duration_s=60, max_keys=10_000))


def put_aside(log: Log, *others: str) -> None:
    """Ingest batches of two rows each, of which the second has the id of the first."""
    for other in others:
        with log.writer() as writer:
            rows = [Record(b"first", id=f"id-{other}"), Record(other.encode(), id=f"id-{other}")]
            writer.ingest([stage(log, rows)], None)


def shop_with_conflicts(shop: Shop, *others: str, settings: LogSettings = SETTINGS) -> tuple[Log, Log]:
    """Return a log and what was put aside, a file for each."""
    log = shop.log(settings)
    put_aside(log, *others)
    return log, shop.process().log(f"conflicts.{LOG}")


def files(log: Log) -> set[str]:
    """Return the keys of a log's sealed files, and of the identities beside them."""
    segments = known(log).manifest.segments
    return {segment.file.key for segment in segments if segment.file is not None} | {
        segment.identities for segment in segments if segment.identities is not None
    }


def grow_old(shop: Shop, log: Log, seconds: float) -> None:
    """Let time pass, with somebody holding the log."""
    with log.writer():
        shop.clock.advance(seconds)


def test_small_files_become_one(shop: Shop) -> None:
    """Nothing is lost or moved, what comes again is still known, and the files before are gone."""
    log, aside = shop_with_conflicts(shop, "a", "b", "c")
    before = {key for key in files(aside) if key.endswith(".parquet")}
    assert aside.seal().segments == 3
    assert [entry.position for entry in aside.read()] == [0, 1, 2]
    assert not before & set(shop.home.list("sealed/"))
    put_aside(log, "b", "d")
    assert values(shop.process().log(f"conflicts.{LOG}")) == [b"a", b"b", b"c", b"d"]
    assert values(log) == [b"first"] * 4
    assert log.verify().ok


def test_writer_goes_on_where_another_put_conflicts_together(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it knew of them was written again meanwhile: it looks again."""
    monkeypatch.setattr(manifests, "PAGE_SEGMENTS", 2)
    monkeypatch.setattr(manifests, "INLINE_SEGMENTS_MAX", 3)
    log, aside = shop_with_conflicts(shop, *"abcdefgh")
    with log.writer() as writer:
        aside.seal()
        rows = [Record(b"first", id="id-z"), Record(b"z", id="id-z")]
        writer.ingest([stage(log, rows)], None)
    assert values(shop.process().log(f"conflicts.{LOG}")) == [bytes([one]) for one in b"abcdefghz"]


def test_old_conflicts_go_as_the_log_says(quick: Shop) -> None:
    """By retention or by hand; not within the window, nor the newest: numbers go on from it."""
    log, aside = shop_with_conflicts(quick, "a", "b", settings=SHORT)
    gone = files(aside)
    held = aside.truncate(before=1)
    assert (held.first_position, held.held_by) == (0, "window")
    grow_old(quick, log, 2 * HOUR_S)
    put_aside(log, "c")
    assert aside.retain().first_position == 2
    assert (values(aside), aside.info().first_position) == ([b"c"], 2)
    grow_old(quick, log, 2 * HOUR_S)
    held = aside.truncate(before=3)
    assert (held.first_position, held.held_by) == (2, "open segment")
    put_aside(log, "d")
    log.retain()
    assert [(entry.position, entry.value) for entry in aside.read()] == [(3, b"d")]
    assert not gone & set(quick.home.list("sealed/"))
    assert log.verify().ok


def test_the_log_is_verified_with_its_conflicts(quick: Shop) -> None:
    """A file of conflicts that is gone, or whose identities are, is told with the log."""
    log, aside = shop_with_conflicts(quick, "a", "b")
    assert log.verify().ok
    first, second = known(aside).manifest.segments
    assert first.file is not None
    assert second.identities is not None
    quick.home.delete(first.file.key)
    quick.home.delete(second.identities)
    found = quick.log().verify()
    assert not found.ok
    places = [(finding.severity, finding.where) for finding in found.findings]
    assert {("error", "conflicts, segment 0"), ("warning", f"conflicts, {second.identities}")} <= set(places)
    assert not quick.process().log(f"conflicts.{LOG}").verify().ok


def test_nothing_of_the_log_goes_by_its_conflicts(quick: Shop) -> None:
    """Old files of the log are no orphans to who looks after its conflicts, and a lease holds nothing of it."""
    log, aside = shop_with_conflicts(quick, "a")
    quick.clock.advance(3 * STAGED_S)
    aside.seal()
    assert aside.sweep() == []
    with pytest.raises(Unsupported, match="without a lease"):
        aside.read(lease_s=10)
    assert values(log) == [b"first"]


def test_upkeep_that_is_killed_loses_nothing() -> None:
    """Killed at steps of putting together and letting go, the next one finds all that is to be kept."""
    for step in itertools.count(1, 2):
        clock = SimulatedClock()
        storage = FaultyStorage(MemoryStorage(clock=clock))
        shop = Shop(storage, clock)
        log, aside = shop_with_conflicts(shop, "a", "b", settings=SHORT)
        grow_old(shop, log, 2 * HOUR_S)
        put_aside(log, "c", "d")
        storage.faults.kill_at(step, "after")
        with suppress(Killed):
            aside.seal()
            aside.truncate(before=2)
        killed = storage.faults.is_killed
        storage.faults.heal()
        later = shop.process().log(f"conflicts.{LOG}")
        assert values(later)[-2:] == [b"c", b"d"]
        assert shop.log().verify().ok
        later.truncate(before=2)
        assert values(later) == [b"c", b"d"]
        if not killed:
            break
    assert step > 5


def test_who_wants_to_write_what_was_put_aside_does_not_disturb_the_logs_writer(shop: Shop) -> None:
    """It cannot be written. Who tries is told so at once, and the holder of the log is not asked to let go of it."""
    log, aside = shop_with_conflicts(shop, "a")
    with log.writer() as writer:
        for takeover in ("polite", "force"):
            with pytest.raises(Unsupported, match="read it"):
                aside.writer(wait_s=0, takeover=takeover)
        assert not writer.append(b"next").duplicate
