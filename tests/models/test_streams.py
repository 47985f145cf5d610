"""Whatever is done to streams, in whatever order, they say what a dictionary of lists says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from oncelog import EventAck, Record, Streams
from oncelog.errors import IdConflict, OncelogError, PartialOverlap, WrongExpectedVersion
from oncelog.log.stored import stream_index
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.streams import index as index_module
from oncelog.streams.directory import Directory
from tests.log.worlds import LOG, DiskWorld, Ending, MemoryWorld, World, living
from tests.models.control import assert_noticed

KEYS = 3
SETTINGS = LogSettings(
    id_scope="stream", window=Window(duration_s=1e6, max_keys=KEYS), segment_age_s=25.0, snapshot_interval_s=15.0
)
names = st.sampled_from(["a", "b", "ab"])
ids = st.lists(st.sampled_from("123456"), min_size=1, max_size=3, unique=True)
expectations = st.one_of(st.sampled_from(["any", "any", "no stream", "exists"]), st.integers(0, 6))
QUICKLY = (Phase.explicit, Phase.reuse, Phase.generate)
"""A life that goes wrong is told as it is: to make it shorter takes longer than a test may."""

endings = st.sampled_from(["crash", "none", "all", "some"])


class Event(NamedTuple):
    """What is stored: where, which batch it came with, and what it says."""

    position: int
    batch: int
    id: str
    value: bytes


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pages of the index be full soon."""
    monkeypatch.setattr(index_module, "PAGE_ROWS", 8)
    monkeypatch.setattr(stream_index, "PAGE_ROWS", 8)


class StreamMachine(RuleBasedStateMachine):
    """Streams beside a dictionary of lists. ``window`` are the batches whose ids are remembered, oldest first: stream
    and versions. What lies before ``first`` is truncated away.
    """

    make_world: ClassVar[Callable[[], World]]

    def __init__(self) -> None:
        super().__init__()
        self.world = type(self).make_world()
        self.events: dict[str, list[Event]] = {}
        self.window: list[tuple[str, list[int]]] = []
        self.count = self.first = 0
        self.life: AbstractContextManager[Callable[[Writer], Writer]]
        self.born: Callable[[Writer], Writer]
        self.streams: Streams

    @initialize()
    def begin(self) -> None:
        """Start a process."""
        self.life = living(self.world)
        self.born = self.life.__enter__()
        self.streams = self.world.database().streams(LOG, SETTINGS, create=True)

    def teardown(self) -> None:
        """Let the process go."""
        if hasattr(self, "life"):
            try:
                self.says_what_the_dictionary_says()
            finally:
                self.end()

    def end(self) -> None:
        """End the process with what it holds."""
        if self.streams._event_writer.writer is not None:
            self.born(self.streams._event_writer.writer)
        self.life.__exit__(None, None, None)

    @rule(stream=names, chosen=ids, variant=st.sampled_from([0, 0, 0, 1]), expected=expectations)
    def append(self, stream: str, chosen: list[str], variant: int, expected: Any) -> None:
        """Append a batch: it is answered as the dictionary says."""
        self.append_all(stream, chosen, b"%d" % variant, expected)

    @rule(stream=names, count=st.integers(1, 3), exact=st.booleans())
    def append_new(self, stream: str, count: int, *, exact: bool) -> None:
        """Append events that were never sent, under the stream's version or any."""
        current = len(self.events.get(stream, [])) - 1
        chosen = [f"new-{self.count + row}" for row in range(count)]
        self.append_all(stream, chosen, expected=current if exact else "any")

    def append_all(self, stream: str, chosen: Sequence[str], value: bytes = b"0", expected: Any = "any") -> None:
        """Append a batch: it is answered as the dictionary says."""
        batch = [Record(value, id=id) for id in chosen]
        wanted = self.expect(stream, batch, expected)
        found = self.ask(stream, batch, expected)
        assert found == wanted, f"told {found}, expected {wanted}"

    @rule(
        which=st.integers(0, 99),
        exact=st.booleans(),
        change=st.sampled_from(["nothing", "content", "less", "more", "order"]),
    )
    def send_again(self, which: int, change: str, *, exact: bool) -> None:
        """Send a batch that is stored once more, however long ago that was; perhaps not quite as it was."""
        stored = [(name, event.batch) for name, events in self.events.items() for event in events]
        if not stored:
            return
        stream, batch = stored[which % len(stored)]
        run = [(version, event) for version, event in enumerate(self.events[stream]) if event.batch == batch]
        chosen = [event.id for _, event in run]
        more = [*chosen, f"more-{len(chosen)}"][:KEYS]
        chosen = {"less": chosen[:-1] or chosen, "more": more, "order": chosen[::-1]}.get(change, chosen)
        value = b"other" if change == "content" else run[0][1].value
        self.append_all(stream, chosen, value, run[0][0] - 1 if exact else "any")

    def ask(self, stream: str, batch: list[Record], expected: Any) -> object:
        """Return the acks, or the type of the error."""
        try:
            found = self.streams.append(stream, batch, expected=expected, timeout_s=None)
        except OncelogError as error:
            return type(error)
        return [(ack.version, ack.position, ack.duplicate) for ack in found]

    def expect(self, stream: str, batch: list[Record], expected: Any) -> object:
        """Return the acks, or the type of the error; be as the streams are then."""
        while sum(len(versions) for _, versions in self.window) > KEYS:
            del self.window[0]
        there = self.events.get(stream, [])
        known = {there[version].id: version for name, run in self.window if name == stream for version in run}
        exact = -1 if expected == "no stream" else expected
        versions = [known.get(str(record.id), -1) for record in batch]
        if any(version >= 0 for version in versions):
            return self.retry(there, batch, versions, exact)
        current = len(there) - 1
        if isinstance(exact, int) and current > exact:
            return self.late_retry(there, batch, exact)
        if (isinstance(exact, int) and exact != current) or (exact == "exists" and not there):
            return WrongExpectedVersion
        first = self.count
        self.events.setdefault(stream, []).extend(
            Event(first + row, first, str(record.id), record.value) for row, record in enumerate(batch)
        )
        self.count += len(batch)
        self.window.append((stream, [current + 1 + row for row in range(len(batch))]))
        return [(current + 1 + row, first + row, False) for row in range(len(batch))]

    def retry(self, there: list[Event], batch: list[Record], versions: list[int], exact: Any) -> object:
        """Return the answer to a batch of which something is remembered."""
        first = there[versions[0]]
        whole = [version for version, event in enumerate(there) if event.batch == first.batch]
        if versions != whole:
            return PartialOverlap
        if [there[version].value for version in versions] != [record.value for record in batch]:
            return IdConflict
        if isinstance(exact, int) and versions[0] != exact + 1:
            return IdConflict
        return [(version, there[version].position, True) for version in versions]

    def late_retry(self, there: list[Event], batch: list[Record], exact: int) -> object:
        """Return the answer to a batch that no window remembers: what stands in the stream decides."""
        versions = range(exact + 1, min(exact + 1 + len(batch), len(there)))
        found = [(version, there[version]) for version in versions if there[version].position >= self.first]
        wanted = [str(record.id) for record in batch]
        if not any(event.id in wanted for _, event in found):
            return WrongExpectedVersion
        whole = [event.id for event in there if event.batch == found[0][1].batch]
        if [event.id for _, event in found] != wanted or whole != wanted:
            return PartialOverlap
        if [event.value for _, event in found] != [record.value for record in batch]:
            return IdConflict
        return [(version, event.position, True) for version, event in found]

    @rule(seconds=st.sampled_from([1.0, 20.0, 30.0]))
    def let_time_pass(self, seconds: float) -> None:
        """Segments grow old, snapshots become due."""
        self.world.clock.advance(seconds)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        """Remove batches that no window needs; streams keep their versions.

        A batch goes whole: of a batch that is cut, a process without a snapshot remembers what is left, and a window
        of a few ids then reaches further back than the dictionary says.
        """
        starts = {event.position: event.batch for events in self.events.values() for event in events}
        before = starts.get(int(share * self.count), self.count)
        self.first = self.streams._log.truncate(before).first_position

    @rule()
    def store(self) -> None:
        """Store the index, as the writer does now and then."""
        if self.streams._event_writer._opened:
            self.streams._index.store()

    @rule()
    def restart(self) -> None:
        """Leave in peace, and come back."""
        self.streams.close()
        self.end()
        self.begin()

    @rule(ending=endings, seed=st.integers(0, 1000))
    def crash(self, ending: Ending, seed: int) -> None:
        """End the process, or the machine, and start again."""
        self.end()
        self.world.end(ending, seed)
        self.begin()

    @rule(which=st.sampled_from(["streams/", "dedup_snapshot/"]))
    def lose(self, which: str) -> None:
        """Delete what is stored beside the log: the next process does without."""
        home = self.streams._log._home
        for key in home.list(which):
            home.delete(key)

    @rule(stream=names, start=st.integers(0, 5), backward=st.booleans())
    def read(self, stream: str, start: int, *, backward: bool) -> None:
        """Read a stream from somewhere."""
        if stream not in self.events:
            return
        direction: Any = "backward" if backward else "forward"
        found = [event.version for event in self.streams.read(stream, start, direction=direction)]
        kept = [version for version, event in enumerate(self.events[stream]) if event.position >= self.first]
        wanted = [version for version in kept if (version <= start if backward else version >= start)]
        assert found == (wanted[::-1] if backward else wanted)

    @rule()
    def says_what_the_dictionary_says(self) -> None:
        """All events are there, once, at their positions and versions. Looking brings the index up to date, so that is
        not done after every step.
        """
        expected = {
            event.position: (stream, version, event.id, event.value)
            for stream, events in self.events.items()
            for version, event in enumerate(events)
            if event.position >= self.first
        }
        found = {
            event.position: (event.stream, event.version, event.id, event.value) for event in self.streams.read_all()
        }
        assert found == expected
        assert {one.stream: one.version for one in self.streams.list()} == {
            stream: len(events) - 1 for stream, events in self.events.items()
        }


class DiskMachine(StreamMachine):
    """Streams on a simulated disk."""

    make_world = staticmethod(lambda: DiskWorld(auto_advance=False))


class MemoryMachine(StreamMachine):
    """Streams in memory."""

    make_world = staticmethod(lambda: MemoryWorld(auto_advance=False))


def run(machine: type[StreamMachine], examples: int) -> None:
    """Try the machine."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, phases=QUICKLY, stateful_step_count=40, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("machine", [DiskMachine, MemoryMachine])
def test_streams_say_what_a_dictionary_says(machine: type[StreamMachine]) -> None:
    """Retries, conflicts, overlaps and versions are as they must be, whatever happens in between."""
    run(machine, 15)


def test_a_directory_that_counts_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: versions that do not count what came before are found out."""

    def forgetful(self: Directory, name: bytes) -> int:
        number = add(self, name)
        if self.size == 2:
            self.counts[0] = 0
        return number

    add = Directory.add
    monkeypatch.setattr(Directory, "add", forgetful)
    assert_noticed(MemoryMachine)


def test_acks_are_values() -> None:
    """What the machine compares is what users get."""
    assert EventAck(version=1, position=2, timestamp=None).duplicate is False
