"""Which file a name or a descriptor stands for, and its size, without asking for its times.

Linux from 6.13 on stores a time of its own for a write if somebody has asked for the file's times since the write
before (multigrain timestamps). ``os.stat`` always asks for them, and each append looks where its file is. On ext4 the
next small block then takes 40 µs longer, a fourth of an append (decision 50). ``statx`` asks for what its mask names.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = -100, 0x100, 0x1000
_TYPE, _INO, _SIZE = 0x001, 0x100, 0x200
_MASK = _TYPE | _INO | _SIZE
_Answer = ctypes.c_char * 256
_CONTENT = struct.Struct("=28xH2xQQ88xQ")
"""What is read of ``struct statx``: mode, inode, size, and the two numbers of the device as one."""

_ENCODING = sys.getfilesystemencoding()
_libc = ctypes.CDLL(None, use_errno=True)


Inode = tuple[int, int, int, int]
"""A file or folder, whatever its name: its mode, its number on its device, its size in bytes, and its device."""


def of_name(path: str) -> Inode:
    """Return what a name stands for; a link stands for itself."""
    if not _HAS_STATX:
        return _all_but_times(os.lstat(path))
    answer = _Answer()
    name = path.encode(_ENCODING, "surrogateescape")
    if _libc.statx(_AT_FDCWD, name, _AT_SYMLINK_NOFOLLOW, _MASK, answer) != 0:
        raise _refused(path)
    return _CONTENT.unpack_from(answer)


def of_descriptor(descriptor: int) -> Inode:
    """Return what a descriptor stands for."""
    if not _HAS_STATX:
        return _all_but_times(os.fstat(descriptor))
    answer = _Answer()
    if _libc.statx(descriptor, b"", _AT_EMPTY_PATH, _MASK, answer) != 0:
        raise _refused()
    return _CONTENT.unpack_from(answer)


def _refused(path: str | None = None) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), path)


def _all_but_times(found: os.stat_result) -> Inode:
    return found.st_mode, found.st_ino, found.st_size, found.st_dev


def _has_statx() -> bool:
    """Tell whether the system has the call: old C libraries lack it, and some containers refuse new calls."""
    if sys.platform != "linux" or not hasattr(_libc, "statx"):
        return False
    _libc.statx.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]
    return bool(_libc.statx(_AT_FDCWD, b"/", _AT_SYMLINK_NOFOLLOW, _MASK, _Answer()) == 0)


_HAS_STATX = _has_statx()
