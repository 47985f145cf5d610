"""Truncation where it meets kills, leases, adoptions and a real disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from oncelog.connect import Database
from oncelog.log.read.leases import ReaderLease
from oncelog.log.upkeep import retention
from oncelog.log.upkeep.retention import Truncation
from oncelog.settings import Window
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.faults import Killed
from oncelog.testing.storage import FaultyStorage
from oncelog.types import Record
from tests.log.ingest.adoption import adopt
from tests.log.shop import HOUR_S, LOG, SETTINGS, Shop, append, fill, known, plain, stage, values

OFF = msgspec.structs.replace(SETTINGS, idempotence="off")
SMALL = msgspec.structs.replace(SETTINGS, window=Window(duration_s=10, max_keys=1000))


def unnamed(*numbers: int) -> list[Record]:
    """Return records without an id."""
    return [Record(b"%d" % number) for number in numbers]


@pytest.mark.parametrize("how", ["truncate", "retain", "seal"])
def test_a_truncation_that_was_killed_is_finished_by_asking_again(how: str) -> None:
    """Anybody who repeats what was killed after the manifest was changed gets the space back, as does any upkeep."""
    finished, cut_short = False, 0
    for step in range(1, 200):
        clock = SimulatedClock()
        storage = FaultyStorage(MemoryStorage(clock=clock))
        shop = Shop(storage, clock)
        log = shop.log(OFF)
        fill(log, unnamed(0, 1), unnamed(2, 3), unnamed(4, 5))
        storage.kill_at(step)
        try:
            log.truncate(4)
        except Killed:
            storage.restart()
        else:
            finished = True
            break
        log = shop.log()
        left = known(log).manifest.doomed
        {"truncate": lambda log: log.truncate(4), "retain": lambda log: log.retain(), "seal": lambda log: log.seal()}[
            how
        ](log)
        if left:
            cut_short += 1
            assert known(log).manifest.doomed == (), step
            assert values(log) == [b"4", b"5"]
            assert log.verify().findings == ()
    assert finished
    assert cut_short


def test_age_goes_by_the_records_of_a_segment_that_an_adoption_closed(shop: Shop) -> None:
    """Old records do not outlive their retention because a file was adopted behind them."""
    log = shop.log(msgspec.structs.replace(OFF, retention_s=HOUR_S))
    with log.writer() as writer:
        writer.append(b"old")
        shop.clock.advance(2 * HOUR_S)
        adopt(writer, [stage(log, unnamed(1))])
        assert log.retain() == Truncation(first_position=1)
    assert values(log) == [b"1"]


def test_the_protocol_by_hand(quick: Shop) -> None:
    """A lease after the announcement stops it, unless it is in front of it; without one the cut is made."""
    log = quick.log(OFF)
    fill(log, unnamed(0, 1), unnamed(2, 3), unnamed(4, 5))
    manifests, token = log._manifests, b"truncate"
    manifests.update(retention._announce(4, token))
    ahead = ReaderLease(quick.home, manifests, quick.clock, 60)
    ahead.hold(4)
    assert known(log).manifest.truncating == 4
    behind = ReaderLease(quick.home, manifests, quick.clock, 60)
    behind.hold(2)
    assert known(log).manifest.truncating == 0
    assert manifests.update(retention._cut(manifests, 4, token, None)).manifest.first_position == 0
    assert log.truncate(4) == Truncation(first_position=2, held_by="lease")
    behind.release()
    manifests.update(retention._announce(4, token))
    assert manifests.update(retention._cut(manifests, 4, b"another", None)).manifest.first_position == 2
    assert manifests.update(retention._cut(manifests, 4, token, None)).manifest.first_position == 4


def test_files_are_gone_from_a_real_disk(tmp_path: Path) -> None:
    """Blocks, sealed files and identities of what was truncated away are not there any more."""
    clock = SimulatedClock()
    log = Database(LocalStorage(tmp_path, clock=clock), clock).log(LOG, SMALL, create=True)
    fill(log, plain(range(5), 5000))
    log.seal()
    with log.writer() as writer:
        adopt(writer, [stage(log, plain(range(10, 15)))])
        append(writer, plain([20])[0])
        clock.advance(20)
    patterns = ("*.parquet", "*.ids", "*.blocks")
    assert [len(list(tmp_path.rglob(pattern))) for pattern in patterns] == [2, 1, 1]
    assert log.truncate(11) == Truncation(first_position=11)
    assert [len(list(tmp_path.rglob(pattern))) for pattern in patterns] == [0, 0, 0]
    with log.writer() as writer:
        assert append(writer, plain([20])[0]).position == 11
