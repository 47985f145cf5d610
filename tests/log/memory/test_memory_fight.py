"""Writers in a bucket that take one log from each other, while runs are built and merged: every id keeps its place."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from oncelog import Ack, Unavailable, WriterFenced
from oncelog.connect import Database
from oncelog.log.writer import Writer
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from tests.log.memory.orders import SETTINGS, WAYS, ids, remember

pytestmark = pytest.mark.usefixtures("tiny")

ORDERS = 100


class Fight:
    """Threads that append the same orders to one log, each with a database of its own, and what they are answered."""

    def __init__(self, bucket: Bucket, fighters: int, acks: int) -> None:
        self._bucket = bucket
        self._acks = acks
        self._begun = threading.Barrier(fighters)
        self.acks: list[tuple[int, Ack]] = []
        self.fenced = 0

    def database(self) -> Database:
        """Return a handle that shares nothing with the others but the bucket."""
        return Database(ObjectStorage(self._bucket))

    def fighter(self, number: int) -> None:
        """Take the log by force and append, until it is taken, again and again."""
        choice = random.Random(number)
        self._begun.wait()
        while self._goes_on():
            with self.database() as db:
                try:
                    self._write(db.log("orders").writer(takeover="force"), choice)
                except (WriterFenced, Unavailable):  # closing, too, tells that the log was taken
                    self.fenced += 1

    def _goes_on(self) -> bool:
        """Tell whether acks are wanted, or nobody has lost the log yet: on a busy machine writers may take turns."""
        return len(self.acks) < (self._acks if self.fenced else 50 * self._acks)

    def _write(self, writer: Writer, choice: random.Random) -> None:
        with writer:
            for _ in range(choice.randrange(2, 8)):
                start = choice.randrange(ORDERS - 12)
                numbers = range(start, start + choice.randrange(1, 12))
                self.acks += zip(numbers, choice.choice(WAYS)(writer, numbers), strict=True)


@pytest.mark.parametrize(
    ("kind", "fighters", "acks"), [("memory_bucket", 2, 200), pytest.param("bucket", 4, 4_000, marks=pytest.mark.soak)]
)
def test_an_id_keeps_its_place_while_the_log_changes_hands(
    request: pytest.FixtureRequest, kind: str, fighters: int, acks: int
) -> None:
    """A writer that lost the log may still publish a run, or a merge of runs: no id is forgotten, none comes twice."""
    fight = Fight(request.getfixturevalue(kind), fighters, acks)
    with fight.database() as db:
        db.log("orders", SETTINGS, create=True)
    with ThreadPoolExecutor(fighters) as pool:
        list(pool.map(fight.fighter, range(fighters)))
    with fight.database() as db:
        log = db.log("orders")
        with log.writer() as writer:
            remember(writer)
        stored = ids(log)
        assert len(set(stored)) == len(stored)
        places = {name: place for place, name in enumerate(stored)}
        assert [(number, ack) for number, ack in fight.acks if places.get(f"o-{number}") != ack.position] == []
        assert [finding for finding in log.verify().findings if finding.severity == "error"] == []
        runs = log._manifest().memory
        assert runs
        assert all(one.next_position <= other.first_position for one, other in pairwise(runs))
    assert fight.fenced, "nobody lost the log while it lived: this was no fight"
