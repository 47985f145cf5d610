"""The programs that are killed: run as ``worker.py <url> <state>``, told in lines what to do, telling what they did.

Every line is one write of less than a pipe takes at once, so that a kill cuts between lines and never through one.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa

import oncelog
from oncelog import Delivery, LeaseLost, Message, OncelogError
from oncelog.queue.queue import Queue
from oncelog.queue.rules import delivery as machine
from oncelog.queue.rules.delivery import Change, Condition, MessageRun, Rules
from oncelog.queue.state import statements
from oncelog.queue.state.database import Transaction
from oncelog.queue.state.statements import Outlook

TOPIC, GROUP = "work", "workers"
ACK_TIMEOUT_S = 0.4
EARLY_US = 10_000_000
POISON = 37
"""Every message whose number is divisible by this is never done."""


class Task(msgspec.Struct):
    """What a child is to do: ``consume`` until the file ``stop`` is there, or ``produce`` numbers up to the last."""

    name: str
    child: str
    kind: str
    seed: int
    stop: str
    first: int = 0
    last: int = 0
    broken: bool = False


def say(*words: object) -> None:
    """Print a line, at once and whole."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main(url: str, where: str) -> None:
    """Bear a child for each line: a fork of a process that has everything imported and nothing open."""
    pa.array([b"pyarrow imports pandas, if it is there, when it makes its first array of objects"])
    for line in sys.stdin:
        task = msgspec.json.decode(line, type=Task)
        pid = os.fork()
        if pid == 0:
            _live(url, where or None, task)
        say("born", task.child, pid)
        _reap(block=False)
    _reap(block=True)


def _reap(*, block: bool) -> None:
    try:
        while os.waitpid(-1, 0 if block else os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _live(url: str, where: str | None, task: Task) -> None:
    try:
        if task.broken:
            machine.expire = _expire_early
            statements.due = _due_early
            statements.outlook = _outlook_early
        with oncelog.connect(url) as db:
            queue = db.queue(TOPIC, state=where)
            consume(queue, task) if task.kind == "consume" else produce(queue, task)
        say("bye", task.child)
    except BaseException:  # noqa: BLE001  whatever it is, the test must hear of it
        say("error", task.child, repr(traceback.format_exc()[-1_500:]))
    finally:
        os._exit(0)


def _expire_early(runs: Iterable[MessageRun], rules: Rules) -> Change:
    """Now and then take leases for over that are not: the bug that the history must show."""
    early_us = EARLY_US if rules.chance() < 0.5 else 0
    change = _expire(runs, rules._replace(now_us=rules.now_us + early_us))
    return Change(change.gone, [msgspec.structs.replace(run, at_us=rules.now_us) for run in change.come])


def _due_early(
    transaction: Transaction, group_id: int, condition: Condition, now_us: int, limit: int
) -> list[MessageRun]:
    ahead_us = EARLY_US if condition is Condition.LEASED else 0
    return _due(transaction, group_id, condition, now_us + ahead_us, limit)


def _outlook_early(transaction: Transaction, group_id: int) -> Outlook | None:
    found = _outlook(transaction, group_id)
    if found is None or found.leased_us is None:
        return found
    return found._replace(leased_us=found.leased_us - EARLY_US)


_expire = machine.expire
_due = statements.due
_outlook = statements.outlook


# Producing.


def key_of(number: int) -> str:
    """Return the key of a message: a third of them has none."""
    return "" if number % 3 == 0 else f"k{number % 7}"


def produce(queue: Queue, task: Task) -> None:
    """Send numbers, some at a time, and say which are sent."""
    chance = random.Random(task.seed)
    number = task.first
    while number < task.last:
        until = min(task.last, number + chance.randrange(1, 30))
        messages = [
            Message(b"%d" % one, id=f"{task.name}-{one}", key=f"{task.name}-{key_of(one)}" if key_of(one) else "")
            for one in range(number, until)
        ]
        queue.send_many(messages)
        say("sent", task.child, number, until)
        number = until


# Consuming.


def consume(queue: Queue, task: Task) -> None:
    """Take messages and deal with them, saying what came before doing anything."""
    chance = random.Random(task.seed)
    stop = Path(task.stop)
    with queue.consume(GROUP, prefetch=8, ack_timeout_s=ACK_TIMEOUT_S) as consumer:
        while not stop.exists():
            found = consumer.receive(chance.randrange(1, 9), timeout_s=0.1)
            if not found:
                say("empty", task.child)
            for one in found:
                until_us = one.until_us
                say("got", task.child, one.partition, one.position, one.attempts, one.token, until_us, one.key or "-")
            for one in found:
                _deal(one, task, chance)


def _deal(one: Delivery, task: Task, chance: random.Random) -> None:
    place = task.child, one.partition, one.position, one.token
    try:
        if int(one.value) % POISON == 0 or chance.random() < 0.05:
            one.nack("poison")
            say("nacked", *place)
        elif chance.random() < 0.1:
            one.extend(ACK_TIMEOUT_S)
            say("extended", *place, one.until_us)
            one.ack()
            say("acked", *place)
        else:
            one.ack()
            say("acked", *place)
    except LeaseLost:
        say("lost", *place)
    except OncelogError as error:
        say("error", task.child, repr(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
