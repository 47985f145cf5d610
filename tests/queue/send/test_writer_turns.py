"""Several processes, one queue: they write in turns, and consume side by side."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import oncelog
from oncelog import LogBusy, Message, Unavailable
from tests.queue.conftest import World

ROOT = Path(__file__).parents[3]
SENDER = """
import sys
import oncelog
from oncelog import Message
with oncelog.connect(sys.argv[1]) as db:
    queue = db.queue("work")
    print("ready", flush=True)
    for line in sys.stdin:
        count = int(line)
        for number in range(count):
            queue.send(b"%s-%d" % (sys.argv[2].encode(), number), id=f"{sys.argv[2]}-{number}")
        print("sent", flush=True)
"""


class Sender:
    """A process that sends as many messages as it is told to, and keeps the writer until somebody asks."""

    def __init__(self, url: str, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SENDER, url, name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.hear() == "ready"

    def hear(self) -> str:
        """Return the next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, count: int) -> None:
        """Have it send."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Kill it, and wait until it has ended."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def test_processes_send_in_turns(tmp_path: Path) -> None:
    """Three that send at once all get through, each message is there once, and nobody has to close for another."""
    url = tmp_path.as_uri()
    with oncelog.connect(url) as db:
        queue = db.queue("work", create=True)
        senders = [Sender(url, name) for name in "abc"]
        try:
            for sender in senders:
                sender.tell(30)
            assert [sender.hear() for sender in senders] == ["sent"] * 3
            queue.send(b"and this one")
            with queue.consume("g", prefetch=1_000) as consumer:
                values = [delivery.value for delivery in consumer.receive()]
        finally:
            for sender in senders:
                sender.end()
    assert len(values) == len(set(values)) == 91


def test_a_holder_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    """The writer of a process that died is there for the next."""
    url = tmp_path.as_uri()
    with oncelog.connect(url) as db:
        queue = db.queue("work", create=True)
        sender = Sender(url, "a")
        sender.tell(1)
        assert sender.hear() == "sent"
        sender.end()
        assert queue.send(b"b").position == 1


def test_a_log_that_somebody_else_writes_for_good_is_unavailable(tmp_path: Path) -> None:
    """Who holds a partition's log by hand does not know of wishes: senders are told, and nothing is written."""
    with oncelog.connect(tmp_path.as_uri()) as db, oncelog.connect(tmp_path.as_uri()) as other:
        queue = db.queue("work", create=True)
        with other.log("queue/work/0").writer():
            with pytest.raises(Unavailable) as caught:
                queue.send(b"a", timeout_s=0.05)
            assert isinstance(caught.value.__cause__, LogBusy)
        assert queue.send(b"a").position == 0


def test_threads_share_a_writer(tmp_path: Path) -> None:
    """Many threads that send through one handle are one process that writes."""
    with oncelog.connect(tmp_path.as_uri()) as db, ThreadPoolExecutor(8) as pool:
        queue = db.queue("work", partitions=2, create=True)
        sent = list(pool.map(lambda number: queue.send(b"%d" % number, id=str(number)), range(200)))
        assert len({(answer.partition, answer.position) for answer in sent}) == 200


def test_two_handles_in_one_process_take_turns_too(tmp_path: Path) -> None:
    """They are to each other as two processes are."""
    with oncelog.connect(tmp_path.as_uri()) as one, oncelog.connect(tmp_path.as_uri()) as two:
        first, second = one.queue("work", create=True), two.queue("work")
        answers = [queue.send_many([Message(b"x")])[0] for _ in range(3) for queue in (first, second)]
    assert [answer.position for answer in answers] == list(range(6))


def test_a_send_wakes_nobody_who_does_not_wait_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that looks who else wants to write would ask the gate after each send, and take the time of it."""
    queue = world.open().queue("work", create=True, state=world.state)
    queue.send(b"a")
    woken: list[int] = []
    monkeypatch.setattr(queue._sending._turns._changed, "notify_all", lambda: woken.append(1))
    queue.send(b"b")
    assert not woken
    monkeypatch.undo()
