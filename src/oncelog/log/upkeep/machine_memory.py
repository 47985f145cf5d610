"""How much memory this process may use: that of the machine, or of the container it runs in."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where Linux tells the limit of a container (cgroups, version 2 and 1), as it is seen from the inside."""


@cache
def memory_bytes() -> int:
    """Return the bytes of memory, 0 where the system does not say."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    return min([found, *filter(None, map(_limit, _LIMITS))])


def _limit(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return None
