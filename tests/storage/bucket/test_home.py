"""What is particular to a home in a bucket: its probe, its fences, what it costs, and what it says when it fails."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Self

import obstore
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

import oncelog
from benchmarks.seaweedfs import BUCKET, SeaweedFS
from oncelog import limits
from oncelog.connect import Database
from oncelog.errors import (
    Closed,
    CorruptionError,
    InvalidArgument,
    LogBusy,
    NotFound,
    OncelogError,
    Unavailable,
    Unsupported,
    WriterFenced,
)
from oncelog.log.read import reader
from oncelog.settings import LogSettings
from oncelog.storage import looks
from oncelog.storage.base import Chunk, LogHome
from oncelog.storage.bucket import bucket as bucket_module
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import FETCHERS, IN_FLIGHT_MAX, ObjectHome, ObjectStorage
from oncelog.testing.blocks import BlockChain
from oncelog.testing.bucket import FaultyBucket
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.writing import fill, read_all

LONG_S = 60.0
IDLE_S = 600 if os.environ.get("ONCELOG_SOAK") == "1" else 120
"""How long a tail waits for nothing, a second at a time."""


@pytest.fixture
def home(memory_bucket: Bucket) -> LogHome:
    """Return the home of one log, in memory."""
    return ObjectStorage(memory_bucket).home("orders")


def spent(bucket: Bucket, work: Callable[[], object]) -> Counter[str]:
    """Return the requests that some work takes."""
    before = Counter(bucket.requests)
    work()
    return bucket.requests - before


class Careless(Bucket):
    """A store that takes a conditional create for a plain one, as some do."""

    def create(self, path: str, data: Sequence[Chunk]) -> bool:
        """Replace what is there."""
        self.delete(path)
        return super().create(path, data)


class TestProbe:
    """A store that cannot keep two writers apart is refused before anything is written to it."""

    def test_a_store_without_conditional_creates_is_refused(self) -> None:
        """The error says what is missing, and no log is there afterwards."""
        bucket = Careless(MemoryStore(), "s3://careless")
        database = Database(ObjectStorage(bucket))
        with pytest.raises(Unsupported, match="conditional creates"):
            database.log("orders", create=True)
        assert database.logs() == []
        assert bucket.below("") == []

    def test_the_probe_leaves_nothing_behind(self, memory_bucket: Bucket, home: LogHome) -> None:
        """What it tried is deleted again."""
        home.probe()
        assert memory_bucket.below("") == []


class TestFences:
    """A fence in the first hole, no matter who is quicker."""

    def test_a_busy_writer_is_caught_in_a_few_rounds(self, memory_bucket: Bucket) -> None:
        """A writer that is always in before the fence is stopped further ahead, and all that it has counts."""
        home = ObjectStorage(memory_bucket).home("orders")
        chain, number, stopped = BlockChain(0), 0, False
        writer = home.start_segment(0, 1)

        class Outrun(Bucket):
            """Lets the writer go on whenever somebody has looked."""

            def below(self, prefix: str, after: str | None = None) -> list[tuple[str, int]]:
                nonlocal number, stopped
                found = super().below(prefix, after)
                for _ in range(5):
                    if not stopped:
                        try:
                            writer.append(number, chain.block(b"v"))
                            number += 1
                        except WriterFenced:
                            stopped = True
                return found

        outrun = Outrun(memory_bucket._store, "s3://memory")
        tail = ObjectStorage(outrun).home("orders").fence(0, 2)
        assert stopped
        assert tail.blocks == number
        assert outrun.requests["list"] < 10
        assert read_all(home, 0, tail.end) == chain.made[:number]

    def test_a_block_behind_the_hole_is_never_read_and_goes_with_its_segment(
        self, memory_bucket: Bucket, home: LogHome
    ) -> None:
        """What came after something that never arrived was not acknowledged: readers stop before it."""
        writer, chain = home.start_segment(0, 1), BlockChain(0)
        blocks = [chain.block(b"v%d" % number) for number in range(IN_FLIGHT_MAX)]
        for number in (0, 2, 3):
            writer.append(number, blocks[number])
        assert read_all(home, 0, None) == chain.made[:1]
        assert home.visible(0) == 1
        tail = home.fence(0, 2)
        assert (tail.blocks, tail.entries) == (1, 1)
        with pytest.raises(WriterFenced):
            writer.append(1, blocks[1])
        assert read_all(home, 0, None) == chain.made[:1]
        home.remove_segment(0)
        assert [key for key, _ in memory_bucket.below("")] == ["logs/orders/segments/00000000000000000000/0000000001"]

    def test_fences_outlive_their_segment(self, home: LogHome) -> None:
        """A writer that slept until its segment was deleted does not find its number free."""
        fill(home, 0, 2)
        home.fence(0, 2)
        home.remove_segment(0)
        with pytest.raises(WriterFenced):
            home.start_segment(0, 1).append(2, BlockChain(0).block(b"late"))

    def test_what_is_neither_block_nor_fence_is_damage(self, memory_bucket: Bucket, home: LogHome) -> None:
        """Bytes that nobody wrote are not passed over."""
        fill(home, 0, 1)
        memory_bucket.create("logs/orders/segments/00000000000000000000/0000000001", [b"x" * 500])
        with pytest.raises(CorruptionError):
            home.blocks(0, 0, None, 1 << 30)


class TestReadingAhead:
    """What was fetched before it was asked for is what it would be if it were asked for now."""

    @pytest.mark.parametrize("closed", [False, True])
    def test_that_there_was_nothing_is_not_remembered(self, home: LogHome, *, closed: bool) -> None:
        """A reader stops in the middle; the segment goes on, and may be closed: the next reader sees what came."""
        writer, chain = home.start_segment(0, 1), BlockChain(0)
        sizes = [10, 10, 10, 10, 50_000, 10, 10, 10]  # the fifth fills the first reader's hands; more is on its way
        blocks = [chain.block(b"v" * size_bytes) for size_bytes in sizes]
        for number in range(6):
            writer.append(number, blocks[number])
        assert len(home.blocks(0, 0, None, 20_000)[0]) == 5
        for number in (6, 7):
            writer.append(number, blocks[number])
        end = home.fence(0, 2).end if closed else None
        assert read_all(home, 0, end, 6) == chain.made[6:]

    def test_a_failure_is_not_remembered(self, memory_bucket: Bucket) -> None:
        """An outage that is over is no error of a block that nobody had asked for."""
        faulty = FaultyBucket(memory_bucket)
        home = ObjectStorage(faulty).home("orders")
        chain = fill(home, 0, 4)
        away = threading.Event()

        def cut(_operation: str, what: str) -> Exception | None:
            if not what.endswith("0000000001"):
                return None
            away.set()
            return Unavailable("away")

        faulty.faults.fail_forever(cut)
        assert len(home.blocks(0, 0, 4, 1)[0]) == 1
        assert away.wait(LONG_S)
        faulty.faults.heal()
        assert read_all(home, 0, 4) == chain.made

    def test_what_is_kept_for_one_reader_serves_another_that_knows_no_end_yet(self, home: LogHome) -> None:
        """A segment is closed while it is read: one reader has seen that, and another of the same log has not."""
        chain = fill(home, 0, 40)
        assert len(home.blocks(0, 0, None, 1)[0]) == 1
        assert len(home.blocks(0, 0, home.fence(0, 2).end, 1)[0]) == 1
        assert read_all(home, 0, None, 1) == chain.made[1:]

    def test_a_reader_whose_database_is_closed_is_told_so(self, memory_bucket: Bucket) -> None:
        """Another thread may close it at any moment: that is no bug of the reader's."""
        storage = ObjectStorage(memory_bucket)
        home = storage.home("orders")
        fill(home, 0, 2)
        storage.close()
        with pytest.raises(Closed):
            home.blocks(0, 0, None, 1)


class TestWaiting:
    """A tail that looks for the next block."""

    def test_a_look_that_takes_long_holds_nobody_up(self, memory_bucket: Bucket) -> None:
        """A writer beside it, and anybody who closes it, do not wait for the answer."""
        asked, answered = threading.Event(), threading.Event()

        class Slow(Bucket):
            def size(self, path: str) -> int | None:
                asked.set()
                assert answered.wait(LONG_S)
                return super().size(path)

        home = ObjectStorage(Slow(memory_bucket._store, "s3://memory")).home("orders")
        with ThreadPoolExecutor(2) as pool:
            waiting = pool.submit(home.wait, (0, 0), LONG_S)
            assert asked.wait(LONG_S)
            try:
                pool.submit(fill, home, 0, 1).result(LONG_S / 10)
                pool.submit(home.wake).result(LONG_S / 10)
            finally:
                answered.set()
            waiting.result(LONG_S)


class TestDeleting:
    """A log that is deleted is gone, and stays apart from another of its name."""

    def test_cut_short_anywhere_it_can_be_finished(self) -> None:
        """Every request may fail: the same call again finds what is left, whatever has become of the manifest."""
        for number in count(1):
            bucket = FaultyBucket(Bucket(MemoryStore(), "s3://memory"))
            database = Database(ObjectStorage(bucket))
            log = database.log("orders", create=True)
            for _ in range(3):
                with log.writer() as writer:
                    writer.append(b"v")
            bucket.fail_at(number)
            try:
                database.delete("orders")
                break
            except OncelogError:
                database.delete("orders")
            assert bucket.below("") == []
        assert number > 20

    def test_who_held_it_does_not_touch_another_of_its_name(self, memory_bucket: Bucket) -> None:
        """A version on top of those of the old log would become the new one's truth, once it gets there."""
        old = Database(ObjectStorage(memory_bucket)).log("orders", create=True)
        for _ in range(3):
            with old.writer() as writer:
                writer.append(b"old")
        database = Database(ObjectStorage(memory_bucket))
        database.delete("orders")
        with pytest.raises(NotFound, match="deleted"):
            old.configure(LogSettings(segment_bytes=1 << 20))
        new = database.log("orders", create=True)
        for number in range(10):
            with new.writer() as writer:
                assert writer.append(b"new").position == number
            with pytest.raises(NotFound, match="deleted"):
                old.configure(LogSettings(segment_bytes=1 << 20))
        assert new.verify().ok


class TestCost:
    """Every request is paid for."""

    def test_a_tail_at_rest_lists_nothing(self, memory_bucket: Bucket) -> None:
        """A poll that finds nothing costs a few small requests; one that finds a block hardly more."""
        log = Database(ObjectStorage(memory_bucket)).log("orders", create=True)
        with log.writer() as writer, log.tail("latest") as tail:
            writer.append(b"first")
            assert tail.poll(10) is not None
            idle = spent(memory_bucket, tail.poll)
            writer.append(b"second")
            busy = spent(memory_bucket, lambda: tail.poll(10))
        assert idle["list"] == busy["list"] == 0
        assert idle.total() <= 3
        assert busy.total() <= 6

    def test_an_idle_tail_asks_once_a_second(self) -> None:
        """Minutes of waiting cost their seconds in requests; what comes at last is seen within a few seconds."""
        store, clock = MemoryStore(), SimulatedClock(auto_advance=True)
        mine = Bucket(store, "s3://memory")
        elsewhere = Database(ObjectStorage(Bucket(store, "s3://memory"))).log("orders", create=True)
        with elsewhere.writer() as writer, Database(ObjectStorage(mine, clock), clock).log("orders").tail(0) as tail:
            writer.append(b"first")
            assert tail.poll(10) is not None
            assert tail.poll(10) is None, "it asks more often after a block came"
            idle = spent(mine, lambda: [tail.poll(1.0) for _ in range(IDLE_S)])
            deleted = IDLE_S // 30  # looks whether the log is still there
            assert IDLE_S * 5 // 6 <= idle.total() <= IDLE_S + 10 + deleted
            before_us = clock.elapsed_us()
            writer.append(b"second")
            assert tail.poll(10) is not None
            assert clock.elapsed_us() - before_us < 3e6

    def test_an_idle_tail_of_a_log_that_nobody_writes_asks_once_a_second(self) -> None:
        """It waits for a manifest, not for a block."""
        store, clock = MemoryStore(), SimulatedClock(auto_advance=True)
        mine = Bucket(store, "s3://memory")
        elsewhere = Database(ObjectStorage(Bucket(store, "s3://memory"))).log("orders", create=True)
        with elsewhere.writer() as writer:
            writer.append(b"first")
        with Database(ObjectStorage(mine, clock), clock).log("orders").tail(0) as tail:
            assert tail.poll(10) is not None
            assert tail.poll(10) is None
            deleted = IDLE_S // 30  # looks whether the log is still there
            assert spent(mine, lambda: [tail.poll(1.0) for _ in range(IDLE_S)]).total() <= IDLE_S + 10 + deleted
            with elsewhere.writer() as writer:
                writer.append(b"second")
                assert tail.poll(10) is not None

    def test_a_commit_of_this_process_wakes_a_tail_without_a_request(
        self, memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever handle wrote: a tail that would ask again in an hour only has the record at once."""
        for module, name in ((looks, "IDLE_POLL_S"), (looks, "POLL_S"), (reader, "LOOK_S")):
            monkeypatch.setattr(module, name, 3_600.0)
        db = Database(ObjectStorage(memory_bucket))
        log = db.log("orders", LogSettings(commit_interval_s=0), create=True)
        with log.writer() as writer, db.log("orders").tail("latest") as tail:
            assert tail.poll(0.01) is None
            writer.append(b"one")
            assert tail.poll(LONG_S) is not None
            assert tail.poll(0.01) is None
            assert spent(memory_bucket, lambda: tail.poll(0.01)).total() == 0
            came: list[object] = []
            waiting = threading.Thread(target=lambda: came.append(tail.poll(LONG_S)))
            waiting.start()
            writer.append(b"two")
            waiting.join()
            assert came[0] is not None

    def test_a_reader_asks_for_every_block_once(self, memory_bucket: Bucket) -> None:
        """Reading thousands of blocks takes about as many requests, and several at a time."""
        log = Database(ObjectStorage(memory_bucket)).log("orders", LogSettings(commit_interval_s=0), create=True)
        blocks = 2_000
        with log.writer() as writer:
            for number in range(blocks):
                writer.append(b"%d" % number)
        found: list[bytes] = []
        cost = spent(memory_bucket, lambda: found.extend(entry.value for entry in log.read()))
        assert found == [b"%d" % number for number in range(blocks)]
        assert cost["get"] <= blocks + 10
        assert cost["list"] == 0
        assert cost.total() <= blocks + 20

    def test_more_is_on_its_way_for_a_reader_that_goes_on(self, memory_bucket: Bucket) -> None:
        """Who reads one block has one more fetched; who asks for that, too, has as many on their way as there are
        threads, before anything else has come.
        """
        asked, answered = threading.Semaphore(0), threading.Event()

        class Slow(Bucket):
            def get(self, path: str, start: int = 0, length: int | None = None) -> pa.Buffer:
                if int(path[-10:]) > 1:
                    asked.release()
                    assert answered.wait(LONG_S)
                return super().get(path, start, length)

        home = ObjectStorage(Slow(memory_bucket._store, "s3://memory")).home("orders")
        chain = fill(home, 0, 40)
        found = list(home.blocks(0, 0, 40, 1)[0])
        assert not asked.acquire(blocking=False)
        found += home.blocks(0, 1, 40, 1)[0]
        assert all(asked.acquire(timeout=LONG_S) for _ in range(FETCHERS))
        answered.set()
        found += read_all(home, 0, 40, 2)
        assert [bytes(block) for block in found] == chain.made

    def test_fetching_goes_on_with_the_next_segment(self, memory_bucket: Bucket) -> None:
        """Who reads on has blocks of the next closed segment on their way before the last of this one has come; each is
        asked for once. Without a next segment, fetching ends with this one.
        """
        asked, answered = threading.Semaphore(0), threading.Event()

        class Slow(Bucket):
            def get(self, path: str, start: int = 0, length: int | None = None) -> pa.Buffer:
                if int(path[-10:]) > 1 or "/00000000000000000001/" in path:
                    asked.release()
                    assert answered.wait(LONG_S)
                return super().get(path, start, length)

        slow = Slow(memory_bucket._store, "s3://memory")
        home = ObjectStorage(slow).home("orders")
        chains = [fill(home, segment, 6) for segment in range(2)]
        before = slow.requests["get"]
        found = list(home.blocks(0, 0, 6, 1, (1, 6))[0])
        found += home.blocks(0, 1, 6, 1, (1, 6))[0]
        assert all(asked.acquire(timeout=LONG_S) for _ in range(4 + 6))
        answered.set()
        found += read_all(home, 0, 6, 2)
        found += read_all(home, 1, 6)
        assert [bytes(block) for block in found] == [bytes(block) for chain in chains for block in chain.made]
        assert slow.requests["get"] - before == 12

    def test_a_reader_of_many_segments_asks_for_every_block_once(self, memory_bucket: Bucket) -> None:
        """Blocks that are on their way across the end of a segment are those that are read next."""
        settings = LogSettings(commit_interval_s=0, segment_bytes=limits.SEGMENT_BYTES_MIN, seal="off")
        log = Database(ObjectStorage(memory_bucket)).log("orders", settings, create=True)
        blocks, value = 80, b"v" * (limits.SEGMENT_BYTES_MIN // 20)
        with log.writer() as writer:
            for _ in range(blocks):
                writer.append(value)
        found: list[int] = []
        cost = spent(memory_bucket, lambda: found.extend(entry.segment for entry in log.read()))
        assert (len(found), len(set(found))) == (blocks, 5)
        assert cost["get"] <= blocks + 5
        assert cost.total() <= blocks + 10

    @pytest.mark.parametrize(
        ("segment_bytes", "value_bytes"),
        [(limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MIN // 4), (64 * limits.MIB, limits.MIB)],
    )
    def test_blocks_of_a_deleted_log_are_not_read(
        self, memory_bucket: Bucket, segment_bytes: int, value_bytes: int
    ) -> None:
        """They were fetched ahead, and another log was made under the name: its segments have the same numbers."""
        settings = LogSettings(commit_interval_s=0, segment_bytes=segment_bytes, seal="off")

        def made(letter: bytes) -> Database:
            database = Database(ObjectStorage(memory_bucket))
            with database.log("orders", settings, create=True).writer() as writer:
                for _ in range(24):
                    writer.append(letter * value_bytes)
            return database

        first = made(b"a")
        log = Database(ObjectStorage(memory_bucket)).log("orders")
        with log.read() as entries:
            assert next(iter(entries)).value[:1] == b"a"
        assert isinstance(log._home, ObjectHome)
        fetching = log._home._fetching
        assert fetching._kept
        wait(fetching._kept.values())
        first.delete("orders")
        made(b"b")
        with log.read() as entries:
            assert {entry.value[:1] for entry in entries} == {b"b"}

    def test_a_block_that_is_not_full_waits_for_more(self, memory_bucket: Bucket) -> None:
        """Of what arrives within the interval one block is made; the first record does not wait, nor does a flush."""
        log = Database(ObjectStorage(memory_bucket)).log("orders", LogSettings(commit_interval_s=60), create=True)
        with log.writer() as writer:
            writer.append(b"first")
            futures = [writer.submit(b"%d" % number) for number in range(100)]
            writer.flush()
            assert [future.result().position for future in futures] == list(range(1, 101))
            assert writer.counts().commits == 2

    def test_a_full_block_does_not_wait(self, memory_bucket: Bucket) -> None:
        """The interval is for blocks that are not worth a request yet."""
        settings = LogSettings(commit_interval_s=60, block_records=10)
        log = Database(ObjectStorage(memory_bucket)).log("orders", settings, create=True)
        with log.writer() as writer:
            writer.append(b"first")
            acks = writer.append_many([oncelog.Record(b"%d" % number) for number in range(100)])
            assert acks[-1].position == 100
            assert writer.counts().commits == 11


class Answering(ThreadingHTTPServer):
    """A store that answers every request with the next of some answers: a status, and an error's code."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self.answers = list(answers)
        super().__init__(("127.0.0.1", 0), _Answer)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def bucket(self) -> Bucket:
        """A bucket on it."""
        endpoint = f"http://127.0.0.1:{self.server_port}"
        options = {"endpoint": endpoint, "region": "x", "access_key_id": "x", "secret_access_key": "x"}
        return Bucket.connect("s3://shop", options)


class _Answer(BaseHTTPRequestHandler):
    server: Answering

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status, code = self.server.answers.pop(0)
        body = f"<Error><Code>{code}</Code></Error>".encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class TestAnswers:
    """What a store says of a create, and what that means."""

    def test_something_is_there(self) -> None:
        """Only a store that says so is believed to have it."""
        with Answering((412, "PreconditionFailed")) as server:
            assert not server.bucket.create("key", [b"v"])

    @pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted"])
    def test_two_creates_that_meet_are_not_decided(self, code: str) -> None:
        """Amazon asks for another attempt: nothing may be there, and who looked for it would not find it."""
        with Answering((409, code)) as server, pytest.raises(Unavailable) as undecided:
            server.bucket.create("key", [b"v"])
        assert undecided.value.outcome == "unknown"

    def test_refused_when_it_was_asked_again(self) -> None:
        """The client repeats a request; credentials may have run out after the first of two, which may have got in."""
        with Answering((500, "InternalError"), (403, "AccessDenied")) as server, pytest.raises(Unavailable) as refused:
            server.bucket.create("key", [b"v"])
        assert "credentials" in str(refused.value)
        assert refused.value.outcome == "unknown"


class TestErrors:
    """What a stranger is told."""

    def test_an_option_that_there_is_not(self) -> None:
        """A misspelt option is refused, not ignored."""
        with pytest.raises(InvalidArgument, match="acess_key"):
            oncelog.connect("s3://shop", options={"acess_key": "x"})

    def test_options_for_a_disk(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        """A folder has no options."""
        with pytest.raises(InvalidArgument, match="buckets"):
            oncelog.connect(tmp_path_factory.mktemp("shop").as_uri(), options={"region": "x"})

    def test_without_the_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who lacks the package is told its name."""
        for name in [name for name in sys.modules if name.startswith(("obstore", "oncelog.storage.bucket.bucket"))]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "obstore", None)
        with pytest.raises(Unsupported, match=r"oncelog\[object\]"):
            oncelog.connect("s3://shop/orders")

    def test_wrong_credentials(self, seaweedfs: SeaweedFS) -> None:
        """Who may not is told to look at the credentials, and nothing was written."""
        wrong = {**seaweedfs.options, "secret_access_key": "wrong"}
        database = oncelog.connect(f"s3://{BUCKET}/wrong", options=wrong)
        with pytest.raises(Unavailable, match="credentials") as refused:
            database.log("orders", create=True)
        assert refused.value.outcome == "not written"
        with pytest.raises(Unavailable, match="credentials"):
            database.logs()

    def test_a_bucket_that_is_not_there(self, seaweedfs: SeaweedFS) -> None:
        """Who names no bucket that there is, is told that, and not the words of a protocol."""
        database = oncelog.connect("s3://nowhere/shop", options=seaweedfs.options)
        with pytest.raises(Unavailable, match=r"there is no such bucket: make it first, or name another one$"):
            database.logs()

    def test_by_options(self, seaweedfs: SeaweedFS) -> None:
        """Options are enough: nothing has to be in the environment."""
        with oncelog.connect(f"s3://{BUCKET}/by-options", options=seaweedfs.options) as database:
            with pytest.raises(NotFound):
                database.log("orders")
            with database.log("orders", create=True).writer() as writer:
                assert writer.append(b"v").position == 0

    def test_a_server_that_is_not_there(self) -> None:
        """Nobody answers: try again."""
        options = {"endpoint": "http://127.0.0.1:1", "region": "x", "access_key_id": "x", "secret_access_key": "x"}
        with pytest.raises(Unavailable):
            oncelog.connect("s3://shop", options=options).logs()

    def test_a_log_with_a_writer_is_not_deleted(self, bucket_url: str) -> None:
        """Deleting under a writer would lose what it acknowledges next."""
        with oncelog.connect(bucket_url) as database:
            with database.log("orders", create=True).writer() as writer:
                writer.append(b"v")
                with pytest.raises(LogBusy):
                    database.delete("orders")
            database.delete("orders")
            assert database.logs() == []


def test_a_block_is_sent_without_being_copied(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pieces go to the client as they are: to put them together took as long as to look up a third of the ids."""
    given: list[Chunk] = [b"head", pa.py_buffer(b"column"), b""]
    sent: list[list[memoryview]] = []
    put = obstore.put

    def seen(store: object, path: str, content: list[memoryview], **options: object) -> object:
        sent.append(content)
        return put(store, path, content, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(obstore, "put", seen)
    assert memory_bucket.create("a", given)
    assert [view.obj for view in sent[0]] == given
    assert memory_bucket.get("a").to_pybytes() == b"headcolumn"
    assert not memory_bucket.create("a", given)
    assert memory_bucket.create("b", [b""])
    assert memory_bucket.get("b").to_pybytes() == b""


@pytest.mark.parametrize("offset", range(0, 64, 4))
def test_what_was_fetched_is_copied_only_where_arrow_cannot_use_it(offset: int) -> None:
    """Numbers of eight bytes at multiples of eight are read in place, others are moved."""
    whole = pa.allocate_buffer(128)
    assert whole.address % 64 == 0
    fetched = whole.slice(offset, 32)
    found = bucket_module._aligned(fetched)
    assert found.equals(fetched)
    assert found.address % 8 == 0
    assert (found.address == fetched.address) == (offset % 8 == 0)
