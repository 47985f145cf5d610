"""A dedup snapshot saves time and nothing else: damaged, missing, misplaced or taken in the midst of appends."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import oncelog
from oncelog.connect import Database
from oncelog.errors import CorruptionError, NotFound, WriterFenced
from oncelog.format.snapshot import Snapshot
from oncelog.log.stored import snapshots
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.types import Ack
from tests.log.retries import SMALL_SEGMENTS, retried, write
from tests.log.watched import LONG_S, WatchedStorage, orders


class TestSnapshots:
    """A snapshot saves time and nothing else."""

    @pytest.fixture
    def crashed(self, tmp_path: Path) -> tuple[Path, list[Ack]]:
        """Return a folder with a log that crashed: four segments of records, snapshots after 10 and 20."""
        log = orders(oncelog.connect((tmp_path / "live").as_uri()), **SMALL_SEGMENTS)
        writer = log.writer()
        acks = []
        for number in range(3):
            acks += write(writer, range(number * 10, number * 10 + 10), 8000)
            if number < 2:
                writer.snapshot()
        assert sorted(log.info().snapshots.values()) == [10, 20]
        assert len({ack.segment for ack in acks}) == 4
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
        writer.close()
        return tmp_path / "crashed", acks

    @staticmethod
    def snapshot_files(folder: Path) -> list[Path]:
        """Return the files of the snapshots, oldest first."""
        return sorted(folder.rglob("snapshot_*"))

    @pytest.fixture(params=["a byte of the head", "a byte within", "a byte near the end", "half of it", "all of it"])
    def damage(self, request: pytest.FixtureRequest) -> Callable[[Path], None]:
        """Return what is done to a file."""

        def do(path: Path) -> None:
            content = bytearray(path.read_bytes())
            if request.param == "half of it":
                del content[len(content) // 2 :]
            elif request.param == "all of it":
                content.clear()
            else:
                where = {"a byte of the head": 20, "a byte within": len(content) // 2, "a byte near the end": -9}
                content[where[request.param]] ^= 1
            path.write_bytes(content)

        return do

    def test_newest_damaged_the_one_before_is_used(
        self, crashed: tuple[Path, list[Ack]], damage: Callable[[Path], None]
    ) -> None:
        """The older snapshot and the longer gap give the same window; what came before it cannot be read here."""
        folder, acks = crashed
        damage(self.snapshot_files(folder)[-1])
        next(iter(sorted(folder.rglob("*.blocks")))).unlink()
        assert acks[9].segment == 1  # so the gap behind the older snapshot begins in a segment that is there
        with orders(oncelog.connect(folder.as_uri())).writer() as writer:
            assert write(writer, range(30), 8000) == retried(acks)

    def test_all_damaged_the_log_is_read(self, crashed: tuple[Path, list[Ack]], damage: Callable[[Path], None]) -> None:
        """Without a snapshot to believe, the log itself says what was seen."""
        folder, acks = crashed
        for path in self.snapshot_files(folder):
            damage(path)
        with orders(oncelog.connect(folder.as_uri())).writer() as writer:
            assert write(writer, range(30), 8000) == retried(acks)
            writer.snapshot()
        with orders(oncelog.connect(folder.as_uri())).writer() as writer:
            assert write(writer, range(30), 8000) == retried(acks)

    def test_all_gone_the_log_is_read(self, crashed: tuple[Path, list[Ack]]) -> None:
        """Deleting every snapshot loses time, never correctness."""
        folder, acks = crashed
        for path in self.snapshot_files(folder):
            path.unlink()
        with orders(oncelog.connect(folder.as_uri())).writer() as writer:
            assert write(writer, range(30), 8000) == retried(acks)

    @pytest.mark.parametrize("keep_snapshots", [True, False])
    def test_never_an_empty_window(self, crashed: tuple[Path, list[Ack]], *, keep_snapshots: bool) -> None:
        """When neither a snapshot nor the log can tell, opening fails: nothing is taken for new by guessing."""
        folder, _ = crashed
        for path in self.snapshot_files(folder):
            if keep_snapshots:
                path.write_bytes(b"")
            else:
                path.unlink()
        next(iter(sorted(folder.rglob("*.blocks")))).unlink()
        log = orders(oncelog.connect(folder.as_uri()))
        for _ in range(2):
            with pytest.raises((CorruptionError, NotFound)):
                log.writer()

    def test_of_another_log_is_not_believed(self, tmp_path: Path) -> None:
        """A snapshot that got under a log's name by mistake says nothing about it."""
        database = oncelog.connect(tmp_path.as_uri())
        for name in ("orders", "other"):
            with database.log(name, create=True).writer() as writer:
                writer.append(name.encode(), id="1")
                writer.append(name.encode(), id=name)
                writer.snapshot()
        database.close()
        mine, theirs = (next(iter((tmp_path / "logs" / name).rglob("snapshot_*"))) for name in ("orders", "other"))
        shutil.copy(theirs, mine)
        with orders(oncelog.connect(tmp_path.as_uri())).writer() as writer:
            assert writer.append(b"orders", id="1").duplicate
            assert not writer.append(b"orders", id="other").duplicate

    def test_ahead_of_what_was_decided_is_not_believed(self) -> None:
        """A snapshot of records that a fence cut off would make their retries vanish."""
        storage = MemoryStorage()
        ahead = orders(Database(storage))
        with ahead.writer() as writer:
            write(writer, range(5))
            writer.snapshot()
        key = next(iter(ahead.info().snapshots))
        bytes_ahead = storage.home("orders").read(key).to_pybytes()
        shorter = MemoryStorage()
        home, source = shorter.home("orders"), storage.home("orders")
        for name in source.list(""):
            if name.endswith(("00000001", "00000002")) or name.startswith("bodies/0000000000000000000"):
                home.create(name, [source.read(name)])
        home.delete("manifest/00000000000000000003")
        home.create(key, [bytes_ahead])
        with orders(Database(shorter)).writer() as writer:
            assert [ack.duplicate for ack in write(writer, range(5))] == [False] * 5

    @pytest.mark.parametrize("window", [Window(), Window(duration_s=3600)])
    def test_of_a_log_that_went_on_elsewhere_is_not_believed(self, tmp_path: Path, window: Window) -> None:
        """A copy taken while a log was written has its records up to some place, and a snapshot that came later. Once
        the copy has as many records of its own, that snapshot would tell of ids that are not there, and of none of its
        own.
        """
        settings = LogSettings(window=window, snapshot_interval_s=1e6)
        with oncelog.connect(tmp_path / "live") as db:
            log = db.log("orders", settings, create=True)
            with log.writer() as writer:
                write(writer, range(10))
            shutil.copytree(tmp_path / "live", tmp_path / "copy")
            with log.writer() as writer:
                write(writer, range(10, 20))
                writer.snapshot()
                shutil.copytree(tmp_path / "live" / "logs", tmp_path / "late")
        for path in self.snapshot_files(tmp_path / "late"):
            target = tmp_path / "copy" / "logs" / path.relative_to(tmp_path / "late")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        with oncelog.connect(tmp_path / "copy") as db, db.log("orders").writer() as writer:
            acks = write(writer, range(100, 120))
            shutil.copytree(tmp_path / "copy", tmp_path / "crashed")
        with oncelog.connect(tmp_path / "crashed") as db:
            log = db.log("orders")
            with log.writer() as writer:
                assert write(writer, range(100, 120)) == retried(acks)
                assert not any(ack.duplicate for ack in write(writer, range(10, 20)))
            assert log.verify().findings == ()

    def test_the_newest_is_the_one_that_covers_most(self) -> None:
        """Names come from a clock that jumps: the higher watermark is the newer one, and two are kept."""
        storage, clock = MemoryStorage(), SimulatedClock()
        log = orders(Database(storage, clock))
        with log.writer() as writer:
            for number in range(5):
                write(writer, range(number, number + 1))
                writer.snapshot()
                clock.jump(-3600 if number % 2 else 1800)
            assert sorted(log.info().snapshots.values()) == [4, 5]

    @pytest.mark.parametrize("in_flight_max", [1, 4])
    def test_a_snapshot_and_its_position_are_taken_together(self, in_flight_max: int) -> None:
        """While four threads append: each snapshot holds exactly the ids below the position it claims."""
        storage = MemoryStorage(in_flight_max=in_flight_max)
        log = orders(Database(storage))
        home, log_id = storage.home("orders"), log.info().log_id
        enough = threading.Event()

        def keep_writing(writer: Writer, first: int) -> None:
            for number in range(first, first + 1_000_000):
                if enough.is_set():
                    return
                write(writer, range(number, number + 1))

        taken: list[Snapshot] = []
        with log.writer() as writer, ThreadPoolExecutor(4) as pool:
            working = [pool.submit(keep_writing, writer, n * 1_000_000) for n in range(4)]
            try:
                while len({found.watermark for found in taken}) < 5:
                    writer.snapshot()
                    taken.append(next(snapshots.readable(home, log_id, 1 << 60)))
            finally:
                enough.set()
            for future in working:
                future.result()
        assert {tuple(found.positions.tolist()) for found in taken} == {
            tuple(range(found.watermark)) for found in taken
        }
        by_position = {position: fingerprint for found in taken for position, fingerprint in zip(
            found.positions.tolist(), found.fingerprints.tolist(), strict=True)}  # fmt: skip
        for found in taken:
            assert [by_position[position] for position in range(found.watermark)] == found.fingerprints.tolist()

    def test_a_pending_id_is_in_no_snapshot(self) -> None:
        """What is not durable may yet be lost: a snapshot that knew it would swallow its retry."""
        storage = WatchedStorage()
        log = orders(Database(storage))
        writer = log.writer()
        write(writer, range(1))
        storage.otherwise = "refused"
        future = writer.submit(b"X", id="X")
        storage.wait_for_offers(2)
        writer.snapshot()
        assert list(log.info().snapshots.values()) == [1]
        new = orders(Database(storage)).writer(takeover="force")
        storage.otherwise = "stored"
        assert not new.append(b"X", id="X").duplicate
        assert isinstance(future.exception(LONG_S), WriterFenced)
        new.close()
