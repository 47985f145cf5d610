"""Workers against a server: effects happen once, plain and asynchronous handlers alike, also over bad connections."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest

import oncelog
from oncelog import Delivery, Inbox, Message, RetryPolicy
from oncelog.connect import Database
from oncelog.queue.rules.settings import QueueSettings
from oncelog.workers import retention
from tests.server.proxy import Proxy
from tests.servers import Serving

LONG_S = 60.0
SETTINGS = QueueSettings(retry=RetryPolicy(max_attempts=3, backoff_s=0.0, jitter=0.0))


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_worker_has_effects_once(remote: Database, tmp_path: Path, kind: str) -> None:
    """Messages are handled eight at a time; one that fails comes again; what is poison dies; nothing runs twice."""
    queue = remote.queue("emails", SETTINGS, create=True)
    queue.send_many([Message(b"%d" % n, id=str(n)) for n in range(30)])
    ran: Counter[bytes] = Counter()
    ended = threading.Event()
    lock = threading.Lock()

    def act(delivery: Delivery) -> None:
        with lock:
            ran[delivery.value] += 1
        if delivery.value == b"7" or (delivery.value == b"8" and delivery.attempts == 1):
            message = "not now"
            raise RuntimeError(message)

    async def act_later(delivery: Delivery) -> None:
        await asyncio.sleep(0)
        act(delivery)

    def report(event: oncelog.WorkerEvent) -> None:
        with lock:
            told[event.word] += 1
            if told["done"] + told["dead"] + (told["failed"] == 4) == 30:
                ended.set()

    told: Counter[str] = Counter()
    inbox = Inbox(f"sqlite:///{tmp_path / 'inbox.db'}") if kind == "plain" else None
    handler = act if kind == "plain" else act_later
    with oncelog.worker(queue, "mailer", handler, inbox=inbox, concurrency=8, report=report):
        assert ended.wait(LONG_S), told
    assert {value for value, count in ran.items() if count > 1} == {b"7", b"8"}
    assert (ran[b"7"], ran[b"8"]) == (3, 2)
    assert [letter.value for letter in queue.dead_letters.list()] == [b"7"]
    if inbox is not None:
        inbox.close()


def test_a_worker_over_a_bad_connection_runs_each_effect_once(
    remote: Database, shared_server: Serving, tmp_path: Path
) -> None:
    """Cut connections make messages come again; the inbox knows their effects."""
    remote.queue("emails", SETTINGS, create=True).send_many([Message(b"%0100d" % n, id=str(n)) for n in range(40)])
    proxy = Proxy(shared_server.grpc, 5, 30_000)
    ran: Counter[bytes] = Counter()
    try:
        with oncelog.connect(f"oncelog://{proxy.address}") as db, Inbox(f"sqlite:///{tmp_path / 'i.db'}") as inbox:
            done = threading.Event()

            def act(delivery: Delivery) -> None:
                ran[delivery.value] += 1
                if len(ran) == 40:
                    done.set()

            with oncelog.worker(db.queue("emails"), "mailer", act, inbox=inbox, ack_timeout_s=3.0):
                assert done.wait(LONG_S)
                proxy.peaceful = True
    finally:
        proxy.close()
    assert set(ran.values()) == {1}
    assert proxy.connections > 1


def test_keys_of_messages_that_are_there_are_kept(remote: Database, tmp_path: Path) -> None:
    """Forgetting keys looks at the queue's logs through the server, as it does on a disk."""
    queue = remote.queue("emails", create=True)
    queue.send(b"x", id="1")
    with Inbox(f"sqlite:///{tmp_path / 'i.db'}", retention_s=86_400.0) as inbox:
        assert len(list(retention._there(queue, "mailer"))) == 1
        assert retention.prune(inbox, queue, "mailer") == 0


def test_an_id_is_found_through_the_server(remote: Database) -> None:
    """``find`` has the place, the time and the fingerprint that the log has; ``None`` for what is not there."""
    log = remote.log("orders", create=True)
    with log.writer() as writer:
        ack = writer.append(b"paid", id="order-42")
        writer.append(b"paid", id="order-43")
    found, other = log.find("order-42"), log.find("order-43")
    assert found is not None
    assert other is not None
    assert (found.position, found.segment, found.entry, found.timestamp) == (
        ack.position,
        ack.segment,
        ack.entry,
        ack.timestamp,
    )
    assert found.fingerprint == other.fingerprint, "the same content"
    assert log.find("nobody") is None
    with pytest.raises(oncelog.InvalidArgument):
        log.find("")
