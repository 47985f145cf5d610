"""Homes on a local disk: objects and segments are files, and the operating system's lock decides who writes.

::

    <root>/logs/<home>/<key>                         an object
    <root>/logs/<home>/segments/<number>.blocks      a segment: blocks, then zeros
    <root>/logs/<home>/lock                          held by the writer
    <root>/logs/<home>/published                     how far the open segment may be read
    <root>/logs/<home>/torn/<segment>-<offset>.bin   what recovery cut off
    <root>/logs/<home>/temporary/                    objects that are being written, where a file needs a name for that
    <root>/removed/                                  homes that are being deleted
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from oncelog.clock import SYSTEM, Clock
from oncelog.errors import InvalidArgument, WriterFenced
from oncelog.storage.base import Chunk, Following, SegmentEnd
from oncelog.storage.bell import Bell
from oncelog.storage.keys import check_home_key, is_home_key
from oncelog.storage.local import lock
from oncelog.storage.local.disk import Disk, RealDisk, close_quietly, explain
from oncelog.storage.local.lock import LocalClaim
from oncelog.storage.local.objects import BLOCKS_SUFFIX, LOCK, PUBLISHED, SEGMENTS, TORN, Folders, Objects
from oncelog.storage.local.published import Publisher, read_published
from oncelog.storage.local.recovery import recover, whole_blocks
from oncelog.storage.local.segment_reader import SegmentReader, segment_path
from oncelog.storage.local.segment_writer import LocalSegmentWriter

_POLL_S = 0.01
_LOGS = "logs"
_REMOVED = "removed"
_REMOVED_NAME = re.compile(r"[A-Za-z0-9._~%-]+-[0-9a-f]{16}")
"""What a home is called that is being deleted."""

Buffers = list[pa.Buffer]


class LocalStorage:
    """The home of a database in a folder of a local disk, shared by the processes of one machine."""

    def __init__(self, root: Path, disk: Disk | None = None, clock: Clock = SYSTEM) -> None:
        self.url = root.absolute().as_uri()
        self._root = Path(os.path.realpath(root))  # links above it are the user's own; below it none is followed
        self._disk = RealDisk() if disk is None else disk
        self._clock = clock
        self._folders = Folders(self._disk, self._root)
        self._lock = threading.Lock()
        self._homes: dict[str, LocalHome] = {}

    def homes(self) -> list[str]:
        """Return the keys of the homes there are, sorted. A folder that cannot be one (lost+found, say) is not."""
        logs = self._root / _LOGS
        try:
            names = [name for name, is_folder in self._disk.list_directory(logs) if is_folder]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise explain(error, logs) from error
        return sorted(name for name in names if is_home_key(name))

    def home(self, key: str) -> LocalHome:
        """Return the home of one log, the same object for the same key. Nothing is made on disk yet."""
        check_home_key(key)
        with self._lock:
            if key not in self._homes:
                self._homes[key] = LocalHome(self._disk, self._folders, self._root / _LOGS / key, self._clock)
            return self._homes[key]

    def remove_home(self, key: str) -> None:
        """Delete a log's home: its name at once, then all in it."""
        home = self._root / _LOGS / check_home_key(key)
        removed = self._root / _REMOVED
        try:
            if self._disk.is_directory(home):
                self._folders.settle(removed)
                self._disk.rename(home, removed / f"{key}-{self._clock.token(8).hex()}")
                self._disk.sync_directory(home.parent)
            self._remove_homes(removed)
        except OSError as error:
            raise explain(error, home, "unknown") from error
        finally:
            self._folders.forget()
            self.home(key).forget()

    def close(self) -> None:
        """Let go of the files that are mapped. May be repeated."""
        with self._lock:
            homes = list(self._homes.values())
        for home in homes:
            home.forget()

    def _remove_homes(self, removed: Path) -> None:
        """Remove folders that were renamed for removal, now or by a process that died. Other folders are left alone."""
        with contextlib.suppress(FileNotFoundError):
            for name, is_folder in self._disk.list_directory(removed):
                if is_folder and _REMOVED_NAME.fullmatch(name):
                    with contextlib.suppress(FileNotFoundError):
                        self._remove_below(removed / name)
                        self._disk.remove_directory(removed / name)

    def _remove_below(self, folder: Path) -> None:
        """Remove all in a folder. Another process may be at it too."""
        with contextlib.suppress(FileNotFoundError):
            for name, is_folder in self._disk.list_directory(folder):
                with contextlib.suppress(FileNotFoundError):
                    if is_folder:
                        self._remove_below(folder / name)
                        self._disk.remove_directory(folder / name)
                    else:
                        self._disk.unlink(folder / name)


class LocalHome:
    """The home of one log in a folder. Safe to share between threads and processes."""

    exclusive = True
    seals_early = False
    looking_costs = False

    def __init__(self, disk: Disk, folders: Folders, path: Path, clock: Clock) -> None:
        self._disk = disk
        self._folders = folders
        self._path = path
        self._clock = clock
        self._objects = Objects(disk, folders, path, clock)
        self._reader = SegmentReader(disk, path)
        self._bell = _bell_of(path)
        self._claim: LocalClaim | None = None
        self._writers: weakref.WeakValueDictionary[int, LocalSegmentWriter] = weakref.WeakValueDictionary()

    def probe(self) -> None:
        """Do nothing: the first create reports what is wrong with a folder."""

    def create(self, key: str, data: Sequence[Chunk]) -> bool:
        """Store an object that nobody has stored; ``False`` when it exists."""
        return self._objects.create(self._objects.path(key), data)

    def read(self, key: str, start: int = 0, length: int | None = None, *, mapped: bool = False) -> pa.Buffer:
        """Return an object's bytes from ``start``, at most ``length`` of them."""
        return self._objects.read(self._objects.path(key), start, length, mapped=mapped)

    def location(self, key: str) -> str:
        """Return an object's path."""
        return str(self._objects.path(key))

    def exists(self, key: str) -> bool:
        """Tell whether an object is there."""
        return self._objects.exists(self._objects.path(key))

    def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, sorted."""
        return self._objects.keys(prefix)

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        self._objects.delete(self._objects.path(key))

    def claim(self, wait_s: float, *, force: bool) -> LocalClaim:
        """Lock the log, waiting up to ``wait_s``; else ``LogBusy``: a living holder cannot be fenced, forced or not."""
        try:
            self._folders.settle(self._path)
        except OSError as error:
            raise explain(error, self._path) from error
        claim = lock.acquire(self._disk, self._path / LOCK, wait_s, self._clock, force=force)
        self._claim = claim
        self._objects.clean()
        return claim

    def start_segment(self, segment: int, epoch: int) -> LocalSegmentWriter:  # noqa: ARG002  the lock is what counts here
        """Make a new segment's file, durably. What an earlier attempt left of it is replaced."""
        path = segment_path(self._path, segment)
        claim = self._held()
        writer = LocalSegmentWriter(
            self._disk, path, segment, claim=claim, publisher=self._publisher(), bell=self._bell
        )
        with claim.writing:
            claim.check()
            try:
                self._folders.settle(path.parent)
                self._refuse_if_begun(path, segment)
                writer.start()
            except OSError as error:
                writer.close()
                raise explain(error, path, "unknown") from error
        self._writers[segment] = writer
        return writer

    def fence(self, segment: int, epoch: int) -> SegmentEnd:  # noqa: ARG002  the lock is what counts here
        """Close a segment to its writer and make its tail certain; called under the claim."""
        path = segment_path(self._path, segment)
        published = self._publisher()
        claim = self._held()
        with claim.writing:
            claim.check()
            writer = self._writers.get(segment)
            if writer is not None:
                writer.fence()
            try:
                tail, whole = recover(
                    self._disk,
                    path,
                    segment,
                    torn=self._path / TORN,
                    objects=self._objects,
                    published_end=self._end_of(segment),
                )
                if tail.blocks:
                    published.begin(segment, tail.end, tail.entries)
            except OSError as error:
                raise explain(error, path, "unknown") from error
            finally:
                published.close()
        self._reader.learn(segment, whole)
        self._bell.nudge()
        return tail

    def blocks(
        self,
        segment: int,
        cursor: int,
        end: int | None,
        limit_bytes: int,
        then: Following | None = None,  # noqa: ARG002  nothing is fetched ahead
    ) -> tuple[Buffers, int]:
        """Return whole blocks from ``cursor`` on, about ``limit_bytes`` of them, and the next cursor."""
        return self._reader.blocks(segment, cursor, end, limit_bytes)

    def locate(self, segment: int, entry: int, end: int | None) -> int:
        """Return the cursor of the block that holds ``entry``, or the end of what is visible."""
        return self._reader.locate(segment, entry, end)

    def visible(self, segment: int) -> int:
        """Return how many entries of an open segment can be read now."""
        return self._reader.visible(segment)

    def has_segments(self) -> bool:
        """Tell whether there is a segment's file."""
        folder = self._path / SEGMENTS
        try:
            return any(name.endswith(BLOCKS_SUFFIX) for name, _ in self._disk.list_directory(folder))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise explain(error, folder) from error

    def at_risk(self, segment: int, end: int) -> bool:  # noqa: ARG002
        """Return ``False``: a block has one place here."""
        return False

    def remove_segment(self, segment: int) -> None:
        """Delete a segment's file, if it is there. What recovery cut off it stays, for people to look at."""
        self._objects.delete(segment_path(self._path, segment))
        self._reader.forget(segment)

    def wait(self, cursor_seen: tuple[int, int], timeout_s: float) -> bool:
        """Return when something behind ``(segment, cursor)`` was published, in any process, or the time is over."""
        return self._bell.wait(lambda: self._has_behind(cursor_seen), timeout_s, self._clock, _POLL_S)

    def is_silent(self, cursor_seen: tuple[int, int]) -> bool:  # noqa: ARG002
        """Return ``False``: looking costs nothing here."""
        return False

    def wake(self) -> None:
        """Make every ``wait`` in this process return now."""
        self._bell.ring()

    def forget(self) -> None:
        """Let go of the files that are mapped."""
        self._reader.forget()

    def _held(self) -> LocalClaim:
        if self._claim is None:
            message = f"{self._path}: claim the log before writing to it"
            raise WriterFenced(message)
        return self._claim

    def _publisher(self) -> Publisher:
        return Publisher(self._disk, self._path / PUBLISHED)

    def _has_behind(self, cursor_seen: tuple[int, int]) -> bool:
        published = self._reader.published()
        return published is not None and (published.segment, published.end) > cursor_seen

    def _end_of(self, segment: int) -> int:
        slots = read_published(self._disk, self._path / PUBLISHED)
        return max((slot.end for slot in slots if slot.segment == segment), default=0)

    def _refuse_if_begun(self, path: Path, segment: int) -> None:
        """Remove a file without blocks that an earlier attempt has left; a segment with blocks is no new one."""
        try:
            descriptor = self._disk.open_to_read(path)
        except FileNotFoundError:
            return
        try:
            begun = whole_blocks(self._disk.load(descriptor, self._disk.size(descriptor), 0), path, segment).offsets
        finally:
            close_quietly(self._disk, descriptor)
        if begun:
            message = f"{path}: segment {segment} was started before and has blocks: fence it, and start another"
            raise InvalidArgument(message)
        self._disk.unlink(path)


_bells: weakref.WeakValueDictionary[tuple[int, Path], Bell] = weakref.WeakValueDictionary()
_bells_lock = threading.Lock()


# A fork while another thread looks a bell up must not leave the child with a lock that nobody gives back.
os.register_at_fork(before=_bells_lock.acquire, after_in_parent=_bells_lock.release, after_in_child=_bells_lock.release)


def _bell_of(path: Path) -> Bell:
    """Return what all readers of a log in this process listen to. A forked child has its own."""
    with _bells_lock:
        return _bells.setdefault((os.getpid(), path), Bell())
