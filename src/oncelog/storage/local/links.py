"""Opening files where no symbolic link is on the way, and making files that nobody else may read.

Somebody who can write into a folder of a database could plant a link there, and have the files deleted or overwritten
that the link points to, with the rights of the one who appends. So every path is opened with ``openat2`` and
``RESOLVE_NO_SYMLINKS`` (Linux), with ``O_NOFOLLOW_ANY`` (macOS), or folder by folder with ``O_NOFOLLOW``; names are
made, renamed and removed relative to the descriptor of their folder. Paths are real paths: a link above the root of a
database is the user's own, and was followed before.

Folders are made with mode 0700 and files with 0600. A folder that has the set-group-ID bit and that its group may write
(``chmod 2770``) is shared with the group: what is made in it is 2770 and 0660.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from oncelog.errors import InvalidArgument

FILE_MODE, FOLDER_MODE = 0o600, 0o700
SHARED_FILE_MODE, SHARED_FOLDER_MODE = 0o660, 0o2770
_SHARED = stat.S_ISGID | stat.S_IWGRP

_OPEN_FILES = "/proc/self/fd"
_NO_NAMELESS = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
"""What a file system says that has no files without a name, and what a kernel says that does not know of them."""
_EXT, _XFS, _TMPFS = 0xEF53, 0x58465342, 0x01021994
"""What ``statfs`` calls the file systems that keep a file which is synced first and named later (decision 49)."""
_BLOCK_DEVICES, _JOURNALS = Path("/sys/dev/block"), Path("/proc/fs/jbd2")
_STATFS_BYTES = 256  # more than the structure has on any system: 120 on Linux of 64 bits
_WORD = struct.Struct("l")

_OPENAT2 = 437
_AT_FDCWD = -100
_RESOLVE_NO_SYMLINKS = 0x04
_HOW = struct.Struct("QQQ")
_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]


def open_there(path: Path, flags: int, mode: int = 0) -> int:
    """Return a descriptor of what is at a path, ``ELOOP`` if a symbolic link is on the way. No name is made."""
    if _has_openat2():
        return _openat2(path, flags | os.O_CLOEXEC, mode)
    if sys.platform == "darwin":
        return os.open(path, flags | os.O_NOFOLLOW_ANY)
    with _walked(path.parent) as folder:
        return os.open(path.name or "/", flags | os.O_NOFOLLOW, mode, dir_fd=folder)


def folder_of(path: Path) -> contextlib.AbstractContextManager[int]:
    """Hold a descriptor of the folder that a path is in: names are made and removed relative to it."""
    return _held(path.parent)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[int]:
    descriptor = open_there(folder, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def create_file(path: Path, flags: int) -> int:
    """Return a descriptor of a file that is made, unless it is there and ``flags`` allow that."""
    with folder_of(path) as folder:
        is_shared = _is_shared(folder)
        mode = SHARED_FILE_MODE if is_shared else FILE_MODE
        try:
            descriptor = os.open(path.name, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            return os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=folder)
        return _shared(descriptor) if is_shared else descriptor


def append_to(path: Path) -> BinaryIO:
    """Open a file to read it and to append to it; a file that is made is for its owner alone.

    ``InvalidArgument`` for a symbolic link in its place: who planted it could have any file of this user changed. Links
    above the file are the user's own.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags, FILE_MODE), "a+b")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        message = f"{path}: is a symbolic link, and Oncelog writes through none: remove it"
        raise InvalidArgument(message) from error


def create_nameless(folder: Path, keeping: dict[int, bool]) -> int | None:
    """Return a descriptor of a new file in a folder that has no name yet; ``None`` where a new file needs a name.

    ``name_file`` names it. A file that is never named is gone with its descriptor, also when the process is killed.
    ``keeping`` remembers which devices keep such a file: each is asked once.
    """
    if not _can_name():
        return None
    with _held(folder) as opened:
        found = os.fstat(opened)
        if found.st_dev not in keeping:
            keeping[found.st_dev] = _keeps_nameless(opened, found.st_dev)
        return _open_nameless(opened, found.st_mode) if keeping[found.st_dev] else None


def _open_nameless(folder: int, folder_mode: int) -> int | None:
    try:
        descriptor = os.open(".", os.O_TMPFILE | os.O_RDWR, FILE_MODE, dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_NAMELESS:
            return None
        raise
    return _shared(descriptor) if folder_mode & _SHARED == _SHARED else descriptor


def _shared(descriptor: int) -> int:
    """Give the group its rights to a new file: the umask has taken them."""
    try:
        os.fchmod(descriptor, SHARED_FILE_MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _keeps_nameless(folder: int, device: int) -> bool:
    """Tell whether a file that was synced, then named, with its folder synced, is known to outlast a power cut.

    The link count of the file must be stored with the name. ext4 does so by its journal: without a journal (and as
    ext2) the name stays, and the file counts as deleted. Btrfs may keep the name with no content (decision 49).
    """
    kind = _file_system(folder)
    return kind in {_XFS, _TMPFS} or (kind == _EXT and _has_journal(device))


def _file_system(folder: int) -> int | None:
    """Return the number of the kind of file system that a folder is on; ``None`` where this is not known."""
    if sys.platform != "linux" or _WORD.size != 8:  # noqa: PLR2004  the first word, of 64 bits, is the kind
        return None
    answer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(ctypes.c_int(folder), answer) != 0:
        return None
    kind: int = _WORD.unpack_from(answer)[0]
    return kind


def _has_journal(device: int) -> bool:
    """Tell whether a device has a journal of ext4 in it: inode 8. One on another device is not looked for."""
    try:
        name = (_BLOCK_DEVICES / f"{os.major(device)}:{os.minor(device)}").readlink().name
        return (_JOURNALS / f"{name}-8").is_dir()
    except OSError:
        return False


class NotNamed(OSError):
    """The system refused to name a file that has no name: no name was given."""


def name_file(descriptor: int, path: Path) -> bool:
    """Give a file without a name its name, and sync the folder; ``False``, synced too, when the name is taken.

    ``NotNamed`` for an error of the naming itself.
    """
    folder = open_there(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        is_named = True
        try:
            # Without ``src_dir_fd`` Python calls link(), which does not follow the link in /proc.
            os.link(f"{_OPEN_FILES}/{descriptor}", path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            is_named = False
        except OSError as error:
            raise NotNamed(error.errno, error.strerror, str(path)) from error
        os.fsync(folder)
        return is_named
    finally:
        os.close(folder)


@functools.cache
def _can_name() -> bool:
    """Tell whether a file without a name can be named: Linux does that by way of /proc."""
    return hasattr(os, "O_TMPFILE") and Path(_OPEN_FILES).is_dir()


def make_folder(path: Path) -> bool:
    """Make a folder; ``False`` when it is there. What is no folder, or a link to one, is an error."""
    with folder_of(path) as above:
        mode = SHARED_FOLDER_MODE if _is_shared(above) else FOLDER_MODE
        try:
            os.mkdir(path.name, mode, dir_fd=above)
        except FileExistsError:
            found = os.stat(path.name, dir_fd=above, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
            return False
        if mode == SHARED_FOLDER_MODE:
            os.chmod(path.name, mode, dir_fd=above)
        return True


def check_owner(path: Path) -> None:
    """Raise ``InvalidArgument`` for a folder whose owner could have put anything into it: one of another user.

    A folder of root is as good as one's own. One that is shared with a group of this process is meant to be used.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    own = found.st_uid in {os.geteuid(), 0}
    if own or (found.st_mode & _SHARED == _SHARED and found.st_gid in {os.getegid(), *os.getgroups()}):
        return
    message = (
        f"{path} belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}: the owner could plant "
        "links there to files of this user; run as that user, or share the folder with a group (chmod 2770)"
    )
    raise InvalidArgument(message)


def _is_shared(folder: int) -> bool:
    return os.fstat(folder).st_mode & _SHARED == _SHARED


@functools.cache
def _has_openat2() -> bool:
    """Tell whether the system has the call. Some containers refuse what they do not know."""
    if sys.platform != "linux":
        return False
    try:
        os.close(_openat2(Path("/"), _FOLDER))
    except OSError:
        return False
    return True


def _openat2(path: Path, flags: int, mode: int = 0) -> int:
    name = os.fsencode(path)
    if b"\0" in name:
        message = "embedded null byte"
        raise ValueError(message)
    while True:
        how = _HOW.pack(flags, mode, _RESOLVE_NO_SYMLINKS)
        descriptor: int = _syscall(_OPENAT2, _AT_FDCWD, name, how, _HOW.size)
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number not in {errno.EINTR, errno.EAGAIN}:
            raise OSError(number, os.strerror(number), str(path))


@contextlib.contextmanager
def _walked(folder: Path) -> Iterator[int]:
    """Hold a descriptor of a folder, reached one folder at a time."""
    descriptor = os.open("/", _FOLDER)
    try:
        for part in folder.absolute().parts[1:]:
            below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)
