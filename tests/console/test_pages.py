"""The pages of the console, without a browser: what they ask of the storage."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from oncelog import LogSettings, Message, QueueSettings, Record, RetryPolicy, Window, connect
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.console.app import build
from oncelog.console.source import PAGE_ROWS, Source
from oncelog.console.viewer import KeyGate
from oncelog.format.gather import GatheredBlocks, gather
from oncelog.log.read import scan
from oncelog.names import home_key
from oncelog.queue.send.topic import Topic
from oncelog.storage.memory import MemoryHome, MemoryStorage
from oncelog.types import Entry

LOGS = 3 * PAGE_ROWS
_VISIT = """
import asyncio, sys
from oncelog import connect
from tests.console.test_pages import _page

with connect(sys.argv[1]) as database:
    for path in sys.argv[2:]:
        print(asyncio.run(_page(database, path)).status_code)
print(sorted({"pandas", "pyspark", "duckdb"} & set(sys.modules)), file=sys.stderr)
"""


class Watched(MemoryStorage):
    """A storage that notes which homes are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def home(self, key: str) -> MemoryHome:
        """Note the key, and return the home."""
        self.asked.add(key)
        return super().home(key)


async def _run(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


async def _page(database: Database, path: str) -> httpx.Response:
    """Log in to a console of the database, and return one of its pages."""
    gate = KeyGate(SYSTEM)
    transport = httpx.ASGITransport(build(Source(database), gate, _run))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        await http.get(f"/console/login?key={gate.key}")
        return await http.get(f"/console/{path}")


async def _found(database: Database, log: str, id: str, stream: str = "") -> str:
    """Return the text of the page that answers where an id is."""
    gate = KeyGate(SYSTEM)
    transport = httpx.ASGITransport(build(Source(database), gate, _run))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        await http.get(f"/console/login?key={gate.key}")
        asked = {"log": log, "id": id, "stream": stream}
        page = await http.post("/console/find", data=asked, headers={"origin": "http://127.0.0.1"})
    assert page.status_code == 200
    return page.text.partition("<main")[2]


def test_the_page_of_an_id_does_not_deny_a_record_that_a_bounded_window_forgot() -> None:
    """A forgotten id may be stored, even twice: the page neither says that no record has it, nor that one has."""
    settings = LogSettings(window=Window(duration_s=600, max_keys=2))
    with connect("memory://") as database:
        log = database.log("orders", settings, create=True)
        with log.writer() as writer:
            for number in (*range(4), 0):
                writer.append(b"paid", id=f"order-{number}")
        assert [entry.id for entry in log.read()].count("order-0") == 2
        forgotten, twice = (asyncio.run(_found(database, "orders", id)) for id in ("order-1", "order-0"))
    assert "orders does not remember order-1" in forgotten
    assert "may still be there" in forgotten
    assert "is not stored" not in forgotten
    assert "order-0 is stored" in twice
    assert "stored once" not in twice


def test_the_page_of_an_id_asks_for_the_stream_of_an_event() -> None:
    """The id of an event is one of its stream: without a stream the page does not say that nothing is stored."""
    with connect("memory://") as database:
        database.streams("accounts", create=True).append("account-7", [Record(b"opened", id="e1")])
        unasked, there, other = (
            asyncio.run(_found(database, "accounts", "e1", stream)) for stream in ("", "account-7", "account-8")
        )
    assert "Which stream?" in unasked
    assert "not stored" not in unasked
    assert "e1 was stored once" in there
    assert "e1 is not stored in the stream account-8 of accounts" in other


def test_a_message_is_found_by_the_id_that_it_was_sent_with() -> None:
    """A queue's log knows it by tenant, key and id, such as ``0:0:user-7``, and the key picks the log: whoever typed
    ``user-7`` was told that no record has this id.
    """
    with connect("memory://") as database:
        emails = database.queue("emails", partitions=3, create=True)
        emails.send_many([Message(b"x", id=f"user-{n}") for n in range(5)])
        emails.send(b"x", id="user-9", key="customer-7")
        emails.send(b"x", id="user-8", tenant="shop")
        long = "x" * 250
        emails.send(b"x", id=long, key="customer-8")

        def found(id: str, key: str = "", log: str = "queue/emails/0") -> str:
            return asyncio.run(_found(database, log, id, key))

        assert all(f"user-{n} was stored once" in found(f"user-{n}") for n in range(5))
        assert "user-9 was stored once" in found("user-9", "customer-7")
        assert f"{long} was stored once" in found(long, "customer-8", "queue/emails/2")
        assert "no message user-9 without a key" in found("user-9")
        assert "no message user-9 with the key customer-8" in found("user-9", "customer-8")
        logs = [f"queue/emails/{number}" for number in range(3)]
        assert sum("4:shop0:user-8 was stored once" in found("4:shop0:user-8", "", log) for log in logs) == 1


@pytest.mark.parametrize(
    ("path", "says"), [("logs", "No log has this in its name"), ("queues", "No queue has this in its name")]
)
def test_a_search_that_finds_nothing_does_not_say_that_nothing_is_there(path: str, says: str) -> None:
    """There are logs and queues, and none of that name: the page says just this."""
    with connect("memory://") as database:
        database.log("orders", create=True)
        database.queue("emails", create=True)
        page = asyncio.run(_page(database, f"{path}?q=zz")).text
    assert says in page
    assert "Create one" not in page


@pytest.mark.parametrize(
    ("path", "first"),
    [("logs", 0), ("logs?page=1", PAGE_ROWS), ("logs?q=log-1&page=0", 100), ("pipelines?page=2", 100)],
)
def test_a_page_looks_into_no_more_logs_than_it_shows(path: str, first: int) -> None:
    """With 100,000 logs a page is as quick as with 50: names come from one listing, figures from the logs shown."""
    storage = Watched()
    names = [f"log-{number:03d}" for number in range(LOGS)]
    with Database(storage) as database:
        for name in names:
            database.log(name, create=True)
        storage.asked.clear()
        page = asyncio.run(_page(database, path))
    assert page.status_code == 200
    assert storage.asked == {home_key(name) for name in names[first : first + PAGE_ROWS]}


def test_a_home_without_a_log_is_not_shown_as_one() -> None:
    """A log whose creation was cut short is in the listing of homes, and no row of the page."""
    storage = MemoryStorage()
    with Database(storage) as database:
        database.log("orders", create=True)
        storage.home("unfinished").create("bodies/00000000000000000001-00", [b"x"])
        main = asyncio.run(_page(database, "logs")).text.partition("<main")[2]
    assert "orders" in main
    assert "unfinished" not in main


def test_a_page_of_a_long_log_decodes_about_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 10 million records a page is as quick as with a hundred: it does not decode thousands of blocks for 50."""
    decoded = 0

    def counting(buffers: Sequence[pa.Buffer]) -> Iterator[GatheredBlocks]:
        nonlocal decoded
        decoded += len(buffers)
        return gather(buffers)

    monkeypatch.setattr(scan, "gather", counting)
    with Database(MemoryStorage()) as database:
        with database.log("orders", create=True).writer() as writer:
            for number in range(600):
                writer.append(b"x" * 2_000, id=f"order-{number}")
        decoded = 0
        asked = [f"log?name=orders&start={position}" for position in (0, 300, 545)]
        pages = [asyncio.run(_page(database, path)) for path in [*asked, "record?log=orders&position=300"]]
    assert [page.status_code for page in pages] == [200] * 4
    assert all("order-5" in page.text for page in pages[:1])
    assert decoded < 3 * (PAGE_ROWS + 50) + 50


def test_the_pages_of_queues_read_few_dead_letters_and_count_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The overview and the list of queues read none, a queue's page reads the oldest; what they say is the count."""
    read: list[int] = []
    reading = Topic.read

    def counting(topic: Topic, partition: int, first: int, count: int, bytes_max: int | None = None) -> list[Entry]:
        found = reading(topic, partition, first, count, bytes_max)
        read.extend([first] * len(found) if topic.name.startswith("dlq.") else [])
        return found

    settings = QueueSettings(retry=RetryPolicy(max_attempts=1, backoff_s=0, max_backoff_s=0, jitter=0))
    with Database(MemoryStorage()) as database:
        mails = database.queue("mails", settings, create=True)
        mails.send_many([Message(b"hello", id=f"m-{number}") for number in range(40)])
        while len(mails.dead_letters.list()) < 40:
            with mails.consume("mailer", prefetch=40) as consumer:
                for delivery in consumer.receive(timeout_s=0.1):
                    delivery.nack("smtp 550")
        monkeypatch.setattr(Topic, "read", counting)
        monkeypatch.setattr(Source.letters, "__defaults__", (10,))
        listed = [asyncio.run(_page(database, path)).text for path in ("", "queues")]
        assert read == []
        page = asyncio.run(_page(database, "queue?name=mails")).text
    assert len(read) == 10
    assert "among the oldest" not in page  # one group has them all
    assert all('badink">40<' in text for text in listed)
    assert "dead 40<" in page
    assert "of the oldest 10<" in page


def test_letters_of_several_groups_are_counted_as_far_as_the_page_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count of a part is not shown as a count of all."""
    settings = QueueSettings(retry=RetryPolicy(max_attempts=1, backoff_s=0, max_backoff_s=0, jitter=0))
    with Database(MemoryStorage()) as database:
        mails = database.queue("mails", settings, create=True)
        mails.send_many([Message(b"hello", id=f"m-{number}") for number in range(4)])
        ends_s = time.monotonic() + 120
        for group, dead in (("a", 4), ("b", 8)):
            while len(mails.dead_letters.list()) < dead:
                assert time.monotonic() < ends_s, (group, mails.dead_letters.list())
                with mails.consume(group, prefetch=4, start="earliest") as consumer:
                    for delivery in consumer.receive(timeout_s=0.1):
                        delivery.nack("smtp 550")
        whole = asyncio.run(_page(database, "queue?name=mails")).text
        monkeypatch.setattr(Source.letters, "__defaults__", (6,))
        part = asyncio.run(_page(database, "queue?name=mails")).text
        listed = asyncio.run(_page(database, "queues")).text
    assert whole.count("dead 4<") == 2
    assert "among the oldest" not in whole
    assert "dead 4 among the oldest 6 letters<" in part
    assert "dead 2 among the oldest 6 letters<" in part
    assert listed.count('badink">8<') == 1


def test_pages_of_a_new_process_import_nothing_heavy(tmp_path: Path) -> None:
    """The first page of a server does not wait for pandas, which takes half a second, and which no page needs."""
    url = tmp_path.as_uri()
    with connect(url) as database:
        with database.log("orders", create=True).writer() as writer:
            writer.append_many([Record(b"x", id=f"order-{number}") for number in range(9)])
        database.streams("accounts", create=True).append("a", [Record(b"1", id="1"), Record(b"2", id="2")])
        database.streams("accounts").append("b", [Record(b"1", id="1")])
        database.queue("mails", create=True).send(b"hello", id="m1")
    paths = ["", "log?name=orders&start=3", "record?log=orders&position=4", "stream?log=accounts&stream=a"]
    command = [sys.executable, "-c", _VISIT, url, *paths, "queue?name=mails"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.split() == ["200"] * 5
    assert done.stderr == "[]\n"
