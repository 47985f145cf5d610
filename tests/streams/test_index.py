"""The index of streams: compact, a fold of the log, and nothing but time is lost with what is stored of it."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog import Database, LogSettings, Record, Streams, Window
from oncelog.errors import CorruptionError
from oncelog.format import streams as stored
from oncelog.limits import KIB
from oncelog.log.stored import stream_index
from oncelog.log.stored.rows import Rows
from oncelog.log.stored.stream_index import DIRECTORIES_PREFIX, PAGES_PREFIX
from oncelog.storage.memory import MemoryStorage
from oncelog.streams import index as module
from oncelog.streams.directory import Directory


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pages small, so that there are many."""
    monkeypatch.setattr(module, "PAGE_ROWS", 16)
    monkeypatch.setattr(stream_index, "PAGE_ROWS", 16)
    monkeypatch.setattr(module, "PAGES_KEPT", 2)


def filled(storage: MemoryStorage, count: int = 200) -> dict[str, list[int]]:
    """Append to a few streams, and records that are no events; return the positions of each stream's events."""
    chosen = random.Random(1)
    expected: dict[str, list[int]] = {}
    settings = LogSettings(id_scope="stream", segment_bytes=64 * KIB, idempotence="off")
    with Database(storage) as db, db.log("orders", settings, create=True).writer() as writer:
        for position in range(count):
            stream = chosen.choice(["a", "b", "c", "rare" if position % 50 == 0 else "b", None])
            writer.append(b"%d" % position, stream=stream)
            if stream is not None:
                expected.setdefault(stream, []).append(position)
    return expected


def found(streams: Streams) -> dict[str, list[int]]:
    """Return the positions of each stream's events, read both ways."""
    there = {}
    for one in streams.list():
        events = list(streams.read(one.stream))
        assert [event.version for event in events] == list(range(one.count))
        assert [event.stream for event in events] == [one.stream] * one.count
        assert list(streams.read(one.stream, direction="backward")) == events[::-1]
        there[one.stream] = [event.position for event in events]
    return there


def test_every_stream_is_found_across_pages() -> None:
    """Pages that are full, the one that is not, and those that were dropped from memory tell one story."""
    storage = MemoryStorage()
    expected = filled(storage)
    streams = Database(storage).streams("orders")
    assert found(streams) == expected
    assert len(streams._log._home.list(PAGES_PREFIX)) == 200 // 16
    assert streams._index.nbytes < 100_000


@pytest.mark.parametrize("lost", ["directories", "pages", "all", "flipped directories", "flipped pages"])
def test_what_is_stored_may_be_lost_or_damaged(lost: str) -> None:
    """It is folded again from the log: time is lost, and nothing else."""
    storage = MemoryStorage()
    expected = filled(storage)
    with Database(storage) as db:
        streams = db.streams("orders")
        streams.append("b", Record(b"x"))
        expected["b"].append(200)
    home = Database(storage).log("orders")._home
    assert home.list(DIRECTORIES_PREFIX)
    for prefix in (DIRECTORIES_PREFIX, PAGES_PREFIX):
        for key in home.list(prefix) if lost == "all" or lost.rsplit(maxsplit=1)[-1] in prefix else []:
            content = bytearray(home.read(key).to_pybytes())
            home.delete(key)
            if "flipped" in lost:
                content[len(content) // 2] ^= 1
                home.create(key, [content])
    assert found(Database(storage).streams("orders")) == expected


@pytest.mark.parametrize("who", ["read_all", "subscription", "retry", "old retry"])
def test_lost_pages_are_folded_again_whoever_needs_them(who: str) -> None:
    """Not only a stream's readers: anybody who reads all, follows, or retries an append never notices."""
    storage = MemoryStorage()
    window = Window(max_keys=1 if who == "old retry" else 1000)
    with Database(storage) as db:
        streams = db.streams("orders", LogSettings(id_scope="stream", window=window), create=True)
        for number in range(100):
            streams.append("s", Record(b"x", id=f"{number}"))
    with Database(storage) as db:
        streams = db.streams("orders")
        assert streams.version("s") == 99
        home = db.log("orders")._home
        for key in home.list(PAGES_PREFIX):
            home.delete(key)
        if who == "read_all":
            assert [event.version for event in streams.read_all()] == list(range(100))
        elif who == "subscription":
            with streams.subscribe_all() as subscription:
                assert [subscription.poll() is None for _ in range(102)] == [False] * 101 + [True]
        else:
            [ack] = streams.append("s", Record(b"x", id="3"), expected=2)
            assert (ack.version, ack.position, ack.duplicate) == (3, 3, True)


@pytest.mark.parametrize("why", ["damage", "truncation"])
def test_no_version_goes_back_while_the_index_is_folded_anew(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that is decided meanwhile must not take a stream for a younger one than it is."""
    storage = MemoryStorage()
    expected = filled(storage)
    streams = Database(storage).streams("orders")
    before = streams.version("b")
    assert before == len(expected["b"]) - 1
    index, fold, seen = streams._index, module.Index.fold, set[int]()

    def watched(self: module.Index, rows: Rows) -> None:
        seen.add(index.version("b"))
        fold(self, rows)

    monkeypatch.setattr(module.Index, "fold", watched)
    with Database(storage).log("orders").writer() as writer:
        for _ in range(20):
            writer.append(b"x", stream="b")
    if why == "damage":
        index.rebuild()
    else:
        assert Database(storage).log("orders").truncate(210).first_position == 210
        assert streams.version("b") == before + 20
    assert seen == {before}


def test_records_of_no_stream_that_were_truncated_away_count_as_folded() -> None:
    """The base need not change for them; the index is up to date all the same, and appends go on."""
    storage = MemoryStorage()
    settings = LogSettings(id_scope="stream", idempotence="off")
    with Database(storage) as db:
        log = db.log("orders", settings, create=True)
        with log.writer() as writer:
            for stream in ("s", None, None, None):
                writer.append(b"x", stream=stream)
        under = Database(storage).streams("orders")
        assert [one.last_position for one in under.list()] == [0]
        assert [log.truncate(before).first_position for before in (1, 4)] == [1, 4]
        assert [one.last_position for one in under.list()] == [None]
    with Database(storage) as db:
        [ack] = db.streams("orders").append("s", Record(b"y"), expected=0)
        assert (ack.version, ack.position) == (1, 4)


def test_a_directory_that_is_ahead_of_the_log_is_not_believed() -> None:
    """A log that was restored from an older copy is folded as it is."""
    storage = MemoryStorage()
    expected = filled(storage)
    log = Database(storage).log("orders")
    streams = Database(storage).streams("orders")
    streams.list()
    ahead = streams._index.directory.dump(log.log_id, 10_000, stored.StreamPage(log.log_id, 9_984, *_empty(16)))
    log._home.create(f"{DIRECTORIES_PREFIX}{10_000:020d}-ffff", [stored.encode_directory(ahead)])
    assert found(Database(storage).streams("orders")) == expected


@pytest.mark.parametrize("has_streams", [True, False])
def test_what_is_ahead_of_the_log_is_not_believed_when_the_log_has_grown(*, has_streams: bool) -> None:
    """A copy that was taken while its log was written has pages and directories of events that are not in it; perhaps
    the first event of all is not. Others come in their place, also by a writer that knows no streams.
    """
    live, copy = MemoryStorage(), MemoryStorage()
    if has_streams:
        filled(live, 100)
    else:
        with Database(live) as db, db.log("orders", LogSettings(id_scope="stream"), create=True).writer() as writer:
            writer.append_many([Record(b"x")] * 100)
    source, target = live.home("orders"), copy.home("orders")
    with Database(live) as db, Database(copy) as other:
        db.copy("orders", other)
    with Database(live) as db:
        for number in range(100):
            db.streams("orders").append(f"live-{number % 3}", Record(b"x"))
    for key in source.list("streams/"):
        target.create(key, [source.read(key)])
    assert len(target.list(PAGES_PREFIX)) > 10
    with Database(copy) as db, db.log("orders").writer() as writer:
        for number in range(150):
            writer.append(b"y", stream=f"copy-{number % 5}")
    streams = Database(copy).streams("orders")
    there = found(streams)
    assert not any(name.startswith("live") for name in there)
    assert [there[f"copy-{number}"] for number in range(5)] == [list(range(100 + n, 250, 5)) for n in range(5)]


def _empty(count: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], np.ndarray[tuple[int], np.dtype[np.int32]]]:
    return np.full(count, -1, np.int32), np.full(count, -1, np.int32)


@pytest.mark.parametrize("when", ["before it is opened", "under a reader"])
def test_a_truncation_leaves_versions_as_they_are(when: str) -> None:
    """What was truncated is passed over, and no version moves, no matter from where the index is folded."""
    storage = MemoryStorage()
    expected = filled(storage)
    streams = Database(storage).streams("orders")
    if when == "under a reader":
        assert found(streams) == expected
    assert Database(storage).log("orders").truncate(100).first_position == 100
    for opened in (streams, Database(storage).streams("orders")):
        for one in opened.list():
            events = list(opened.read(one.stream))
            kept = [position for position in expected[one.stream] if position >= 100]
            assert [event.position for event in events] == kept
            count = len(expected[one.stream])
            assert [event.version for event in events] == list(range(count - len(kept), count))
            assert one.count == count
        assert [event.position for event in opened.read_all(direction="backward")][-1] >= 100


def test_a_read_that_was_begun_passes_over_what_is_truncated_meanwhile() -> None:
    """It reads a page of the index when it is its turn: those that are gone by then are left out, the rest is there."""
    storage = MemoryStorage()
    expected = filled(storage)
    name, positions = max(expected.items(), key=lambda item: len(item[1]))
    streams = Database(storage).streams("orders")
    reading = streams.read(name)
    assert next(reading).position == positions[0]
    assert Database(storage).log("orders").truncate(100).first_position == 100
    home = streams._log._home
    for key in home.list("streams/pages/"):
        if int(key.removeprefix("streams/pages/")) < 80:
            home.delete(key)
    streams._index._full.clear()
    left = [event.position for event in reading]
    assert left[-1] == positions[-1]
    assert [position for position in left if position >= 100] == [p for p in positions if p >= 100]


def test_appends_go_on_while_the_index_is_stored_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory is stored after so many events, and on leaving; two are kept."""
    monkeypatch.setattr("oncelog.streams.event_writer.STORE_EVENTS", 20)
    monkeypatch.setattr("oncelog.streams.event_writer.AHEAD_MAX", 5)
    storage = MemoryStorage()
    with Database(storage) as db:
        streams = db.streams("orders", create=True)
        for number in range(100):
            streams.append(f"s{number % 7}", Record(b"x"), expected=number // 7 - 1)
    home = Database(storage).log("orders")._home
    assert len(home.list(DIRECTORIES_PREFIX)) == 2
    streams = Database(storage).streams("orders")
    assert {one.stream: one.count for one in streams.list()} == {f"s{n}": 15 if n < 2 else 14 for n in range(7)}


# How much it takes.


def numbered(count: int) -> Directory:
    """Return a directory of so many streams with names of 36 bytes, as ids are."""
    directory = Directory(7)
    for number in range(count):
        directory.add(b"order-%030d" % number)
    return directory


def test_a_million_streams_are_compact() -> None:
    """Counted, not clocked, on a hundredth of a million: what a stream takes does not depend on how many there are."""
    few, many = numbered(10_000), numbered(20_000)
    assert few.nbytes / 10_000 < 36 + 90
    assert many.nbytes / 20_000 < 36 + 90
    page = stored.StreamPage("id", 0, *_empty(0))
    data = stored.encode_directory(many.dump("id", 0, page))
    assert len(data) / 20_000 < 36 + 60


def test_opening_a_stored_directory_does_nothing_for_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is loaded as arrays: no name is hashed again."""
    page = stored.StreamPage("id", 0, *_empty(0))
    data = stored.encode_directory(numbered(10_000).dump("id", 0, page))
    monkeypatch.setattr("oncelog.streams.directory.xxhash", None)
    loaded = Directory.load(7, stored.decode_directory(data, "directory"))
    monkeypatch.undo()
    assert loaded.find(b"order-%030d" % 9_999) == 9_999
    assert loaded.find(b"order-%030d" % 10_000) == -1
    assert loaded.add(b"another") == 10_000


@settings(max_examples=100)
@given(st.lists(st.lists(st.sampled_from(["a", "b", "c", "dd", "", "é"]), max_size=8), max_size=8))
def test_the_directory_says_what_a_dictionary_says(batches: list[list[str]]) -> None:
    """Numbers by first appearance, versions by count, positions of first and last, whatever comes in which batches."""
    directory = Directory(1)
    expected: dict[str, list[int]] = {}
    position = 0
    for batch in batches:
        numbers = np.array([directory.add(name.encode()) for name in batch], np.int64)
        versions = directory.count_in(numbers, position)
        for name, version in zip(batch, versions.tolist(), strict=True):
            assert version == len(expected.setdefault(name, []))
            expected[name].append(position)
            position += 1
    assert list(directory.names()) == list(expected)
    for number, positions in enumerate(expected.values()):
        assert int(directory.counts[number]) == len(positions)
        assert (int(directory.firsts[number]), int(directory.lasts[number])) == (positions[0], positions[-1])


@pytest.mark.parametrize("decode", [stored.decode_directory, stored.decode_page])
def test_every_byte_counts(decode: Callable[[bytes, str], object]) -> None:
    """A flipped byte is an error, never another stream or another version."""
    page = stored.StreamPage("id", 16, np.arange(16, dtype=np.int32), np.arange(16, dtype=np.int32))
    whole = decode is stored.decode_directory
    data = stored.encode_directory(numbered(3).dump("id", 17, page)) if whole else stored.encode_page(page)
    decode(data, "it")
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x40
        with pytest.raises(CorruptionError):
            decode(bytes(changed), "it")


def test_the_log_s_own_readers_see_events_as_records() -> None:
    """Streams are a face of the log, not another store."""
    storage = MemoryStorage()
    with Database(storage) as db:
        db.streams("orders", create=True).append("s", Record(b"x", id="1", type="T"))
        (entry,) = db.log("orders").read()
    assert (entry.stream, entry.type, entry.id, entry.value) == ("s", "T", "1", b"x")
