"""Writers that are killed with SIGKILL again and again, on a real disk: what was acknowledged is there, once."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import oncelog
from oncelog import Entry
from oncelog.settings import Idempotence
from tests.crash.history import History, Seen
from tests.crash.processes import Process
from tests.crash.shop import Shop
from tests.crash.work import LOG, settings

SOAK = os.environ.get("ONCELOG_SOAK") == "1"
KILLS = 2_000 if SOAK else 110
KILLS_CONTROL = 40


def create(folder: Path, idempotence: Idempotence) -> str:
    """Make a log in a folder and return the database's URL."""
    with oncelog.connect(folder.as_uri()) as db:
        db.log(LOG, settings(idempotence), create=True)
    return folder.as_uri()


def content(url: str) -> list[Entry]:
    """Return all that is in the log."""
    with oncelog.connect(url) as db:
        return list(db.log(LOG).read())


def run(url: str, idempotence: Idempotence, kills: int, seed: int) -> Shop:
    """Kill that many writers, and let a last one send what is still without an answer."""
    with Process("zygote", url) as zygote:
        shop = Shop(zygote, idempotence, random.Random(seed), History(idempotence))
        while shop.kills < kills:
            shop.live()
        shop.live(kill=False)
        assert not shop.is_waiting
        assert zygote.finish() == 0
    return shop


def run_with_reader(folder: Path, kills: int, seed: int) -> tuple[Shop, list[Entry]]:
    """Kill writers while another process reads; return what happened and what is there."""
    url = create(folder / "shop", "explicit")
    report = folder / "seen"
    with report.open("wb") as stdout, Process("reader", url, stdout=stdout) as reader:
        shop = run(url, "explicit", kills, seed)
        entries = content(url)
        reader.tell(str(len(entries) - 1))
        assert reader.finish() == 0
    for line in report.read_text().splitlines():
        word, *figures = line.split()
        assert word == "saw"
        shop.history.seen.append(Seen(*map(int, figures)))
    return shop, entries


def check(shop: Shop, entries: list[Entry], kills: int) -> None:
    """Hold what is in the log against what happened, and make sure that enough happened for that to mean something."""
    assert shop.history.complaints(entries) == []
    assert shop.kills == kills
    assert shop.answers_lost > 0
    assert shop.closes > 0
    assert any(ack.duplicate for ack in shop.history.acks)
    assert shop.rolls > 0
    assert {seen.position for seen in shop.history.seen} == set(range(len(entries)))
    assert {step.kind for step in shop.history.sent} == {"append", "many", "batch", "submit"}


def test_nothing_is_lost_and_nothing_twice_over_a_hundred_kills(tmp_path: Path) -> None:
    """Acknowledged means durable, at most once, whole batches, visible means durable: whenever a writer is killed."""
    shop, entries = run_with_reader(tmp_path, KILLS, seed=1)
    check(shop, entries, KILLS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_nothing_is_lost_and_nothing_twice_over_thousands_of_kills(tmp_path: Path, seed: int) -> None:
    """The same, for long, and along other ways each time."""
    shop, entries = run_with_reader(tmp_path, 500, seed)
    check(shop, entries, 500)


def test_without_idempotence_the_same_kills_leave_duplicates(tmp_path: Path) -> None:
    """The control: what the test above finds is not so by itself. Even here nothing that was acknowledged is lost."""
    url = create(tmp_path / "shop", "off")
    shop = run(url, "off", KILLS_CONTROL, seed=1)
    entries = content(url)
    found = shop.history.complaints(entries)
    twice = [complaint for complaint in found if "times" in complaint]
    assert len(twice) > 0
    assert found == twice
    assert not any(ack.duplicate for ack in shop.history.acks)
