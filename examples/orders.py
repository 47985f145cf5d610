"""A day of orders as flaky producers send them: with retries, replays, duplicates that come hours late, and a few ids
that are used for two different orders.

Everything is drawn from a seed, so that the same day can be made again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

DAY = datetime(2026, 3, 14, tzinfo=UTC)
FILES_A_DAY = 48
BUSY = [2, 1, 1, 1, 1, 2, 4, 7, 9, 10, 11, 13, 14, 12, 10, 10, 11, 14, 17, 18, 15, 10, 6, 4]
"""How many orders come in each hour, in proportion."""
ITEMS = ["espresso", "filter", "beans-250g", "beans-1kg", "grinder", "mug", "kettle", "scale"]


class Producer(NamedTuple):
    """Who sends orders: its share of them, and how often what goes wrong."""

    name: str
    share: int
    retried: float
    replays: int
    late: float
    conflicts: int


PRODUCERS = [
    Producer("web", 40, 0.06, 1, 0.002, 4),
    Producer("app", 28, 0.22, 0, 0.004, 3),
    Producer("shop-tills", 16, 0.03, 4, 0.010, 9),
    Producer("kiosk", 9, 0.15, 2, 0.120, 2),
    Producer("partners", 7, 0.10, 3, 0.030, 12),
]


class Order(msgspec.Struct, kw_only=True):
    """One attempt to tell of an order: what it is, who sent it, which attempt this is and when it came."""

    order_id: str
    producer: str
    customer: int
    item: str
    quantity: int
    amount_cents: int
    placed_at: str
    attempt: int
    received_at: str


def day(orders: int, seed: int) -> list[Order]:
    """Return all attempts of a day, in the order in which they come in."""
    chance = random.Random(seed)
    attempts = [attempt for producer in PRODUCERS for attempt in _of_producer(producer, orders, chance)]
    return sorted(attempts, key=lambda attempt: (attempt.received_at, attempt.order_id, attempt.attempt))


def _of_producer(producer: Producer, orders: int, chance: random.Random) -> Iterator[Order]:
    count = max(1, orders * producer.share // sum(one.share for one in PRODUCERS))
    placed = sorted(_moment(chance) for _ in range(count))
    sent = [_order(producer, number, when, chance) for number, when in enumerate(placed)]
    for order, when in zip(sent, placed, strict=True):
        yield order
        yield from _again(producer, order, when, chance)
    for _ in range(producer.replays):
        begin = chance.randrange(count)
        yield from _replay(sent[begin : begin + max(20, count // 60)], placed[begin], chance)
    for _ in range(min(producer.conflicts, count)):
        yield _conflict(chance.choice(sent), chance)


def _moment(chance: random.Random) -> datetime:
    (hour,) = chance.choices(range(24), BUSY)
    return DAY + timedelta(hours=hour, seconds=chance.random() * 3600)


def _order(producer: Producer, number: int, when: datetime, chance: random.Random) -> Order:
    quantity = chance.randint(1, 4)
    return Order(
        order_id=f"{producer.name}-{number:06d}",
        producer=producer.name,
        customer=chance.randrange(20_000),
        item=chance.choice(ITEMS),
        quantity=quantity,
        amount_cents=quantity * chance.randrange(250, 9900, 50),
        placed_at=_text(when),
        attempt=1,
        received_at=_text(when + timedelta(milliseconds=chance.randint(20, 400))),
    )


def _again(producer: Producer, order: Order, when: datetime, chance: random.Random) -> Iterator[Order]:
    """Yield what is sent again: when an answer was lost, with a longer pause each time; and some orders hours late."""
    attempt, pause_s = 1, 0.5
    while chance.random() < producer.retried and attempt < 5:
        attempt, pause_s = attempt + 1, pause_s * 3
        yield _resent(order, when + timedelta(seconds=pause_s), attempt)
    if chance.random() < producer.late:
        yield _resent(order, when + timedelta(hours=chance.uniform(1, 6)), attempt + 1)


def _replay(sent: list[Order], begin: datetime, chance: random.Random) -> Iterator[Order]:
    """Yield what a producer sends that was restarted: everything since its last checkpoint, again."""
    when = begin + timedelta(minutes=chance.uniform(5, 40))
    for number, order in enumerate(sent):
        yield _resent(order, when + timedelta(milliseconds=number), 2)


def _conflict(order: Order, chance: random.Random) -> Order:
    """Return an order with an id that is taken: the same id, given away twice."""
    other = msgspec.structs.replace(order, customer=chance.randrange(20_000), amount_cents=order.amount_cents + 100)
    return _resent(other, datetime.fromisoformat(order.placed_at) + timedelta(minutes=chance.uniform(1, 90)), 1)


def _resent(order: Order, when: datetime, attempt: int) -> Order:
    latest = DAY + timedelta(days=1, microseconds=-1)
    return msgspec.structs.replace(order, attempt=attempt, received_at=_text(min(when, latest)))


def _text(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds")


def write(folder: Path, orders: int, seed: int) -> None:
    """Write a day's attempts as JSON lines, one file for each half hour in which they came in."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[int, list[bytes]] = {}
    for attempt in day(orders, seed):
        when = datetime.fromisoformat(attempt.received_at) - DAY
        slot = when // timedelta(days=1) * FILES_A_DAY + when // (timedelta(days=1) / FILES_A_DAY)
        files.setdefault(slot, []).append(msgspec.json.encode(attempt))
    for slot, lines in sorted(files.items()):
        name = f"orders-{DAY:%Y-%m-%d}-{slot * 24 // FILES_A_DAY:02d}{slot * 1440 // FILES_A_DAY % 60:02d}.jsonl"
        (folder / name).write_bytes(b"\n".join(lines) + b"\n")
        came = (DAY + timedelta(days=(slot + 1) / FILES_A_DAY)).timestamp()
        os.utime(folder / name, (came, came))  # Spark reads files in the order of their times
