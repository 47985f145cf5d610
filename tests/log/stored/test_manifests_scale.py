"""A log of 100,000 segments is opened, rolled and searched with as many operations as one of ten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import msgspec
import pyarrow as pa
import pytest

from oncelog.clock import Clock
from oncelog.format.manifest import INLINE_SEGMENTS_MAX, PAGE_SEGMENTS, File, Manifest, Segment
from oncelog.limits import KIB
from oncelog.log.stored.manifests import Change, Known, Manifests
from oncelog.settings import LogSettings
from oncelog.storage.base import Chunk
from oncelog.storage.memory import MemoryHome
from oncelog.testing.clock import SimulatedClock

MANY = 100_000
FEW = 10
ENTRIES = 7
BODY_BYTES_MAX = 128 * KIB
"""What a body may have, however old its log: some hundred pointers to pages, and some hundred segments."""


class CountedHome(MemoryHome):
    """A home that counts its operations, and the bytes that are read and written."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("log", clock, in_flight_max=1)
        self.counted: Counter[str] = Counter()
        self.keys: list[tuple[str, str]] = []

    def _count(self, operation: str, key: str, size_bytes: int = 0) -> None:
        self.counted[operation] += 1
        self.counted["bytes"] += size_bytes
        self.keys.append((operation, key))

    def create(self, key: str, data: Sequence[Chunk]) -> bool:
        """Create an object."""
        self._count("create", key, sum(memoryview(chunk).nbytes for chunk in data))
        return super().create(key, data)

    def read(self, key: str, start: int = 0, length: int | None = None, *, mapped: bool = False) -> pa.Buffer:
        """Read an object."""
        found = super().read(key, start, length, mapped=mapped)
        self._count("read", key, found.size)
        return found

    def exists(self, key: str) -> bool:
        """Look for an object."""
        self._count("exists", key)
        return super().exists(key)

    def list(self, prefix: str) -> list[str]:
        """List objects."""
        self._count("list", prefix)
        return super().list(prefix)

    def delete(self, key: str) -> None:
        """Delete an object."""
        self._count("delete", key)
        super().delete(key)

    def cost(self, work: Callable[[], object]) -> Counter[str]:
        """Return what some work costs."""
        before = Counter(self.counted)
        self.keys.clear()
        work()
        return self.counted - before


def segment(number: int) -> Segment:
    """Return a closed segment of which all is made up."""
    return Segment(
        number=number,
        first_position=number * ENTRIES,
        entries=ENTRIES,
        epoch=1,
        end=64 * KIB,
        checksum=(number * 0x9E37_79B9_7F4A_7C15) % 2**64,
        size_bytes=64 * KIB,
        first_timestamp_us=1_700_000_000_000_000 + number,
        last_timestamp_us=1_700_000_000_000_000 + number,
        last_uptime_us=number,
        ids=ENTRIES,
    )


def rolled(first: int, count: int) -> Change:
    """Return a change that closes some more segments."""

    def change(manifest: Manifest) -> Manifest:
        more = tuple(map(segment, range(first, first + count)))
        return msgspec.structs.replace(
            manifest,
            segments=(*manifest.segments, *more),
            next_segment=first + count,
            next_position=(first + count) * ENTRIES,
        )

    return change


class Grown:
    """A log's manifest after so many segments."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.clock = SimulatedClock()
        self.home = CountedHome(self.clock)
        manifests = self.manifests()
        known = manifests.create(
            Manifest(name="orders", log_id="00", secret=b"", settings=LogSettings(), created_us=0, epoch=1)
        )
        assert known is not None
        self.known: Known = known
        for first in range(0, count, PAGE_SEGMENTS):
            self.known = manifests.update(rolled(first, min(PAGE_SEGMENTS, count - first)), self.known)

    def manifests(self) -> Manifests:
        """Return what a process has that was just started."""
        return Manifests(self.home, self.clock)

    @property
    def manifest(self) -> Manifest:
        """What the newest version says."""
        return self.known.manifest


@pytest.fixture(scope="module")
def old() -> Grown:
    """Return a log of 100,000 segments. Tests leave it as it is, or with a few segments more."""
    return Grown(MANY)


@pytest.fixture
def young() -> Grown:
    """Return a log of ten segments."""
    return Grown(FEW)


def test_all_segments_are_there_in_order(old: Grown) -> None:
    """What is moved to pages is neither lost nor repeated, and no body holds more than it may."""
    found = list(old.manifests().closed_from(old.manifest, 0))[:MANY]
    assert [(found[0].number, found[0].first_position), len(found)] == [(0, 0), MANY]
    for before, after in pairwise(found):
        assert (after.number, after.first_position) == (before.number + 1, before.next_position)
    assert len(old.manifest.segments) <= INLINE_SEGMENTS_MAX
    assert sum(page.segments for page in old.manifest.pages) + len(old.manifest.segments) >= MANY
    assert list(old.manifests().closed_back(old.manifest))[::-1][:MANY] == found


def test_the_newest_is_found_by_doubling(old: Grown, young: Grown) -> None:
    """Opening a log of any age takes a version, a body, and as many looks as the number of versions has digits."""
    for grown in (old, young):
        versions = grown.known.version
        cost = grown.home.cost(grown.manifests().newest)
        assert cost["read"] == 2
        assert cost["exists"] <= 2 * versions.bit_length() + 2
        assert cost["bytes"] < BODY_BYTES_MAX
        assert set(cost) <= {"read", "exists", "bytes"}, "nothing is listed, nothing written"


def test_the_newest_from_a_known_one_costs_one_look(old: Grown, young: Grown) -> None:
    """Who knows the newest manifest asks once whether there is another, however old the log."""
    for grown in (old, young):
        assert grown.home.cost(partial(grown.manifests().newest, grown.known)) == {"exists": 1}


def test_a_roll_costs_the_same(old: Grown, young: Grown) -> None:
    """Closing a segment writes a version and a body of bounded size, and touches no page."""
    costs = []
    for grown in (old, young):

        def roll(grown: Grown = grown) -> None:
            grown.known = grown.manifests().update(rolled(grown.manifest.next_segment, 1), grown.known)

        cost = grown.home.cost(roll)
        assert not [key for _, key in grown.home.keys if key.startswith("pages/")]
        assert cost["bytes"] < BODY_BYTES_MAX
        assert cost["create"] == 2
        costs.append(cost)
    for operation in ("create", "exists", "list"):
        assert costs[0][operation] == costs[1][operation]
    assert costs[0].total() - costs[0]["bytes"] <= costs[1].total() - costs[1]["bytes"] + 2, "an old body is deleted"


def test_a_roll_that_moves_segments_to_a_page_writes_that_page() -> None:
    """The roll for which a body is too long writes one page more, and leaves all others alone."""
    grown = Grown(PAGE_SEGMENTS * 8)
    assert len(grown.manifest.segments) == INLINE_SEGMENTS_MAX
    pages = grown.manifest.pages

    def roll() -> None:
        grown.known = grown.manifests().update(rolled(grown.manifest.next_segment, 1), grown.known)

    assert grown.home.cost(roll)["create"] == 3
    assert [operation for operation, key in grown.home.keys if key.startswith("pages/")] == ["create"]
    assert grown.manifest.pages[:-1] == pages
    assert len(grown.manifest.segments) == INLINE_SEGMENTS_MAX + 1 - PAGE_SEGMENTS


def test_a_position_in_the_middle_is_found_with_one_page(old: Grown, young: Grown) -> None:
    """A reader that starts in the middle of an old log reads the page that holds its place, and no other."""
    middle = segment(MANY // 2)
    manifests = old.manifests()
    found = []
    cost = old.home.cost(
        lambda: found.append(next(manifests.closed_from(old.manifest, middle.first_position + ENTRIES - 1)))
    )
    assert found == [middle]
    assert (cost["read"], set(cost)) == (1, {"read", "bytes"})
    assert cost["bytes"] < PAGE_SEGMENTS * 200
    assert not old.home.cost(lambda: next(manifests.closed_from(old.manifest, middle.first_position)))
    assert not young.home.cost(lambda: next(young.manifests().closed_from(young.manifest, 5 * ENTRIES)))


def test_sealing_a_segment_of_long_ago_writes_its_page_alone() -> None:
    """A segment that lives in a page gets its file by that page being written again; the others stay."""
    grown = Grown(PAGE_SEGMENTS * 20)
    number = PAGE_SEGMENTS * 9 + 17
    sealed = msgspec.structs.replace(segment(number), file=File("sealed/x.parquet", 0, 1234, 5678), end=0, size_bytes=0)
    pages = grown.manifest.pages
    manifests = grown.manifests()

    def seal() -> None:
        grown.known = manifests.update(lambda manifest: manifests.replaced(manifest, {number: sealed}), grown.known)

    cost = grown.home.cost(seal)
    assert [(operation, key) for operation, key in grown.home.keys if key.startswith("pages/")] == [
        ("read", pages[9].key),
        ("create", grown.manifest.pages[9].key),
    ]
    assert cost["create"] == 3
    assert (*pages[:9], *pages[10:]) == (*grown.manifest.pages[:9], *grown.manifest.pages[10:])
    assert grown.manifest.doomed == (pages[9].key,)
    found = list(grown.manifests().closed_from(grown.manifest, 0))
    assert found[number] == sealed
    assert [other.number for other in found] == list(range(PAGE_SEGMENTS * 20))
    assert [other for other in found if other.file is not None] == [sealed]
