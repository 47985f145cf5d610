"""Runs of the two faces of a log: streams with expected versions, and queues with leases."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from oncelog.connect import Database
from oncelog.errors import IdConflict, InvalidArgument, LeaseLost, LogBusy, NotFound, OncelogError, WrongExpectedVersion
from oncelog.queue.rules.retry import RetryPolicy
from oncelog.queue.rules.settings import QueueSettings
from oncelog.streams.events import EventAck, StreamEvent
from oncelog.streams.streams import Streams
from oncelog.testing.simulation.clients import SETTINGS
from oncelog.testing.simulation.history import Violation
from oncelog.testing.simulation.run import SimulatedRun
from oncelog.testing.simulation.scheduler import Process
from oncelog.types import Record

NAME = "events"
STREAMS = ("a", "b", "c")
QUEUE_SETTINGS = QueueSettings(
    retry=RetryPolicy(max_attempts=None, backoff_s=0.0, jitter=0.0), ack_timeout_s=2.0, log=SETTINGS
)
_RETRIES = 0.3


class StreamsRun(SimulatedRun):
    """Clients append to a few streams, now and then under an exact version; the judge reads all streams."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._random = random.Random(f"streams {self.world.seed}")
        self.offered: set[tuple[str, str]] = set()
        self.acked: list[tuple[str, str, EventAck, int | None]] = []
        """Stream, id, answer, and the exact version that was expected before the event."""
        self.seen: list[list[tuple[str, int, int, str | None]]] = []
        self.events: list[StreamEvent] = []

    def _create_in(self, db: Database) -> None:
        db.streams(NAME, create=True)

    def _start_writer(self, process: Process) -> Callable[[], None]:
        return lambda: self._repeat(process, self._append_some)

    def _start_reader(self, process: Process) -> Callable[[], None]:
        return lambda: self._repeat(process, self._read)

    def _repeat(self, process: Process, work: Callable[[Streams], None]) -> None:
        while not self.is_over():
            try:
                with self.world.connect(process) as db:
                    streams = db.streams(NAME)
                    for _ in range(10):
                        if not self.is_over():
                            work(streams)
                            self.world.scheduler.sleep(self._random.random() * 0.4)
            except InvalidArgument:
                raise
            except OncelogError:
                self.world.scheduler.sleep(self._random.random())

    def _append_some(self, streams: Streams) -> None:
        stream = self._random.choice(STREAMS)
        retried = sorted(id for one, id in self.offered if one == stream)
        id = self._random.choice(retried) if retried and self._random.random() < _RETRIES else f"id-{len(self.offered)}"
        self.offered.add((stream, id))  # at once: no other client takes the same id for a new one
        version = None if id in retried or self._random.random() < 0.5 else streams.version(stream)  # noqa: PLR2004
        try:
            acks = streams.append(
                stream,
                Record(id.encode(), id=id),
                expected="any" if version is None else version,
                wait_s=2.0,
                timeout_s=8.0,
            )
        except (WrongExpectedVersion, LogBusy):
            return
        except IdConflict:
            assert version is not None  # another client has stored it meanwhile, at another version
            return
        self.acked += [(stream, id, ack, version) for ack in acks]

    def _read(self, streams: Streams) -> None:
        self.seen.append([(one.stream, one.version, one.position, one.id) for one in streams.read_all()])

    def _look(self, db: Database, process: Process) -> None:  # noqa: ARG002  as of every run
        streams = db.streams(NAME)
        for stream, id in sorted(self.offered):
            acks = streams.append(stream, Record(id.encode(), id=id), wait_s=60.0)
            self.acked += [(stream, id, ack, None) for ack in acks]
        self.events = list(streams.read_all())
        for stream in {event.stream for event in self.events}:
            found = [event.position for event in streams.read(stream)]
            assert found == [event.position for event in self.events if event.stream == stream]

    def _check(self) -> None:
        """Versions count up in each stream, ids are there once, answers and readers are right."""
        versions: Counter[str] = Counter()
        places: dict[tuple[str, str | None], tuple[int, int]] = {}
        for event in self.events:
            if event.version != versions[event.stream] or (event.stream, event.id) in places:
                message = f"{event}: a version is missing, or an id is there twice"
                raise Violation(message)
            versions[event.stream] += 1
            places[event.stream, event.id] = event.version, event.position
        for stream, id, ack, expected in self.acked:
            if places.get((stream, id)) != (ack.version, ack.position):
                message = f"{stream} {id}: answered {ack}, and it is at {places.get((stream, id))}"
                raise Violation(message)
            if expected is not None and not ack.duplicate and ack.version != expected + 1:
                message = f"{stream} {id}: expected to follow {expected}, and is {ack.version}"
                raise Violation(message)
        log = [(one.stream, one.version, one.position, one.id) for one in self.events]
        if any(seen != log[: len(seen)] for seen in self.seen):
            message = "a reader saw what is not in the log"
            raise Violation(message)


class QueueRun(SimulatedRun):
    """Clients send and workers settle, each in processes that die; the judge settles what is left."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._random = random.Random(f"queue {self.world.seed}")
        self.offered: list[str] = []
        self.sent: dict[str, set[int | None]] = defaultdict(set)
        self.settled: Counter[str] = Counter()
        self.late: list[str] = []
        """Messages that were delivered though their settlement had been answered."""

    def _create_in(self, db: Database) -> None:
        db.queue(NAME, QUEUE_SETTINGS, create=True)

    def _start_writer(self, process: Process) -> Callable[[], None]:
        return lambda: self._repeat(process, self._send)

    def _start_reader(self, process: Process) -> Callable[[], None]:
        return lambda: self._repeat(process, self._work)

    def _repeat(self, process: Process, work: Callable[[Database], None]) -> None:
        while not self.is_over():
            try:
                with self.world.connect(process) as db:
                    for _ in range(10):
                        if not self.is_over():
                            work(db)
                            self.world.scheduler.sleep(self._random.random() * 0.4)
            except InvalidArgument:
                raise
            except OncelogError:
                self.world.scheduler.sleep(self._random.random())

    def _send(self, db: Database) -> None:
        again = self.offered and self._random.random() < _RETRIES
        id = self._random.choice(self.offered) if again else f"id-{len(self.offered)}"
        if not again:
            self.offered.append(id)
        self.sent[id].add(db.queue(NAME).send(id.encode(), id=id).position)

    def _work(self, db: Database) -> None:
        with db.queue(NAME).consume(prefetch=self._random.randint(1, 4)) as deliveries:
            for one in deliveries.receive(timeout_s=0.5):
                assert one.id is not None
                if self.settled[one.id]:
                    self.late.append(one.id)
                self.world.scheduler.sleep(self._random.random() * 0.5)
                try:
                    one.ack()
                except LeaseLost:
                    continue
                self.settled[one.id] += 1

    def _look(self, db: Database, process: Process) -> None:  # noqa: ARG002  as of every run
        queue = db.queue(NAME)
        for id in self.offered:
            self.sent[id].add(queue.send(id.encode(), id=id).position)
        while True:
            try:
                if queue.lag() == 0:
                    break
            except NotFound:
                pass  # nobody has consumed yet
            self._work(db)

    def _check(self) -> None:
        """Each message has one place, was settled, and was not delivered again after its settlement was answered."""
        for id in self.offered:
            if len(self.sent[id]) != 1:
                message = f"{id} was sent to {self.sent[id]}"
                raise Violation(message)
            if self.settled[id] > 1:
                message = f"{id} was settled {self.settled[id]} times"
                raise Violation(message)
        if self.late:
            message = f"{self.late}: delivered after they were settled"
            raise Violation(message)
