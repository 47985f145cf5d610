"""The handful of system calls that local storage makes, so that tests can put a simulated disk in their place."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from oncelog.errors import InvalidArgument, NotFound, OncelogError, Outcome, Unavailable
from oncelog.storage.base import Chunk
from oncelog.storage.local import inodes, links

_FORMAT = 0o170000
"""The bits of a mode that tell a file from a folder or a link."""

Identity = tuple[int, int]
"""Identifies a file independent of its name: device and inode. The system does not give the inode to another file while
the file is open or mapped.
"""

PAST_CACHE_BYTES_MIN = 8 << 20
"""From here on the system's cache costs more than it gives: smaller files are mostly read again soon."""
_PAST_CACHE_STEP_BYTES = 4 << 20
_IOVECS_MAX = 1024
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PAGE_BYTES = 4096
"""The smallest page of a system's cache."""

_SYNC_FILE_RANGE_WRITE = 2


class Disk(Protocol):
    """What local storage asks of a file system. Every method raises ``OSError`` as the system call does.

    Safe to share between threads. ``boot_id`` differs after every start of the machine: what was written before it
    changed is on the disk, or gone.
    """

    @property
    def boot_id(self) -> str:
        """Which start of the machine this is."""
        ...

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        """Open a file for reading and writing, making it if asked to, and return its descriptor."""
        ...

    def open_nameless(self, folder: Path) -> int | None:
        """Make a file without a name, for a name in this folder; ``None`` where a file needs a name to be durable.

        What is not named is gone when its descriptor is closed, or its process ends.
        """
        ...

    def name(self, descriptor: int, path: Path) -> bool:
        """Give a file without a name its name, ``False`` when that is taken; return when the names are on stable
        storage. ``NotNamed`` when the system refuses to give it.
        """
        ...

    def open_to_read(self, path: Path) -> int:
        """Open a file for reading only."""
        ...

    def close(self, descriptor: int) -> None:
        """Close a descriptor. It reports nothing about what was written."""
        ...

    def write(self, descriptor: int, chunks: Sequence[Chunk], offset: int) -> None:
        """Write all the chunks, one behind the other."""
        ...

    def write_whole(self, descriptor: int, chunks: Sequence[Chunk]) -> None:
        """Write all that a new file is to have."""
        ...

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        """Return the bytes from ``offset``, fewer than ``length`` only at the file's end."""
        ...

    def size(self, descriptor: int) -> int:
        """Return a file's size in bytes."""
        ...

    def begin_sync(self, descriptor: int, offset: int, length: int) -> None:
        """Have the device begin with a range that was just written. Only ``sync`` tells what came of it."""
        ...

    def sync(self, descriptor: int) -> None:
        """Return when a file's content is on stable storage. After a failure its unwritten pages are lost."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Return when the names in a folder are on stable storage."""
        ...

    def identity(self, path: Path) -> Identity | None:
        """Return which file a name stands for, ``None`` when there is none, or a folder."""
        ...

    def identity_of(self, descriptor: int) -> Identity:
        """Return which file a descriptor stands for."""
        ...

    def is_directory(self, path: Path) -> bool:
        """Tell whether a folder is there."""
        ...

    def make_directory(self, path: Path) -> bool:
        """Make a folder; ``False`` when it is there."""
        ...

    def check_owner(self, path: Path) -> None:
        """Raise ``InvalidArgument`` for a folder that belongs to another user, who could have planted links in it."""
        ...

    def list_directory(self, path: Path) -> list[tuple[str, bool]]:
        """Return the names in a folder, each with whether it is a folder itself."""
        ...

    def remove_directory(self, path: Path) -> None:
        """Remove an empty folder."""
        ...

    def link(self, source: Path, target: Path) -> bool:
        """Give a file a second name; ``False`` when that is taken."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or folder another name."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a name. The file lives as long as it is open or mapped."""
        ...

    def load(self, descriptor: int, length: int, offset: int) -> pa.Buffer:
        """Return the bytes from ``offset`` in memory of their own, fewer than ``length`` only at the file's end."""
        ...

    def map(self, descriptor: int, length: int) -> pa.Buffer:
        """Return the first bytes of a file as memory that shows later writes, and outlives the descriptor."""
        ...

    def lock(self, descriptor: int) -> bool:
        """Lock a file until the descriptor is closed or its process ends; ``False`` when another has it."""
        ...

    def process(self) -> int:
        """Return the id of this process."""
        ...

    def is_alive(self, process: int) -> bool:
        """Tell whether a process of that id runs."""
        ...


class RealDisk:
    """The machine's own file systems."""

    def __init__(self) -> None:
        """Learn which start of the machine this is."""
        self.boot_id = _boot_id()
        self._keeping: dict[int, bool] = {}

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        """Open a file for reading and writing."""
        if create:
            return links.create_file(path, os.O_RDWR | (os.O_EXCL if exclusive else 0))
        return links.open_there(path, os.O_RDWR)

    def open_nameless(self, folder: Path) -> int | None:
        """Open with O_TMPFILE (Linux), on a file system that is known to keep such a file once it is named."""
        return links.create_nameless(folder, self._keeping)

    def name(self, descriptor: int, path: Path) -> bool:
        """Link the file into its folder, and sync the folder, which is opened once for both."""
        return links.name_file(descriptor, path)

    def open_to_read(self, path: Path) -> int:
        """Open a file for reading only."""
        return links.open_there(path, os.O_RDONLY)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def write(self, descriptor: int, chunks: Sequence[Chunk], offset: int) -> None:
        """Write all the chunks, however the system divides the work."""
        if len(chunks) == 1 and type(data := chunks[0]) is bytes:  # as a record that comes alone: sooner than a vector
            if (written := os.pwrite(descriptor, data, offset)) == len(data):
                return
        elif (written := _write_vector(descriptor, chunks, offset)) == sum(map(len, chunks)):
            return
        _write_rest(descriptor, chunks, offset, written)

    def write_whole(self, descriptor: int, chunks: Sequence[Chunk]) -> None:
        """Write a large file past the system's cache, where that can be done: it is synced at once, is read later if at
        all, and in the cache it would be copied, and take the place of what is read now.
        """
        written = 0
        if len(chunks) == 1 and isinstance(chunks[0], pa.Buffer) and chunks[0].size >= PAST_CACHE_BYTES_MIN:
            written = _write_past_cache(descriptor, chunks[0])
            chunks = [chunks[0].slice(written)]
        self.write(descriptor, chunks, written)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        """Read until the length or the file's end."""
        data = os.pread(descriptor, length, offset)
        if len(data) == length or not data:
            return data
        pieces = [data]
        while length > (have := sum(map(len, pieces))) and (data := os.pread(descriptor, length - have, offset + have)):
            pieces.append(data)
        return b"".join(pieces)

    def size(self, descriptor: int) -> int:
        """Return a file's size in bytes."""
        return inodes.of_descriptor(descriptor)[2]

    def begin_sync(self, descriptor: int, offset: int, length: int) -> None:
        """Start write-back. On Linux the advice that a range is not needed does so before it drops clean whole pages. A
        range below a page has none. For a larger range there is ``sync_file_range``, which drops nothing.

        An error of that write-back is kept for the file, and ``fdatasync`` reports it. On a system
        without these calls, write-back starts with the sync.
        """
        if sys.platform == "linux":
            if length >= _PAGE_BYTES:
                if _sync_file_range is not None:
                    _sync_file_range(descriptor, offset, length, _SYNC_FILE_RANGE_WRITE)
                return
            try:  # noqa: SIM105 (sooner than ``suppress``: every append of one record comes here)
                os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
            except OSError:
                pass

    def sync(self, descriptor: int) -> None:
        """Call fdatasync, or on macOS what reaches the platter."""
        if sys.platform == "darwin":
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Call fsync on a folder."""
        descriptor = links.open_there(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def identity(self, path: Path) -> Identity | None:
        """Return device and inode of what a name stands for."""
        try:
            mode, number, _, device = inodes.of_name(str(path))
        except FileNotFoundError:
            return None
        return (device, number) if mode & _FORMAT == stat.S_IFREG else None

    def identity_of(self, descriptor: int) -> Identity:
        """Return device and inode of what a descriptor stands for."""
        _, number, _, device = inodes.of_descriptor(descriptor)
        return device, number

    def is_directory(self, path: Path) -> bool:
        """Tell whether a folder is there."""
        try:
            return stat.S_ISDIR(path.lstat().st_mode)
        except FileNotFoundError:
            return False

    def make_directory(self, path: Path) -> bool:
        """Make a folder; a file of that name, or a link, is an error."""
        return links.make_folder(path)

    def check_owner(self, path: Path) -> None:
        """Refuse a folder of another user."""
        links.check_owner(path)

    def list_directory(self, path: Path) -> list[tuple[str, bool]]:
        """Return names, and which are folders."""
        descriptor = links.open_there(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(descriptor) as found:
                return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
        finally:
            os.close(descriptor)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty folder."""
        with links.folder_of(path) as folder:
            os.rmdir(path.name, dir_fd=folder)

    def link(self, source: Path, target: Path) -> bool:
        """Give a file a second name, unless that is taken."""
        with links.folder_of(source) as of_source, links.folder_of(target) as of_target:
            try:
                os.link(source.name, target.name, src_dir_fd=of_source, dst_dir_fd=of_target, follow_symlinks=False)
            except FileExistsError:
                return False
        return True

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or folder another name."""
        with links.folder_of(source) as of_source, links.folder_of(target) as of_target:
            os.rename(source.name, target.name, src_dir_fd=of_source, dst_dir_fd=of_target)

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        with links.folder_of(path) as folder:
            os.unlink(path.name, dir_fd=folder)

    def load(self, descriptor: int, length: int, offset: int) -> pa.Buffer:
        """Read into one buffer, which Arrow can cut without copying it again."""
        data = pa.allocate_buffer(length)
        view, have = memoryview(data), 0
        while have < length and (got := os.preadv(descriptor, [view[have:]], offset + have)):
            have += got
        return data if have == length else data.slice(0, have)

    def map(self, descriptor: int, length: int) -> pa.Buffer:
        """Map the file; the mapping ends when nobody holds a buffer of it any more."""
        if length == 0:
            return pa.py_buffer(b"")
        mapping = _Mapping(descriptor, length)
        return pa.foreign_buffer(mapping.address, length, base=mapping)

    def lock(self, descriptor: int) -> bool:
        """Try flock, which belongs to the open file: two openings exclude each other in one process too."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def process(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def is_alive(self, process: int) -> bool:
        """Ask the system for the process."""
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


class _Mapping:
    """Memory that shows a file, until the last buffer of it is gone.

    Python's own ``mmap`` keeps a descriptor open as long: a process with many segments would run out of descriptors.
    """

    def __init__(self, descriptor: int, length: int) -> None:
        self._length = length
        self.address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if self.address == _MAP_FAILED:
            self._length = 0
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def __del__(self) -> None:
        if self._length:
            _libc.munmap(self.address, self._length)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_sync_file_range = getattr(_libc, "sync_file_range", None)  # Linux has it
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_MAP_FAILED = ctypes.c_void_p(-1).value


def _write_vector(descriptor: int, chunks: Sequence[Chunk], offset: int) -> int:
    """Write as many of the chunks as the system takes at once, and return how many bytes that were."""
    try:
        return os.pwritev(descriptor, chunks, offset)
    except OSError:
        if len(chunks) <= _IOVECS_MAX:
            raise
        return 0


def _write_rest(descriptor: int, chunks: Sequence[Chunk], offset: int, written: int) -> None:
    """Go on after a short write, in portions the system takes."""
    views = [memoryview(chunk).cast("B") for chunk in chunks]
    first = 0
    while True:
        offset += written
        while first < len(views) and written >= len(views[first]):
            written -= len(views[first])
            first += 1
        if first == len(views):
            return
        views[first] = views[first][written:]
        written = os.pwritev(descriptor, views[first : first + _IOVECS_MAX], offset)
        if written == 0:
            raise OSError(errno.EIO, "a write made no progress")


def _write_past_cache(descriptor: int, data: pa.Buffer) -> int:
    """Write the beginning of a new file straight to the disk, and return how much of it: all whole pages, or less where
    the memory or the file system is not fit for it.
    """
    if sys.platform != "linux" or data.address % mmap.PAGESIZE:
        return 0
    view = memoryview(data)
    end = len(view) - len(view) % mmap.PAGESIZE
    written = 0
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        while written < end:
            step = os.pwrite(descriptor, view[written : min(written + _PAST_CACHE_STEP_BYTES, end)], written)
            if not step:
                break
            written += step
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return written


def _boot_id() -> str:
    if sys.platform == "darwin":
        import subprocess  # noqa: PLC0415 (a first append does not wait for it)

        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603  fixed
    return _BOOT_ID.read_text().strip()


_ADVICE: dict[int, str] = {
    errno.ENOSPC: "disk full: free space there, then it goes on",
    errno.EDQUOT: "disk quota used up: free space there or raise the quota, then it goes on",
    errno.EROFS: "read-only file system: mount it writable, then it goes on",
    errno.EIO: "input/output error: look at the kernel's messages and at the disk's health",
    errno.EMFILE: "too many open files in this process: raise its limit (ulimit -n)",
    errno.ENFILE: "too many open files on this machine: raise fs.file-max",
    errno.ENOMEM: "out of memory: free some, then it goes on",
}

_FIXES: dict[int, str] = {
    errno.EACCES: "permission denied: give the user of this process the right to read and write there",
    errno.EPERM: "not permitted: give the user of this process the right to read and write there",
    errno.ENOTDIR: "a file where a folder should be: move it away, or choose another place",
    errno.EISDIR: "a folder where a file should be: move it away, or choose another place",
    errno.ENAMETOOLONG: "name too long for this file system: choose a shorter one",
    errno.ELOOP: "a symbolic link is on the way, and Oncelog follows none below the folder of a database: remove it",
}


def explain(error: OSError, path: Path, outcome: Outcome = "not written") -> OncelogError:
    """Return what an error of the system means to the caller: try again, fix the call, or nothing is there.

    An unknown outcome is ``Unavailable`` whatever the cause: nothing else says that it may have been written.
    """
    number = error.errno or 0
    place = f"{path}"
    if outcome != "unknown":
        if number == errno.ENOENT:
            return NotFound(f"{place}: not there")
        if number in _FIXES:
            return InvalidArgument(f"{place}: {_FIXES[number]}")
    advice = _ADVICE.get(number) or _FIXES.get(number) or error.strerror or repr(error)
    return Unavailable(f"{place}: {advice}", outcome=outcome)


def close_quietly(disk: Disk, descriptor: int) -> None:
    """Close a descriptor that no answer depends on any more."""
    with contextlib.suppress(OSError):
        disk.close(descriptor)
