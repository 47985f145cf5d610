"""A bucket that fails on demand, request by request: wraps any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from oncelog.errors import Unavailable
from oncelog.storage.base import Chunk
from oncelog.storage.bucket.bucket import Bucket
from oncelog.testing.faults import Faults, When

T = TypeVar("T")


class FaultyBucket(Bucket):
    """Any bucket, with failures: before a request, after it (its answer is lost), or of the whole process.

    With ``duplicate_creates`` every create is sent twice underneath, as a client that repeats its requests by itself
    would, and the second answer is returned. ``cut_off`` is for good: nothing gets through any more.
    """

    def __init__(self, inner: Bucket, *, duplicate_creates: bool = False) -> None:
        self.url = inner.url
        self.requests = inner.requests
        self.faults = Faults()
        self._inner = inner
        self._duplicate_creates = duplicate_creates

    def fail_at(self, number: int, when: When = "before") -> None:
        """Let a request fail: not written, or after it of unknown outcome."""
        outcome_unknown = when != "before"
        error = Unavailable("simulated failure", outcome="unknown" if outcome_unknown else "not written")
        self.faults.fail_at(number, error, when)

    def cut_off(self) -> None:
        """Let every request fail from now on."""
        self.faults.fail_forever(lambda _operation, _what: Unavailable("cut off", outcome="not written"))

    def create(self, path: str, data: Sequence[Chunk]) -> bool:
        """Create an object, twice if so asked."""

        def work() -> bool:
            answer = self._inner.create(path, data)
            return self._inner.create(path, data) if self._duplicate_creates else answer

        return self._call("create", path, work)

    def get(self, path: str, start: int = 0, length: int | None = None) -> pa.Buffer:
        """Read an object."""
        return self._call("get", path, lambda: self._inner.get(path, start, length))

    def size(self, path: str) -> int | None:
        """Look for an object."""
        return self._call("head", path, lambda: self._inner.size(path))

    def below(self, prefix: str, after: str | None = None) -> list[tuple[str, int]]:
        """List objects."""
        return self._call("list", prefix, lambda: self._inner.below(prefix, after))

    def folders(self, prefix: str) -> list[str]:
        """List folders."""
        return self._call("list", prefix, lambda: self._inner.folders(prefix))

    def delete(self, path: str) -> None:
        """Delete an object."""
        self._call("delete", path, lambda: self._inner.delete(path))

    def _call(self, operation: str, what: str, work: Callable[[], T]) -> T:
        return self.faults.call(operation, what, work)
