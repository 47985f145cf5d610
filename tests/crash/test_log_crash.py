"""Processes that die between a write and its sync, tails that are torn, and processes that fork."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog.connect import Database
from oncelog.errors import CorruptionError
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.faults import Killed
from oncelog.testing.logs.fixtures import place, places, values
from oncelog.types import Ack, Record
from tests.log.retries import on_disk, retried, write
from tests.log.watched import LONG_S, orders


class DyingDisk(SimulatedDisk):
    """A disk whose process dies the moment it syncs a segment."""

    def __init__(self) -> None:
        super().__init__()
        self.dies_at_sync = False

    def sync(self, descriptor: int) -> None:
        """Sync, or die before it."""
        if self.dies_at_sync and self._path(descriptor).suffix == ".blocks":
            self.dies_at_sync = False
            self.faults.kill_at(1)
        super().sync(descriptor)


class TestCrashes:
    """Processes that die, and machines."""

    def test_sigkill_between_write_and_sync_then_a_retry_then_a_power_cut(self) -> None:
        """What a dead writer left in the page cache is made durable before a retry of it is acknowledged."""
        disk = DyingDisk()
        writer = orders(on_disk(disk)).writer()
        acks = write(writer, range(3))
        disk.dies_at_sync = True
        with pytest.raises(Killed):
            writer.append(b"X", id="X")
        disk.crash()
        log = orders(on_disk(disk))
        assert len(values(log)) == 3, "visible means durable, and it is not durable yet"
        again = log.writer().append(b"X", id="X")
        assert (again.position, again.duplicate) == (3, True)
        disk.power_cut()
        log = orders(on_disk(disk))
        with log.writer() as writer:
            assert places(log) == [place(ack) for ack in (*acks, again)]
            assert writer.append(b"X", id="X") == again

    def test_a_power_cut_before_the_sync_then_a_retry(self) -> None:
        """What was neither synced nor acknowledged may be gone, and its retry is a new write then."""
        disk = DyingDisk()
        writer = orders(on_disk(disk)).writer()
        write(writer, range(3))
        disk.dies_at_sync = True
        with pytest.raises(Killed):
            writer.append(b"X", id="X")
        disk.power_cut()
        log = orders(on_disk(disk))
        with log.writer() as writer:
            ack = writer.append(b"X", id="X")
        assert (ack.position, ack.duplicate) == (3, False)
        assert values(log) == [b"0", b"1", b"2", b"X"]

    @pytest.fixture
    def torn(self, tmp_path: Path) -> tuple[Path, list[Ack]]:
        """Return a folder with a log that crashed with half a block behind its last one."""
        live = tmp_path / "live"
        with orders(oncelog.connect(live.as_uri())).writer() as writer:
            acks = write(writer, range(5))
            shutil.copytree(live, tmp_path / "before")
            write(writer, range(5, 6), 2000)
            shutil.copytree(live, tmp_path / "after")
        whole, longer = (next((tmp_path / name).rglob("*.blocks")) for name in ("before", "after"))
        content = longer.read_bytes()
        end = len(whole.read_bytes().rstrip(b"\x00"))
        (tmp_path / "before" / "end").write_text(str(end))
        half = (end + len(content.rstrip(b"\x00"))) // 2
        whole.write_bytes(content[:half] + bytes(len(content) - half))
        return tmp_path / "before", acks

    def test_a_torn_tail_is_cut_off(self, torn: tuple[Path, list[Ack]]) -> None:
        """Half a block is no block: readers do not see it, the next writer puts it aside and goes on before it."""
        folder, acks = torn
        log = orders(oncelog.connect(folder.as_uri()))
        assert places(log) == [place(ack) for ack in acks]
        with log.writer() as writer:
            assert write(writer, range(5)) == retried(acks)
            assert write(writer, range(5, 6), 2000)[0].position == 5
        assert len(values(log)) == 6
        assert [path.stat().st_size > 0 for path in folder.rglob("torn/*")] == [True]

    @pytest.mark.parametrize("which", [0, 2])
    def test_damage_before_the_tail_is_an_error(self, torn: tuple[Path, list[Ack]], which: int) -> None:
        """A bad block with good ones behind it is never skipped: reading and writing both say so, again and again."""
        folder, _ = torn
        path = next(folder.rglob("*.blocks"))
        content = bytearray(path.read_bytes())
        size = int((folder / "end").read_text()) // 5
        content[size * which + size // 2] ^= 1
        path.write_bytes(content)
        log = orders(oncelog.connect(folder.as_uri()))
        for _ in range(2):
            with pytest.raises(CorruptionError):
                values(log)
            with pytest.raises(CorruptionError):
                log.writer()

    @pytest.mark.parametrize("kind", ["memory", "file"])
    def test_a_log_in_a_forked_child_is_closed(self, kind: str, tmp_path: Path) -> None:
        """Every handle says so at once, although other threads held every lock there is when the process forked."""
        database = oncelog.connect("memory://" if kind == "memory" else tmp_path.as_uri())
        log = orders(database)
        writer, entries, reader = log.writer(), log.tail(), log.read()
        writer.append(b"v", id="1")
        uses: dict[str, Callable[[], object]] = {
            "append": lambda: writer.append(b"v", id="1"),
            "submit": lambda: writer.submit(b"w"),
            "append_many": lambda: writer.append_many([Record(b"w")]),
            "append_batch": lambda: writer.append_batch([Record(b"w")]),
            "flush": writer.flush,
            "snapshot": writer.snapshot,
            "counts": writer.counts,
            "window_state": lambda: writer.window_state,
            "poll": entries.poll,
            "iterate": lambda: next(entries),
            "read": lambda: next(iter(reader)),
            "log.read": log.read,
            "log.read_arrow": log.read_arrow,
            "log.tail": log.tail,
            "log.writer": log.writer,
            "log.info": log.info,
            "log.settings": lambda: log.settings,
            "log.configure": lambda: log.configure(LogSettings()),
            "db.log": lambda: database.log("orders"),
            "db.logs": database.logs,
        }
        with all_locks_held(writer, log, database):
            answers = in_a_forked_child(uses, [entries.close, reader.close, writer.close, log.close, database.close])
        assert answers == dict.fromkeys(uses, "Closed")
        assert writer.append(b"w", id="2").position == 1
        assert [entry.value for entry in log.read()] == [b"v", b"w"]
        database.close()


@contextlib.contextmanager
def all_locks_held(writer: Writer, log: Log, database: Database) -> Iterator[None]:
    """Let another thread hold what locks the handles have, for a while."""
    home: Any = log._home
    locks = [writer._committer.lock, home._bell._condition, database._lock, database._storage._lock]  # type: ignore[attr-defined]
    locks += [home._lock] if hasattr(home, "_lock") else [home._claim.writing]
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            assert done.wait(LONG_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(LONG_S)
    try:
        yield
    finally:
        done.set()
        thread.join()


def in_a_forked_child(uses: dict[str, Callable[[], object]], closes: list[Callable[[], None]]) -> dict[str, str]:
    """Return what each use raises in a forked child, which then closes everything."""
    receiver, sender = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of what this test is about
        child = os.fork()
    if child == 0:
        try:
            for name, use in uses.items():
                os.write(sender, f"{name}={_raised_by(use)}\n".encode())
            for close in closes:
                close()
            os.write(sender, b"end=")
        finally:
            os._exit(0)
    os.close(sender)
    text = b""
    try:
        while select.select([receiver], [], [], LONG_S / 4)[0]:
            piece = os.read(receiver, 4096)
            if not piece:
                break
            text += piece
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(receiver)
    *lines, last = text.decode().split("\n")
    assert last == "end=", f"the child hung behind {lines[-1:] or 'the fork'}"
    return dict(line.split("=") for line in lines)


def _raised_by(use: Callable[[], object]) -> str:
    try:
        use()
    except BaseException as error:  # noqa: BLE001  all there is to say about it
        return type(error).__name__
    return "nothing"
