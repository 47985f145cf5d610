"""``oncelog top``: on a server, and on a plain database."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from rich.console import Console

import oncelog
from oncelog.cli.commands.servers import top
from oncelog.cli.commands.servers.top import LogSample, TopSample
from oncelog.errors import InvalidArgument, Unavailable
from tests.cli.shell import shell, terminal
from tests.servers import Serving


def test_a_database_shows_where_its_logs_end(tmp_path: Path) -> None:
    """What only the writer knows is said to be unknown, not zero."""
    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders", create=True).writer() as writer:
        writer.append_many([oncelog.Record(b"a"), oncelog.Record(b"b")])
    shown = shell("top", tmp_path.as_uri(), "--json", "--count", "1", "--every", "10ms").json
    assert shown["queues"] == {}
    assert not (tmp_path / "queues").exists()  # to look makes nothing
    assert shown["logs"]["orders"]["records"] == 2
    assert shown["logs"]["orders"]["duplicates/s"] is None
    seen = terminal("top", "--count", "1", "--every", "10ms", url=tmp_path.as_uri()).seen
    assert "orders" in seen
    assert "records/s" in seen


def test_a_database_shows_its_queues(tmp_path: Path) -> None:
    """How many messages of each group are new, wait, or are in workers' hands."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        queue = db.queue("emails", create=True)
        queue.send_many([oncelog.Message(b"a"), oncelog.Message(b"b")])
        with queue.consume("mailer", prefetch=1) as consumer:
            [delivery] = consumer.receive(1)
            shown = top.source(tmp_path.as_uri())()
            assert shown.queues["emails · mailer"] == {"new": 1, "waiting": 0, "leased": 1, "dying": 0}
            delivery.ack()


def test_a_queue_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    """Only the queue itself is left out."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        for name in ("broken", "emails"):
            queue = db.queue(name, create=True)
            queue.send(b"a")
            with queue.consume("mailer") as consumer:
                assert consumer.receive(1)
    with oncelog.connect(tmp_path.as_uri()) as db:
        db.delete("queue/broken/0")
        assert list(top._of_database(tmp_path.as_uri(), db).queues) == ["emails · mailer"]


def test_a_server_shows_what_it_counts(serve: Callable[..., Serving]) -> None:
    """Duplicates and queues, by its metrics."""
    server = serve("memory://")
    with httpx.Client(base_url=f"http://{server.http}", timeout=60) as client:
        client.post("/v1/logs", json={"name": "orders"})
        for _ in range(3):
            client.post("/v1/logs/orders/records", content=b"v", headers={"idempotency-key": "a"})
        client.post("/v1/queues", json={"name": "emails"})
        client.post("/v1/queues/emails/receive")
    look = top.source(f"http://{server.http}")
    found = look()
    assert (found.logs["orders"].records, found.logs["orders"].duplicates) == (1, 2)
    assert found.queues["emails · default"]["new"] == 0
    by_grpc = top.source(f"oncelog://{server.grpc}")()
    assert by_grpc.logs["orders"] == found.logs["orders"]
    assert by_grpc.queues == found.queues
    server.stop()
    with pytest.raises(Unavailable):
        look()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe",
        b"\x1b]0;x\x07 nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\n\r\na{b=",
        b"HTTP/1.1 200 OK\r\n\r\n# TYPE oncelog_queue_messages gauge\noncelog_queue_messages 1\n",
    ],
    ids=["no UTF-8", "no HTTP", "cut short", "no metrics", "no labels"],
)
def test_an_answer_that_makes_no_sense_is_an_error_of_ours(answer: bytes) -> None:
    """Somebody else's server, or a broken one: an error says so, not a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer, args=(server, answer))
        thread.start()
        look = top.source(f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(InvalidArgument, match="server of Oncelog"):
            look()
        thread.join()


def _answer(server: socket.socket, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65_536)
        connection.sendall(answer)


def test_rates_are_differences_over_time() -> None:
    """A log that was not there before has no rate yet; a counter that fell back shows none, not a negative one."""
    before = TopSample(source="s", at_us=0, logs={"a": LogSample(records=10, duplicates=5), "b": LogSample(records=9)})
    now = TopSample(
        source="s",
        at_us=2_000_000,
        logs={"a": LogSample(records=30, duplicates=6), "b": LogSample(records=1), "c": LogSample(records=100)},
    )
    shown = top.rates(before, now).logs
    assert (shown["a"]["records/s"], shown["a"]["duplicates/s"]) == (10, 0.5)
    assert shown["b"]["records/s"] == 0
    assert shown["c"]["records/s"] == 0


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_number_is_cut(width: int) -> None:
    """A narrow terminal shows fewer figures, and a name over several lines; what it shows is whole."""
    name = "shop/eu-central/orders-of-the-web-shop"
    figures: dict[str, float | None] = dict.fromkeys(
        ("records", "records/s", "duplicates/s", "conflicts/s", "pending", "ids"), 1_234_567.0
    )
    states = dict.fromkeys(("new", "waiting", "leased", "dying"), 1_234_567.0)
    shown = top.ShownSample(source="db", logs={name: figures}, queues={f"{name} mailer": states})
    drawn = Console(width=width, record=True, file=io.StringIO())
    drawn.print(top.page(shown, width))
    text = drawn.export_text()
    assert "…" not in text
    assert text.count("1,234,567") >= 2
    assert max(map(len, text.splitlines())) <= width
    assert ("ids" in text) == (width > 80)
