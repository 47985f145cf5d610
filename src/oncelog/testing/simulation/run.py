"""One simulated run: writers, readers and faults for a while; then everything heals, and the history is checked."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence

import msgspec

from oncelog.connect import Database
from oncelog.errors import AppendErrors, LogBusy, OncelogError, Unavailable
from oncelog.log import inner
from oncelog.log.writer import Writer
from oncelog.testing.simulation.clients import LOG, OTHER, SETTINGS, Ids, ReadingClient, WritingClient, outcome_of
from oncelog.testing.simulation.faults import FaultInjector
from oncelog.testing.simulation.history import Attempt, RunHistory, SeenRecord
from oncelog.testing.simulation.scheduler import Process
from oncelog.testing.simulation.world import Kind, World, simulated
from oncelog.types import Ack, Record

WRITERS, READERS = 3, 1
DURATION_S = 4.0
LIMIT_US = 600_000_000
"""Longer than any run takes, in virtual time."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a run. ``digest`` is a checksum over the whole trace."""

    kind: str
    seed: int
    digest: int
    steps: int
    records: int
    attempts: int
    acks: int
    unknown: int
    duplicates: int
    crashes: int
    takeovers: int
    seen: int
    virtual_s: float


class SimulatedRun:
    """One run of one seed on one kind of home."""

    def __init__(self, kind: Kind, seed: int, *, keep_trace: bool = False, duration_s: float = DURATION_S) -> None:
        self.world = World(kind, seed, keep_trace=keep_trace)
        self.history = RunHistory()
        self.log: list[SeenRecord] | None = None
        self._seed = seed
        self._until_us = round(duration_s * 1e6)
        self._ids = Ids(random.Random(f"ids {self.world.seed}"))
        self._clients: list[Process] = []
        self._epoch = 0

    def is_over(self) -> bool:
        """Tell whether clients are to stop."""
        return self.world.scheduler.now_us >= self._until_us

    def run(self) -> RunSummary:
        """Run, heal, check. Raises ``Violation`` or ``Stuck``, or what the code under test raised."""
        collecting = gc.isenabled()
        gc.disable()  # a collection runs finalizers at moments that no seed decides
        try:
            with simulated(self.world):
                self._run()
            self._check()
        finally:
            if collecting:
                gc.enable()
        return self._summary()

    def _check(self) -> None:
        assert self.log is not None
        self.history.check(self.log)

    def _run(self) -> None:
        scheduler = self.world.scheduler
        operator = self.world.process("operator")
        setup = scheduler.spawn(operator, "create", lambda: self._create(operator))
        scheduler.run(lambda: setup.finished, LIMIT_US)
        self._until_us += scheduler.now_us
        faults = FaultInjector(self.world, is_over=self.is_over, living=lambda: [p for p in self._clients if p.alive])
        nemesis = scheduler.spawn(self.world.process("nemesis"), "faults", faults.run)
        for number in range(WRITERS):
            self._keep_up(f"writer-{number}", self._start_writer)
        for number in range(READERS):
            self._keep_up(f"reader-{number}", self._start_reader)
        scheduler.run(lambda: nemesis.finished, LIMIT_US)
        for process in self._clients:
            if process.alive and self.world.kind != "memory":
                self.world.crash(process)
        ending = scheduler.spawn(self.world.process("judge"), "judge", self._judge)
        scheduler.run(lambda: ending.finished, LIMIT_US)

    def _create(self, operator: Process) -> None:
        with self.world.connect(operator) as db:
            self._create_in(db)

    def _create_in(self, db: Database) -> None:
        db.log(LOG, SETTINGS, create=True)

    def _keep_up(self, name: str, start: Callable[[Process], Callable[[], None]]) -> None:
        """Start a client, and start it again when it was killed: a new process."""
        scheduler = self.world.scheduler

        def begin() -> None:
            process = self.world.process(name)
            self._clients.append(process)
            scheduler.spawn(process, "main", start(process))
            scheduler.after(100_000, lambda: watch(process))

        def watch(process: Process) -> None:
            if self.is_over():
                return
            if process.alive:
                scheduler.after(100_000, lambda: watch(process))
            else:
                self._clients.remove(process)
                begin()

        begin()

    def _start_writer(self, process: Process) -> Callable[[], None]:
        return WritingClient(self.world, process, self.history, self._ids, is_over=self.is_over).run

    def _start_reader(self, process: Process) -> Callable[[], None]:
        return ReadingClient(self.world, process, self.history, is_over=self.is_over).run

    def _judge(self) -> None:
        """Take the log, retry everything that was ever tried, and read the log."""
        process = self.world.processes[-1]
        while True:
            try:
                with self.world.connect(process) as db:
                    self._look(db, process)
            except (Unavailable, LogBusy):  # a node may still be away
                self.world.scheduler.sleep(1.0)
            else:
                return

    def _look(self, db: Database, process: Process) -> None:
        log = db.log(LOG)
        with log.writer(wait_s=120.0, takeover="polite" if inner.home(log).exclusive else "force") as writer:
            self._epoch = inner.epoch(writer)
            before = [SeenRecord.of(entry) for entry in log.read()]
            self._retry(writer, process)
        found = [SeenRecord.of(entry) for entry in log.read()]
        assert found[: len(before)] == before
        verified = log.verify()
        assert verified.ok, verified
        self.log = found

    def _retry(self, writer: Writer, process: Process) -> None:
        """Offer everything again that was ever offered: in one call, and what conflicts with it in another."""
        tried = sorted({(attempt.id, attempt.value) for attempt in self.history.attempts})
        usual = [Record(value, id=id) for id, value in tried if value != OTHER]
        others = [Record(value, id=id) for id, value in tried if value == OTHER]
        for records in (usual, others):
            began_us = self.world.scheduler.now_us
            answers: Sequence[Ack | OncelogError | None]
            try:
                answers = writer.append_many(records)
            except AppendErrors as error:
                answers = error.results
            for record, answer in zip(records, answers, strict=True):
                assert record.id is not None
                ack = answer if isinstance(answer, Ack) else None
                now_us = self.world.scheduler.now_us
                attempt = Attempt(process.name, record.id, record.value, began_us, now_us, outcome_of(answer), ack)
                self.history.attempts.append(attempt)

    def _summary(self) -> RunSummary:
        attempts = self.history.attempts
        return RunSummary(
            kind=self.world.kind,
            seed=self._seed,
            digest=self.world.scheduler.digest,
            steps=self.world.scheduler.steps,
            records=len(self.log or ()),
            attempts=len(attempts),
            acks=sum(attempt.outcome == "acked" for attempt in attempts),
            unknown=sum(attempt.outcome == "unknown" for attempt in attempts),
            duplicates=sum(attempt.ack is not None and attempt.ack.duplicate for attempt in attempts),
            crashes=self.world.crashes,
            takeovers=self._epoch,
            seen=sum(len(seen) for seen in self.history.readers.values()),
            virtual_s=self.world.scheduler.now_us / 1e6,
        )
