"""The writers that ``test_upkeep_kill.py`` kills: each appends and adopts while a thread of its seals and truncates.

``python -m tests.crash.upkeep_worker URL`` forks one for every line it reads, and says when it has ended.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

import msgspec

import oncelog
from oncelog.errors import OncelogError, PartialOverlap
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.types import Record
from tests.crash.work import LOG, record
from tests.log.ingest.adoption import adopt, overlap
from tests.log.shop import stage
from tests.models.history import Answer, Kind, Request, send

WINDOW_KEYS = 50
BEHIND = 70
"""How far behind the log's end it is truncated: further than the window reaches."""

KINDS: tuple[Kind, ...] = ("one", "many", "batch", "submit")


class Step(msgspec.Struct, frozen=True):
    """Consecutive records, from a number on, that are sent together: adopted, or by a method of the writer."""

    kind: str
    first: int
    size: int

    @property
    def records(self) -> list[Record]:
        """The records of the step."""
        return [record(number, "explicit") for number in range(self.first, self.first + self.size)]


class Life(msgspec.Struct, frozen=True):
    """What a writer is to do: send again, then send new records, for so many steps; adopt as well, or not."""

    resend: list[Step]
    first: int
    steps: int
    seed: int
    adopts: bool


def say(*words: object) -> None:
    """Report a line, in one piece."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main(url: str) -> None:
    """Fork a writer for every line that is read."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            live(url, msgspec.json.decode(line, type=Life))
        _, status = os.waitpid(pid, 0)
        say("ended", os.waitstatus_to_exitcode(status))


def live(url: str, life: Life) -> NoReturn:
    """Be a writer until the work is done, or until killed."""
    say("born", os.getpid())
    try:
        work(url, life)
    except BaseException as error:  # noqa: BLE001  whatever it is, the parent is to hear of it
        say("failed", repr(error).replace("\n", " ")[:500])
        os._exit(1)
    os._exit(0)


def work(url: str, life: Life) -> None:
    """Send what there is to send while a thread looks after the log."""
    chance = random.Random(life.seed)
    database = oncelog.connect(url)
    log = database.log(LOG)
    writer = log.writer()
    say("open")
    done = threading.Event()
    upkeep = threading.Thread(target=look_after, args=(database.log(LOG), writer, done, life.seed))
    upkeep.start()
    for step in life.resend:
        perform(log, writer, step)
    first = life.first
    for _ in range(life.steps):
        kind = "adopt" if life.adopts and chance.random() < 0.1 else chance.choice(KINDS)
        step = Step(kind, first, 1 if kind == "one" else chance.randrange(2, 7))
        perform(log, writer, step)
        first += step.size
    done.set()
    upkeep.join()
    database.close()
    say("closed")


def look_after(log: Log, writer: Writer, done: threading.Event, seed: int) -> None:
    """Seal, truncate and take snapshots, in turns."""
    chance = random.Random(seed)
    try:
        while not done.is_set():
            what = chance.choice(["seal", "truncate", "snapshot"])
            if what == "seal":
                say("sealed", log.seal().files)
            elif what == "truncate":
                before = max(0, writer.last_position - BEHIND)
                say("cut", before)
                say("begins", log.truncate(before).first_position)
            else:
                writer.snapshot()
                say("snapshot")
    except OncelogError as error:
        say("failed", repr(error).replace("\n", " ")[:500])


def perform(log: Log, writer: Writer, step: Step) -> None:
    """Send a step, and report the answers."""
    say("send", step.kind, step.first, step.size)
    records = step.records
    answers = adopt_records(log, writer, records) if step.kind == "adopt" else send(writer, asked(step))
    for number, answer in enumerate(answers, step.first):
        say("ack", number, answer.position, int(answer.duplicate))


def asked(step: Step) -> Request:
    """Return a step as a request."""
    (kind,) = [kind for kind in KINDS if kind == step.kind]
    return Request(kind, tuple(step.records))


def adopt_records(log: Log, writer: Writer, records: Sequence[Record]) -> list[Answer]:
    """Stage records and adopt them, or find out where that was done before."""
    staged = stage(log, records)
    try:
        (first,) = adopt(writer, [staged])
    except PartialOverlap:
        (rows,) = overlap(writer, [staged])
        assert len(rows) == len(records), "a file was adopted in part"
        places = {entry.id: entry.position for entry in log.read()}
        return [Answer(places[record.id], duplicate=True) for record in records]
    return [Answer(first + row, duplicate=False) for row in range(len(records))]


if __name__ == "__main__":
    main(sys.argv[1])
