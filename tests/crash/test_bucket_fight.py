"""Several writers that fight for one log in a bucket, each killed at random: one log, and every ack is true."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

import oncelog
from oncelog import Entry
from oncelog.connect import Database
from oncelog.storage.base import Chunk
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectHome, ObjectStorage
from tests.crash.history import Acked, History
from tests.crash.processes import Process
from tests.crash.shop import Shop
from tests.crash.work import LOG, Step, record, settings

SOAK = os.environ.get("ONCELOG_SOAK") == "1"
NUMBERS = 1_000_000


def fight(url: str, writers: int, kills: int, seed: int) -> tuple[list[Shop], list[Entry]]:
    """Let so many writers fight until each was killed so often; return what they were told, and what is there."""
    with oncelog.connect(url) as db:
        db.log(LOG, settings("explicit"), create=True)
    with ThreadPoolExecutor(writers) as pool:
        shops = list(pool.map(lambda number: _fighter(url, number, kills, seed), range(writers)))
    with oncelog.connect(url) as db:
        return shops, list(db.log(LOG).read())


def _fighter(url: str, number: int, kills: int, seed: int) -> Shop:
    with Process("fighter", url) as zygote:
        shop = Shop(
            zygote, "explicit", random.Random(seed * 100 + number), force=0.7, lines_max=60, next=number * NUMBERS
        )
        while shop.kills < kills:
            shop.live()
        while shop.is_waiting or not shop.closes:
            shop.live(kill=False)
        assert zygote.finish() == 0
    return shop


def complaints(shops: list[Shop], entries: list[Entry]) -> list[str]:
    """Hold what is in the log against what all of them were told."""
    together = History()
    for shop in shops:
        together.sent += shop.history.sent
        together.acks += shop.history.acks
    return together.complaints(entries)


@pytest.mark.parametrize(("writers", "kills"), [(2, 60), (5, 40)] if SOAK else [(2, 6), (5, 3)])
def test_writers_that_fight_for_one_log(bucket_url: str, writers: int, kills: int) -> None:
    """Positions are contiguous, no record is there twice, none that was acknowledged is lost, and every ack is true."""
    shops, entries = fight(bucket_url, writers, kills, seed=writers)
    assert complaints(shops, entries) == []
    assert all(shop.kills == kills for shop in shops)
    assert sum(shop.fenced for shop in shops) > 0, "nobody lost the log while it lived: this was no fight"
    assert {entry.position for entry in entries} == set(range(len(entries)))
    assert {int(entry.id.removeprefix("id-")) // NUMBERS for entry in entries if entry.id} == set(range(writers))


def test_a_writer_that_takes_a_fence_for_its_block_is_noticed(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a writer that does not look whose object is in its place acknowledges what is nowhere."""

    def append(home: ObjectHome, segment: int, number: int, block: Sequence[Chunk]) -> int:
        home.create(f"segments/{segment:020d}/{number:010d}", block)
        return number + 1

    monkeypatch.setattr(ObjectHome, "append", append)
    log = Database(ObjectStorage(memory_bucket)).log(LOG, settings("explicit"), create=True)
    history = History()
    with log.writer() as old, Database(ObjectStorage(memory_bucket)).log(LOG).writer(takeover="force") as new:
        for number, writer in enumerate((new, old)):
            history.sent.append(Step("append", number, 1))
            ack = writer.append(record(number, "explicit").value, id=f"id-{number}")
            history.acks.append(Acked(number, ack.position or 0, ack.segment or 0, ack.entry or 0, ack.duplicate))
        assert history.complaints(list(log.read())) == ["1 was acknowledged at position 0 and is not there"]
