"""Work that nobody waits for, and that must not be cut off by the end of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_aside(work: Callable[[], None]) -> None:
    """Have something done by another thread; ``RuntimeError`` when there is none to be had.

    The interpreter waits for the thread when it ends: native code (a compiler) that still ran then could crash.
    """
    threading.Thread(target=work, name="oncelog-aside", daemon=False).start()
