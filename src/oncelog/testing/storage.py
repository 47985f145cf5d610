"""A home that fails on demand, at the level of its contract: wraps any other."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pyarrow as pa

from oncelog.errors import Unavailable
from oncelog.storage.base import Chunk, Claim, Following, LogHome, SegmentEnd, SegmentWriter, Storage
from oncelog.testing.faults import Faults, When


class FaultyStorage:
    """Any storage, with failures: before an operation, after it (its answer is lost), or of the whole process.

    Operations of homes and of their segment writers are counted in ``faults``. With ``duplicate_creates`` every
    create is sent twice underneath, as a client that retries by itself would, and the second answer is returned.
    """

    def __init__(self, inner: Storage, *, duplicate_creates: bool = False) -> None:
        self.url = inner.url
        self.faults = Faults()
        self.duplicate_creates = duplicate_creates
        self._inner = inner
        self._lock = threading.Lock()
        self._claims: list[Claim] = []

    def fail_at(self, number: int, when: When = "before") -> None:
        """Let an operation fail as ``Unavailable``: not written, or after it of unknown outcome."""
        outcome_unknown = when != "before"
        error = Unavailable("simulated failure", outcome="unknown" if outcome_unknown else "not written")
        self.faults.fail_at(number, error, when)

    def kill_at(self, number: int, when: When = "before") -> None:
        """Let the process die in an operation: it and all later ones raise ``Killed``."""
        self.faults.kill_at(number, when)

    def restart(self) -> None:
        """Start the process that died again: locks it held are free, as the operating system would have it."""
        with self._lock:
            claims, self._claims = self._claims, []
        for claim in claims:
            claim.release()
        self.faults.heal()

    def homes(self) -> list[str]:
        """Return the keys of the inner storage's homes."""
        return self.faults.call("homes", self.url, self._inner.homes)

    def home(self, key: str) -> FaultyHome:
        """Return a home that fails on demand."""
        return FaultyHome(self, self._inner.home(key), key)

    def remove_home(self, key: str) -> None:
        """Delete a log's home."""
        self.faults.call("remove_home", key, lambda: self._inner.remove_home(key))

    def close(self) -> None:
        """Close the inner storage."""
        self._inner.close()

    def keep_claim(self, claim: Claim) -> FaultyClaim:
        """Remember a claim, to be released when the process is started again."""
        with self._lock:
            self._claims.append(claim)
        return FaultyClaim(self, claim)


class FaultyHome:
    """A home of which every operation may fail."""

    def __init__(self, storage: FaultyStorage, inner: LogHome, key: str) -> None:
        self.exclusive = inner.exclusive
        self.seals_early = inner.seals_early
        self.looking_costs = inner.looking_costs
        self._storage = storage
        self._inner = inner
        self._key = key

    def probe(self) -> None:
        """Probe the inner home."""
        self._storage.faults.call("probe", self._key, self._inner.probe)

    def create(self, key: str, data: Sequence[Chunk]) -> bool:
        """Create an object, twice if so asked."""

        def work() -> bool:
            answer = self._inner.create(key, data)
            return self._inner.create(key, data) if self._storage.duplicate_creates else answer

        return self._storage.faults.call("create", key, work)

    def read(self, key: str, start: int = 0, length: int | None = None, *, mapped: bool = False) -> pa.Buffer:
        """Read an object."""
        return self._storage.faults.call("read", key, lambda: self._inner.read(key, start, length, mapped=mapped))

    def location(self, key: str) -> str:
        """Tell where an object is, without being counted."""
        return self._inner.location(key)

    def exists(self, key: str) -> bool:
        """Look for an object."""
        return self._storage.faults.call("exists", key, lambda: self._inner.exists(key))

    def list(self, prefix: str) -> list[str]:
        """List objects."""
        return self._storage.faults.call("list", prefix, lambda: self._inner.list(prefix))

    def delete(self, key: str) -> None:
        """Delete an object."""
        self._storage.faults.call("delete", key, lambda: self._inner.delete(key))

    def claim(self, wait_s: float, *, force: bool) -> FaultyClaim:
        """Claim the log. A claim is between a process and its own machine: when it fails, nothing is left held."""
        held: list[FaultyClaim] = []

        def work() -> FaultyClaim:
            held.append(self._storage.keep_claim(self._inner.claim(wait_s, force=force)))
            return held[0]

        try:
            return self._storage.faults.call("claim", self._key, work)
        except Unavailable:
            for claim in held:
                claim.release()
            raise

    def start_segment(self, segment: int, epoch: int) -> FaultySegmentWriter:
        """Start a segment."""

        def work() -> FaultySegmentWriter:
            return FaultySegmentWriter(self._storage, self._inner.start_segment(segment, epoch), segment)

        return self._storage.faults.call("start_segment", str(segment), work)

    def fence(self, segment: int, epoch: int) -> SegmentEnd:
        """Fence a segment."""
        return self._storage.faults.call("fence", str(segment), lambda: self._inner.fence(segment, epoch))

    def blocks(
        self, segment: int, cursor: int, end: int | None, limit_bytes: int, then: Following | None = None
    ) -> tuple[Sequence[pa.Buffer], int]:
        """Read blocks."""
        return self._storage.faults.call(
            "blocks", str(segment), lambda: self._inner.blocks(segment, cursor, end, limit_bytes, then)
        )

    def locate(self, segment: int, entry: int, end: int | None) -> int:
        """Locate an entry."""
        return self._storage.faults.call("locate", str(segment), lambda: self._inner.locate(segment, entry, end))

    def visible(self, segment: int) -> int:
        """Return how many entries of an open segment can be read now."""
        return self._storage.faults.call("visible", self._key, lambda: self._inner.visible(segment))

    def has_segments(self) -> bool:
        """Look for segments."""
        return self._storage.faults.call("has_segments", "", self._inner.has_segments)

    def at_risk(self, segment: int, end: int) -> bool:
        """Tell whether a closed segment should be sealed now."""
        return self._storage.faults.call("at_risk", str(segment), lambda: self._inner.at_risk(segment, end))

    def remove_segment(self, segment: int) -> None:
        """Remove a segment."""
        self._storage.faults.call("remove_segment", str(segment), lambda: self._inner.remove_segment(segment))

    def wait(self, cursor_seen: tuple[int, int], timeout_s: float) -> bool:
        """Wait, without being counted."""
        return self._inner.wait(cursor_seen, timeout_s)

    def is_silent(self, cursor_seen: tuple[int, int]) -> bool:
        """Ask, without being counted."""
        return self._inner.is_silent(cursor_seen)

    def wake(self) -> None:
        """Wake, without being counted."""
        self._inner.wake()

    def forget(self) -> None:
        """Forget, without being counted."""
        self._inner.forget()


class FaultyClaim:
    """A claim that a dead process does not give back by itself."""

    def __init__(self, storage: FaultyStorage, inner: Claim) -> None:
        self._storage = storage
        self._inner = inner

    def release(self) -> None:
        """Give the right back, if the process lives."""
        if not self._storage.faults.is_killed:
            self._inner.release()

    def answers(self) -> bool:
        """Ask, without being counted."""
        return self._inner.answers()


class FaultySegmentWriter:
    """A segment writer of which every append may fail."""

    def __init__(self, storage: FaultyStorage, inner: SegmentWriter, segment: int) -> None:
        self.in_flight_max = inner.in_flight_max
        self.commit_interval_s = inner.commit_interval_s
        self._storage = storage
        self._inner = inner
        self._segment = segment

    @property
    def ends_early(self) -> bool:
        """Whether the next block had better begin another segment, without being counted."""
        return self._inner.ends_early

    def begin(self, number: int, block: Sequence[Chunk]) -> None:
        """Do nothing: a fault is to find nothing written."""

    def append(self, number: int, block: Sequence[Chunk]) -> int:
        """Append a block."""
        return self._storage.faults.call("append", str(self._segment), lambda: self._inner.append(number, block))

    def close(self) -> None:
        """Close, without being counted."""
        self._inner.close()
