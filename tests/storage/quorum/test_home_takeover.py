"""Takeovers of a log on a quorum: any request may fail; and a store that is away does not stop appends at once."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from oncelog import limits
from oncelog.errors import OncelogError, Unavailable
from oncelog.settings import LogSettings
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.quorum import node
from oncelog.testing.bucket import FaultyBucket
from oncelog.testing.faults import When
from tests.log.watched import until
from tests.storage.quorum.place import Place, in_memory

IDS = [str(number) for number in range(6)]
LONG_S = 60.0
"""So long a test would take that waits for what does not answer."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["store", "n1"])
def test_any_request_of_a_takeover_may_fail(name: str, when: When, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first, the second, the third request … of a takeover fails, or its answer is lost. The takeover fails as a
    whole or not at all, and after it, or after the next one, every record that was acknowledged has its place.
    """
    for number in itertools.count(1):
        place = Place(monkeypatch, in_memory())
        first = place.process()
        writer = first.log("orders", create=True).writer()
        places = {id: writer.append(b"x", id=id).position for id in IDS}
        for bucket in place.seen.values():
            bucket.cut_off()
        second = place.process()
        log = second.log("orders")
        faults = place.seen[name].faults
        before = faults.calls
        place.seen[name].fail_at(number, when)
        with contextlib.suppress(OncelogError), log.writer(takeover="force") as taken:
            assert {id: taken.append(b"x", id=id).position for id in IDS} == places
        asked = faults.calls - before
        faults.heal()
        with log.writer(takeover="force") as taken:
            assert {id: taken.append(b"x", id=id).position for id in IDS} == places
        assert [entry.id for entry in log.read()] == IDS
        second.close()
        if asked < number:
            break
    assert number > 2


def test_the_store_away_stops_appends_only_when_the_segment_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks go to nodes alone. A new segment needs the store: an append waits then, and goes on by itself."""
    place = Place(monkeypatch, in_memory())
    database = place.process()
    settings = LogSettings(segment_bytes=limits.SEGMENT_BYTES_MIN)
    with database.log("orders", settings, create=True).writer() as writer:
        value = bytes(limits.SEGMENT_BYTES_MIN // 4)
        first = writer.append(value, id="0")
        place.seen["store"].cut_off()
        acks = [writer.append(value, id=id) for id in ("1", "2", "3")]  # with these the segment is full
        assert {ack.segment for ack in acks} == {first.segment}
        with pytest.raises(Unavailable) as caught:
            writer.append(value, id="4", timeout_s=0.1)
        assert caught.value.outcome == "unknown"
        place.seen["store"].faults.heal()
        assert writer.append(value, id="4").segment != first.segment
    assert [entry.id for entry in database.log("orders").read()] == ["0", "1", "2", "3", "4"]
    database.close()


@pytest.mark.parametrize("end", ["fence", "close", "removal"])
def test_a_late_create_changes_nothing(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that was under way arrives after its segment was fenced, closed, or sealed and removed: it is unseen."""
    place = Place(monkeypatch, in_memory())
    database = place.process()
    log = database.log("orders", create=True)
    writer = log.writer()
    for id in IDS:
        writer.append(b"x", id=id)
    late = _late_creates(place)
    if end == "fence":
        for bucket in place.seen.values():
            bucket.cut_off()
    else:
        writer.close()
    if end == "removal":
        log.seal()
    after = place.process()
    with after.log("orders").writer(takeover="force") as taken:
        late()
        assert all(taken.append(b"x", id=id).duplicate for id in IDS)
        taken.append(b"next", id="next")
        late()
    assert [entry.id for entry in after.log("orders").read()] == [*IDS, "next"]
    assert after.log("orders").verify().ok
    after.close()


def _late_creates(place: Place) -> Callable[[], None]:
    """Return what creates the next blocks of the open segment on every node, as uploads that were under way would."""
    until(lambda: place.stores["n0"].below("logs/"))  # an append waits for two of three nodes
    (register,) = {path.rpartition("/")[0] for path, _ in place.stores["n0"].below("logs/")}
    block = place.stores["n0"].get(place.stores["n0"].below("logs/")[0][0]).to_pybytes()

    def create() -> None:
        for name in ("n0", "n1", "n2"):
            for number in range(len(IDS) + 4):
                place.stores[name].create(f"{register}/{number:010d}", [block])

    return create


class _Hanging(FaultyBucket):
    """A bucket that takes requests and does not answer until it is let go."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.hangs = False
        self.let_go = threading.Event()
        self.was_waited_for = False

    def _call(self, operation: str, what: str, work: Callable[[], Any]) -> Any:
        if self.hangs and not self.let_go.wait(LONG_S):
            self.was_waited_for = True
        return super()._call(operation, what, work)


def test_a_node_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first node takes requests and answers none. A takeover, reads and appends go on with the two others."""
    monkeypatch.setattr(node, "LATE_S", 0.5)
    stores = in_memory()
    hanging = stores["n0"] = _Hanging(stores["n0"])
    place = Place(monkeypatch, stores)
    first = place.process()
    writer = first.log("orders", create=True).writer()
    places = {id: writer.append(b"x", id=id).position for id in IDS}
    place.crash()
    hanging.hangs = True
    try:
        second = place.process()
        log = second.log("orders")
        with log.writer(takeover="force") as taken:
            assert {id: taken.append(b"x", id=id).position for id in IDS} == places
            taken.append(b"next", id="next")
            assert [entry.id for entry in log.read()] == [*IDS, "next"]
        assert not hanging.was_waited_for
    finally:
        hanging.let_go.set()
    second.close()


class _HangingOnBlocks(FaultyBucket):
    """A bucket that knows its names at once, and does not answer with the bytes of blocks until it is let go."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.hangs = False
        self.let_go = threading.Event()
        self.asked = 0

    def _call(self, operation: str, what: str, work: Callable[[], Any]) -> Any:
        if self.hangs and operation == "get" and what.startswith("logs/"):
            self.asked += 1
            self.let_go.wait(LONG_S)
        return super()._call(operation, what, work)


def test_a_node_that_hangs_on_blocks_is_asked_for_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was just started lists its objects, and hangs on their bytes. That it was late once is remembered,
    whatever else it answers: a reader does not wait for it again with each block.
    """
    monkeypatch.setattr(node, "LATE_S", 0.5)
    stores = in_memory()
    hanging = stores["n0"] = _HangingOnBlocks(stores["n0"])
    place = Place(monkeypatch, stores)
    first = place.process()
    writer = first.log("orders", create=True).writer()
    for id in IDS:
        writer.append(b"x", id=id)
    place.crash()
    hanging.hangs = True
    second = place.process()
    try:
        assert [entry.id for entry in second.log("orders").read()] == IDS
        assert hanging.asked == 1
    finally:
        hanging.let_go.set()
    second.close()
