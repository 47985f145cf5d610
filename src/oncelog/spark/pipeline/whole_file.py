"""Replace a file atomically: readers see the old content or the new."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from oncelog.clock import SYSTEM


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a random name, then rename it to its own. The file is on the disk when this returns.

    Under a name that can be guessed, somebody could have put a link to a file of this user.
    """
    beside = path.with_name(f".{path.name}.{SYSTEM.token(8).hex()}.new")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
