"""What each step of deduplication costs, in nanoseconds a row or key: the best of several runs.

Run it by ``python benchmarks/dedup_micro.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup.content import content_ids
from oncelog.dedup.identity import Hasher
from oncelog.dedup.window import DedupWindow
from oncelog.types import Record

ROWS = 10_000
WINDOW_KEYS = 100_000
FOREVER_US = 10**15
RANDOM = np.random.default_rng(1)


def best_ns(step: Callable[[], object], count: int, repeats: int = 40) -> float:
    """Return the least time of one of ``count`` in a step."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - start)
    return min(times) / count


def show(name: str, nanoseconds: float) -> None:
    """Print one line."""
    print(f"{name:<44}{nanoseconds:9.1f} ns")


def strings(least: int, most: int) -> pa.Array:
    """Return rows of random letters, of lengths from ``least`` to ``most``."""
    letters = RANDOM.integers(97, 123, ROWS * most, dtype=np.uint8).tobytes().decode()
    lengths = RANDOM.integers(least, most + 1, ROWS).tolist()
    return pa.array([letters[row * most : row * most + length] for row, length in enumerate(lengths)])


def payload(least: int, most: int) -> pa.RecordBatch:
    """Return values of random lengths."""
    return pa.RecordBatch.from_arrays([strings(least, most).cast(pa.binary())], names=["value"])


def hashes() -> None:
    """Show what hashing costs."""
    hasher = Hasher(bytes(range(32)))
    for least, most in ((32, 32), (36, 36), (20, 44), (100, 255)):
        ids = strings(least, most)
        show(f"identities, {least}-{most} bytes", best_ns(partial(hasher.identities, None, ids), ROWS))
    scopes, ids = strings(8, 8), strings(32, 32)
    show("identities, 32 bytes in scopes of 8", best_ns(lambda: hasher.identities(scopes, ids), ROWS))
    for least, most in ((100, 100), (60, 140), (500, 500), (2000, 2000)):
        values = payload(least, most)
        show(f"fingerprints, {least}-{most} bytes", best_ns(partial(hasher.fingerprints, values), ROWS, 15))
    values = payload(100, 100)
    show("content ids, 100 bytes", best_ns(lambda: content_ids("log", values), ROWS, 10))
    one, record = ids[0].as_py(), Record(values.column(0)[0].as_py())
    show("identity, one", best_ns(lambda: [hasher.identity("", one) for _ in range(1000)], 1000, 10))
    show("fingerprint, one", best_ns(lambda: [hasher.fingerprint(record) for _ in range(1000)], 1000, 10))


def some_keys(count: int) -> NDArray[np.uint64]:
    """Return keys that look like identities."""
    return RANDOM.integers(0, 2**64, (count, 2), dtype=np.uint64)


class Writer:
    """Uses a window as a log's writer does."""

    def __init__(self) -> None:
        """Fill a window several times over."""
        self.window = DedupWindow(FOREVER_US, WINDOW_KEYS)
        self.position = 0
        for _ in range(3 * WINDOW_KEYS // ROWS):
            self.add(some_keys(ROWS))
            self.commit()

    def add(self, keys: NDArray[np.uint64]) -> None:
        """Add and evict."""
        positions = np.arange(self.position, self.position + len(keys))
        self.window.add(keys, positions, keys[:, 0])
        self.window.evict(self.position)
        self.position += len(keys)

    def commit(self) -> None:
        """Commit all."""
        self.window.commit(self.position, self.position, self.position)

    def add_singly(self, keys: list[list[int]]) -> None:
        """Add one, commit it, and evict, for each key."""
        for high, low in keys:
            self.window.find_or_add_one(high, low, self.position, low)
            self.position += 1
            self.window.commit(self.position, self.position, self.position)
            self.window.evict(self.position)


def window() -> None:
    """Show what the window costs."""
    writer = Writer()
    print(f"{'window, bytes a key':<44}{writer.window.nbytes / WINDOW_KEYS:9.1f}")
    adding: list[float] = []
    for _ in range(40):
        keys = some_keys(ROWS)
        adding.append(best_ns(partial(writer.add, keys), ROWS, 1))
        writer.commit()
    show("window, add and evict", min(adding))
    live = writer.window.dump().keys
    hits = [live[RANDOM.permutation(len(live))[:ROWS]] for _ in range(8)]
    misses = [some_keys(ROWS) for _ in range(8)]
    show("window, find, hit", best_ns(lambda: [writer.window.find(keys) for keys in hits], 8 * ROWS))
    show("window, find, miss", best_ns(lambda: [writer.window.find(keys) for keys in misses], 8 * ROWS))
    show("window, distinct", best_ns(lambda: DedupWindow.distinct(misses[0]), ROWS))
    known, fresh = hits[0][:1000].tolist(), [some_keys(1000).tolist() for _ in range(10)]
    show("window, find one, hit", best_ns(lambda: [writer.window.find_one(*key) for key in known], 1000))
    show("window, find one, miss", best_ns(lambda: [writer.window.find_one(*key) for key in fresh[0]], 1000))
    batches = iter(fresh)
    show("window, add one, commit, evict", best_ns(lambda: writer.add_singly(next(batches)), 1000, 10))
    state = writer.window.dump()
    show("window, load", best_ns(lambda: DedupWindow.load(state, FOREVER_US, WINDOW_KEYS), WINDOW_KEYS, 10))


if __name__ == "__main__":
    hashes()
    window()
