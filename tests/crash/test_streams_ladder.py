"""The nth call fails, kills, or loses the power in the midst of stream appends and of storing their index.

After each: versions are contiguous, a retry gets the original places, and the index is what a fold of the log gives.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest

from oncelog import Record, Streams
from oncelog.errors import Closed, Unavailable
from oncelog.format import streams as stored
from oncelog.limits import KIB
from oncelog.log.log import Log
from oncelog.log.stored import stream_index
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.streams import index as index_module
from oncelog.streams.directory import Directory
from oncelog.streams.events import Expected
from oncelog.streams.index import Index
from oncelog.testing.faults import Killed, When
from tests.crash.test_log_ladder import ENDINGS, WHENS, climb, few, patiently
from tests.log.worlds import LOG, DiskWorld, Ending, MemoryWorld, World, living

SETTINGS = LogSettings(
    id_scope="stream", window=Window(duration_s=1e6, max_keys=6), segment_bytes=64 * KIB, snapshot_interval_s=1e6
)
"""The window forgets most of what is sent: what tells then is the stream itself."""

Born = Callable[[Writer], Writer]


class Request(NamedTuple):
    """Events for a stream, all or none, if it is as expected."""

    stream: str
    events: tuple[Record, ...]
    expected: Expected


def requests(*given: tuple[str, int, Expected]) -> Iterator[Request]:
    """Yield requests with so many events, each with an id and a value that no other has."""
    for number, (stream, count, expected) in enumerate(given):
        names = [f"{number}-{row}" for row in range(count)]
        yield Request(stream, tuple(Record(b"%s" % name.encode(), id=name) for name in names), expected)


FIRST = tuple(
    requests(("a", 1, "no stream"), ("b", 3, -1), ("a", 3, 0), ("c", 2, "no stream"), ("b", 1, 2), ("a", 2, 3))
)
SECOND = tuple(requests(*[("d", 1, -1)] * len(FIRST), ("c", 1, 1), ("d", 3, "no stream"), ("a", 1, 5), ("b", 2, 3)))[
    len(FIRST) :
]
Told = dict[Request, list[tuple[int, int]]]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page be full soon, so that pages are stored, and read again, all the time."""
    monkeypatch.setattr(index_module, "PAGE_ROWS", 4)
    monkeypatch.setattr(stream_index, "PAGE_ROWS", 4)


def opened(world: World, born: Born) -> Streams:
    """Open the streams, or make them; their writers are known to the one who buries them."""
    database = world.database()
    streams = patiently(lambda: database.streams(LOG, SETTINGS, create=True))
    claim = streams._log.writer
    streams._log.writer = lambda **options: born(claim(**options))  # type: ignore[method-assign]
    return streams


def send(streams: Streams, told: Told, request: Request) -> None:
    """Append until it is answered; the answer is the one that was given before, if one was."""
    stream, events, expected = request
    acks = patiently(lambda: streams.append(stream, list(events), expected=expected, wait_s=0, timeout_s=None))
    places = [(ack.version, ack.position) for ack in acks]
    assert told.setdefault(request, places) == places
    assert all(after == (before[0] + 1, before[1] + 1) for before, after in pairwise(places))


def work_through(world: World, told: Told, born: Born) -> None:
    """Do all that moves the index: append, store, close, open again, retry, fold it again."""
    streams = opened(world, born)
    for request in FIRST:
        send(streams, told, request)
        if len(request.events) > 2:
            patiently(streams._index.catch_up)
            patiently(streams._index.store)
    leave(streams)
    streams = opened(world, born)
    for request in (FIRST[2], *SECOND[:2], FIRST[0]):
        send(streams, told, request)
    patiently(streams._index.rebuild)
    for request in SECOND[2:]:
        send(streams, told, request)
    leave(streams)


def leave(streams: Streams) -> None:
    """Close; if storage fails then, the next one settles what was left."""
    with contextlib.suppress(Unavailable):
        streams.close()


Fold = list[tuple[str, int, int, list[int], list[int]]]


def fold_of(index: Index) -> Fold:
    """Return all that an index says: of each stream its count, its last position, and where each version is."""
    found = []
    for name, count, last in index.streams():
        pages = list(index.find(name, 0, backward=False))
        positions = [position for page, _ in pages for position in page.tolist()]
        versions = [version for _, page in pages for version in page.tolist()]
        found.append((name, count, last, positions, versions))
    return found


def check(log: Log, streams: Streams, told: Told) -> None:
    """Hold the streams against the log, and against what was told."""
    streams.version("a")  # brings the index up to date
    fresh = Index(log, streams._clock)
    fresh.open(from_base=True)
    assert fold_of(streams._index) == fold_of(fresh), "the index is not what the log says"
    entries = list(log.read())
    assert len({entry.value for entry in entries}) == len(entries), "an event is there twice"
    for name in {request.stream for request in told}:
        versions = {event.position: event.version for event in streams.read(name)}
        assert list(versions.values()) == list(range(len(versions))), "versions have a gap"
        assert list(versions) == [entry.position for entry in entries if entry.stream == name]
        for request, places in told.items():
            if request.stream == name:
                assert [(versions[position], position) for _, position in places] == places


def recovered(world: World, told: Told) -> None:
    """Open again, hold everything against the log, send everything once more, and do so again."""
    with living(world) as born:
        streams = opened(world, born)
        log = world.database().log(LOG)
        check(log, streams, told)
        for request in (*FIRST, *SECOND):
            send(streams, told, request)
        check(log, streams, told)
        assert log.end_position() == sum(len(request.events) for request in (*FIRST, *SECOND))
        streams.close()
    world.end("none", 0)


def rung(world: World, number: int, arm: Callable[[], None], ending: Ending) -> bool:
    """Climb one rung, and return whether something went wrong on it at all."""
    told: Told = {}
    before = world.faults.calls
    with living(world) as born:
        arm()
        try:
            work_through(world, told, born)
        except Killed:
            pass
        except Closed:
            assert world.faults.is_killed, "the streams ended although nobody killed them"
        touched = world.faults.calls - before >= number
    world.end(ending, number)
    recovered(world, told)
    return touched


def killed(world: World, number: int, when: When, ending: Ending) -> bool:
    """Climb a rung on which the process is killed."""
    return rung(world, number, lambda: world.faults.kill_at(number, when), ending)


@pytest.mark.parametrize("ending", ENDINGS)
def test_killed_at_every_call_of_a_disk(ending: Ending) -> None:
    """Wherever the power goes in an append of one event or of several, or while the index is stored or folded again."""
    climb(lambda n: killed(DiskWorld(n), n, WHENS[n // 4 % 3], ending), *few(ENDINGS.index(ending) * 31, 127))


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_operation_of_any_home(when: When) -> None:
    """The same where the home is anything that keeps the contract."""
    top = climb(lambda n: killed(MemoryWorld(n), n, when, "crash"), *few(WHENS.index(when), 29))
    assert top > 60, "the work has shrunk: it no longer does what this ladder is to climb through"


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_call_that_fails_once(error: int) -> None:
    """An index that cannot be stored costs time; an append whose answer was lost is sent again, and is there once."""

    def step(number: int) -> bool:
        world = DiskWorld(number)
        return rung(world, number, lambda: world.fail_at(number, WHENS[number % 3], error), ENDINGS[number % 4])

    climb(step, *few(error, 127))


def test_an_index_that_counts_wrongly_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: a stored directory that is one event ahead of its position gives versions that leave one out."""

    def dump(self: Directory, log_id: str, position: int, page: stored.StreamPage) -> stored.StoredDirectory:
        self.counts[0] += 1
        try:
            return taken(self, log_id, position, page)
        finally:
            self.counts[0] -= 1

    taken = Directory.dump
    monkeypatch.setattr(Directory, "dump", dump)
    with pytest.raises(AssertionError):
        climb(lambda n: killed(MemoryWorld(n), n, "after", "crash"), 1, 9)
