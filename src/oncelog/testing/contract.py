"""What every home of logs must do: one suite that each of them runs.

Derive a class from ``StorageContract`` in a test file and give it a ``storage`` fixture::

    class TestMine(StorageContract):
        @pytest.fixture
        def storage(self):
            return MyStorage()
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from oncelog.errors import InvalidArgument, LogBusy, NotFound, WriterFenced
from oncelog.storage.base import LogHome, SegmentEnd, Storage
from oncelog.testing.blocks import BlockChain
from oncelog.testing.writing import ClaimedLog, Writing, fill, read_all, seal

_PLENTY = 1 << 30
_LONG_S = 60.0


class ObjectsContract:
    """Objects: created once, whole, unchanging."""

    @pytest.fixture
    def storage(self) -> Storage:
        """Return a new, empty storage: override this."""
        raise NotImplementedError

    @pytest.fixture
    def home(self, storage: Storage) -> LogHome:
        """Return the home of a log that something was created in."""
        home = storage.home("orders")
        assert home.create("made", [b""])
        return home

    def test_an_object_is_created_once(self, home: LogHome) -> None:
        """The first create wins and its bytes stand, whatever is offered later."""
        assert home.create("manifest/1", [b"first"])
        assert not home.create("manifest/1", [b"second"])
        assert home.read("manifest/1").to_pybytes() == b"first"

    def test_of_many_creates_at_once_one_wins(self, home: LogHome) -> None:
        """Sixteen threads race for one name: one gets the answer that it won, and all read what it wrote."""
        barrier = threading.Barrier(16)

        def attempt(number: int) -> bool:
            barrier.wait()
            return home.create("manifest/2", [b"writer ", str(number).encode()])

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(attempt, range(16)))
        assert answers.count(True) == 1
        assert home.read("manifest/2").to_pybytes() == f"writer {answers.index(True)}".encode()

    def test_pieces_of_every_kind_are_written_as_one(self, home: LogHome) -> None:
        """Pieces are joined in order, and are the caller's again once create has returned."""
        piece = bytearray(b"two ")
        assert home.create("joined", [b"one ", piece, memoryview(b"three "), pa.py_buffer(b"four"), b""])
        piece[:] = b"!!! "
        assert home.read("joined").to_pybytes() == b"one two three four"

    @pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 3_000_001])
    def test_objects_of_every_size(self, home: LogHome, size: int) -> None:
        """Nothing is special about an object that is empty, small or large."""
        content = bytes(range(251)) * (size // 251) + bytes(size % 251)
        assert home.create("sized", [content])
        assert home.read("sized").to_pybytes() == content

    def test_a_part_of_an_object(self, home: LogHome) -> None:
        """A read begins where it is asked to, and ends at the object's end at the latest."""
        home.create("part", [b"0123456789"])
        assert home.read("part", 3).to_pybytes() == b"3456789"
        assert home.read("part", 3, 4).to_pybytes() == b"3456"
        assert home.read("part", 8, 100).to_pybytes() == b"89"
        assert home.read("part", 100, 1).to_pybytes() == b""

    def test_an_object_that_is_not_there(self, home: LogHome) -> None:
        """What was never created is not found, and to delete it is no error."""
        assert not home.exists("missing/1")
        with pytest.raises(NotFound):
            home.read("missing/1")
        home.delete("missing/1")

    def test_delete(self, home: LogHome) -> None:
        """A deleted object is gone, its name is free, and buffers read from it stay as they were."""
        for size in (10, 1_000_000):
            assert home.create("doomed", [b"a" * size])
            held = home.read("doomed")
            home.delete("doomed")
            assert not home.exists("doomed")
            assert "doomed" not in home.list("")
            assert home.create("doomed", [b"b" * size])
            assert held.to_pybytes() == b"a" * size
            home.delete("doomed")

    def test_list(self, home: LogHome) -> None:
        """Keys come sorted, those with the prefix and no others."""
        for key in ("b/2", "b/10", "a/x/y", "a.b", "b/1", "bb/1", "~%-_.Z"):
            assert home.create(key, [b"x"])
        assert home.list("b/") == ["b/1", "b/10", "b/2"]
        assert home.list("a/") == ["a/x/y"]
        assert home.list("") == sorted(["b/2", "b/10", "a/x/y", "a.b", "b/1", "bb/1", "~%-_.Z", "made"])
        assert home.list("nothing/") == []

    def test_the_folder_of_an_object_is_no_object(self, home: LogHome) -> None:
        """A key that others begin with is not there itself."""
        home.create("folder/object", [b"x"])
        assert not home.exists("folder")
        with pytest.raises(NotFound):
            home.read("folder")

    @pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a b", "ä", "a\n", "a\\b"])
    def test_bad_keys_are_refused(self, home: LogHome, key: str) -> None:
        """No key leads out of the home, or means something else on another kind of home."""
        with pytest.raises(InvalidArgument):
            home.create(key, [b"x"])
        with pytest.raises(InvalidArgument):
            home.read(key)

    def test_homes(self, storage: Storage) -> None:
        """A home is there from its first create on, and apart from all others."""
        assert storage.homes() == []
        second, first = storage.home("b"), storage.home("a")
        assert not first.exists("x")
        assert first.list("") == []
        assert storage.homes() == []
        assert second.create("x", [b"b"])
        assert first.create("x", [b"a"])
        assert storage.homes() == ["a", "b"]
        assert storage.home("b").read("x").to_pybytes() == b"b"

    def test_a_removed_home_can_be_made_again(self, storage: Storage) -> None:
        """Nothing of a removed home is left, for those who knew it before either."""
        home = storage.home("orders")
        home.create("x", [b"old"])
        fill(home, 0, 3)
        storage.remove_home("orders")
        storage.remove_home("orders")
        assert not any(storage.home(key).list("") for key in storage.homes())
        assert not home.exists("x")
        assert home.create("x", [b"new"])
        assert home.blocks(0, 0, None, _PLENTY) == ([], 0)
        chain = fill(home, 0, 2)
        assert read_all(home, 0, None) == chain.made

    def test_close_may_be_repeated(self, storage: Storage) -> None:
        """Closing twice is no error."""
        storage.home("orders").create("x", [b"x"])
        storage.close()
        storage.close()


class ClaimContract:
    """The right to write: one at a time. ``force_fences``: whether a living holder can lose it.

    A home that is not ``exclusive`` grants every claim: there the fence alone decides.
    """

    force_fences = True

    def test_one_claim_at_a_time(self, home: LogHome) -> None:
        """A second claim is refused while the first lives, and granted afterwards."""
        first = home.claim(0, force=False)
        if not home.exclusive:
            home.claim(0, force=False).release()
            first.release()
            return
        with pytest.raises(LogBusy):
            home.claim(0, force=False)
        with pytest.raises(LogBusy):
            home.claim(0.02, force=False)
        first.release()
        first.release()
        second = home.claim(0, force=False)
        first.release()
        with pytest.raises(LogBusy):
            home.claim(0, force=False)
        second.release()

    def test_a_claim_waits_for_its_turn(self, home: LogHome) -> None:
        """One that waits gets the log when the holder gives it back."""
        first = home.claim(0, force=False)
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(home.claim, _LONG_S, force=False)
            first.release()
            second.result(_LONG_S).release()

    def test_claims_of_two_logs_are_apart(self, storage: Storage) -> None:
        """Who holds one log does not keep others from another."""
        claims = []
        for key in ("a", "b"):
            storage.home(key).create("x", [b""])
            claims.append(storage.home(key).claim(0, force=False))
        for claim in claims:
            claim.release()

    def test_force(self, home: LogHome) -> None:
        """A living holder is overruled where its blocks can be fenced, and refused where not."""
        first = home.claim(0, force=False)
        if not self.force_fences:
            with pytest.raises(LogBusy):
                home.claim(0, force=True)
            first.release()
            return
        second = home.claim(0, force=True)
        first.release()
        if home.exclusive:
            with pytest.raises(LogBusy):
                home.claim(0, force=False)
        second.release()


class SegmentsContract:
    """Blocks: numbered without holes, visible when durable, stopped by a fence."""

    def test_blocks_are_visible_when_append_returns(self, home: LogHome) -> None:
        """What was acknowledged can be read at once, byte for byte, from any cursor on."""
        with Writing(home, 0) as writing:
            cursors = [0]
            for number in range(20):
                cursors.append(writing.append(b"v%d" % number, b"w" * number * 50))
                assert read_all(home, 0, None) == writing.chain.made
            for number, cursor in enumerate(cursors):
                assert read_all(home, 0, None, cursor) == writing.chain.made[number:]

    def test_nothing_there(self, home: LogHome) -> None:
        """A segment that is not there, or has no blocks yet, reads as empty."""
        assert home.blocks(7, 0, None, _PLENTY) == ([], 0)
        assert home.locate(7, 0, None) == 0
        with Writing(home, 8):
            assert home.blocks(8, 0, None, _PLENTY) == ([], 0)
            assert home.locate(8, 0, None) == 0
        assert home.blocks(9, 0, 0, _PLENTY) == ([], 0)

    def test_limits(self, home: LogHome) -> None:
        """A limit bounds what is returned, and never keeps a reader from going on."""
        chain = fill(home, 0, 30)
        end = seal(home, 0).end
        for limit_bytes in (1, 100, 1000, 5000):
            cursor, read = 0, []
            while blocks := home.blocks(0, cursor, end, limit_bytes)[0]:
                largest = max(map(len, chain.made))
                assert sum(len(block) for block in blocks) <= limit_bytes + largest
                cursor = home.blocks(0, cursor, end, limit_bytes)[1]
                read += [block.to_pybytes() for block in blocks]
            assert read == chain.made
            assert cursor == end

    def test_a_block_that_was_begun_is_not_stored(self, home: LogHome) -> None:
        """The device may have begun with it: it is there when ``append`` returns, and not before."""
        with Writing(home, 0) as writing:
            for number in range(3):
                writing.chain.block(b"value %d" % number)
                block = writing.chain.made[-1:]
                for _ in range(2):
                    writing.writer.begin(number, block)
                    assert read_all(home, 0, None) == writing.chain.made[:-1]
                writing.writer.append(number, block)
                assert read_all(home, 0, None) == writing.chain.made

    def test_a_block_offered_again_is_stored_once(self, home: LogHome) -> None:
        """When an answer was lost, the same bytes under the same number get the same answer."""
        with Writing(home, 0) as writing:
            for number in range(3):
                block = writing.chain.block(b"value %d" % number)
                cursor = writing.writer.append(number, block)
                assert writing.writer.append(number, block) == cursor
        assert seal(home, 0).blocks == len(writing.chain.made)
        assert read_all(home, 0, None) == writing.chain.made

    def test_several_blocks_in_flight(self, home: LogHome) -> None:
        """As many appends as the writer allows may run at once, in any order, and end up in theirs."""
        with Writing(home, 0) as writing:
            together = writing.writer.in_flight_max
            for first in range(0, 4 * together, together):
                blocks = [writing.chain.block(b"v%d" % number) for number in range(first, first + together)]
                with ThreadPoolExecutor(together) as pool:
                    cursors = list(pool.map(writing.writer.append, range(first, first + together), blocks))
                assert cursors == sorted(cursors)
            assert read_all(home, 0, None) == writing.chain.made

    def test_a_fence_stops_the_writer_for_ever(self, home: LogHome) -> None:
        """After a fence nothing is added behind the tail, by the writer it was put up against or a repeat of it."""
        claim = home.claim(0, force=False)
        writer, chain = home.start_segment(0, 1), BlockChain(0)
        for number in range(4):
            writer.append(number, chain.block(b"value"))
        made = list(chain.made)
        tail = home.fence(0, 2)
        late = chain.block(b"late")
        for _ in range(3):
            with pytest.raises(WriterFenced):
                writer.append(4, late)
        writer.close()
        writer.close()
        assert home.fence(0, 2) == tail
        assert home.fence(0, 3) == tail
        assert read_all(home, 0, tail.end) == made
        claim.release()

    def test_a_tail_tells_what_there_is(self, home: LogHome) -> None:
        """Entries, blocks, end, checksum and size are those of what was appended."""
        chain = fill(home, 3, 5)
        with ClaimedLog(home):
            tail = home.fence(3, 9)
        end = home.locate(3, chain.entries, None)
        size_bytes = sum(map(len, chain.made))
        assert tail == SegmentEnd(entries=15, blocks=5, end=end, checksum=chain.checksum, size_bytes=size_bytes)
        assert home.blocks(3, tail.end, tail.end, _PLENTY) == ([], tail.end)

    def test_a_segment_never_started_has_an_empty_tail(self, home: LogHome) -> None:
        """Fencing what is not there works, and says so every time."""
        with ClaimedLog(home):
            assert home.fence(5, 2) == SegmentEnd(entries=0, blocks=0, end=0, checksum=0)
            assert home.fence(5, 2) == SegmentEnd(entries=0, blocks=0, end=0, checksum=0)

    def test_locate(self, home: LogHome) -> None:
        """Every entry is found in its block, open and closed; what lies behind is at the end."""
        with Writing(home, 0) as writing:
            starts, cursor = [], 0
            for number in range(40):
                starts += [cursor] * (number % 4 + 1)
                cursor = writing.append(*[b"v"] * (number % 4 + 1))
            assert [home.locate(0, entry, None) for entry in range(len(starts))] == starts
            assert home.locate(0, len(starts), None) == cursor
            assert home.locate(0, 1 << 60, None) == cursor
        end = seal(home, 0).end
        assert [home.locate(0, entry, end) for entry in reversed(range(len(starts)))] == starts[::-1]
        assert home.locate(0, len(starts), end) == end

    def test_a_removed_segment_is_gone(self, home: LogHome) -> None:
        """It is not found any more, others are unharmed, and buffers read from it stay as they were."""
        chain, other = fill(home, 0, 10), fill(home, 1, 2)
        end = seal(home, 0).end
        held, _ = home.blocks(0, 0, end, _PLENTY)
        home.remove_segment(0)
        home.remove_segment(0)
        with pytest.raises(NotFound):
            home.blocks(0, 0, end, _PLENTY)
        with pytest.raises(NotFound):
            home.locate(0, 0, end)
        assert [block.to_pybytes() for block in held] == chain.made
        assert read_all(home, 1, None) == other.made

    def test_buffers_do_not_change_under_a_busy_writer(self, home: LogHome) -> None:
        """What was read stays as it is while the segment grows by many times its size."""
        with Writing(home, 0) as writing:
            writing.append(b"first")
            held, _ = home.blocks(0, 0, None, _PLENTY)
            for _ in range(20):
                writing.append(b"more" * 5000)
            assert [block.to_pybytes() for block in held] == writing.chain.made[:1]
            assert read_all(home, 0, None) == writing.chain.made

    def test_segments_follow_each_other(self, home: LogHome) -> None:
        """A reader that has not heard of the next segment still reads all of this one."""
        chains = [fill(home, segment, 4) for segment in range(3)]
        assert [read_all(home, segment, None) for segment in range(3)] == [chain.made for chain in chains]


class WaitingContract:
    """Readers sleep until there is something to read."""

    def test_wait_returns_when_there_is_more_already(self, home: LogHome) -> None:
        """What was appended between a look and the wait is not slept through."""
        fill(home, 0, 2)
        home.wait((0, 0), _LONG_S)

    def test_wait_ends_with_its_time(self, home: LogHome) -> None:
        """Without anything new, a wait is over in its time."""
        with Writing(home, 0) as writing:
            cursor = writing.append(b"seen")
            home.wait((0, cursor), 0.02)

    def test_wait_ends_with_an_append(self, home: LogHome) -> None:
        """A sleeping reader sees the next block."""
        with Writing(home, 0) as writing:
            cursor = writing.append(b"seen")

            def read_on() -> list[pa.Buffer]:
                while not (found := home.blocks(0, cursor, None, _PLENTY)[0]):
                    home.wait((0, cursor), _LONG_S)
                return list(found)

            with ThreadPoolExecutor(1) as pool:
                reading = pool.submit(read_on)
                writing.append(b"new")
                assert [block.to_pybytes() for block in reading.result(_LONG_S)] == writing.chain.made[1:]

    def test_wait_ends_when_the_log_moves_on(self, home: LogHome) -> None:
        """A reader at the end of a segment wakes when the next one gets its first block."""
        fill(home, 0, 2)
        end = seal(home, 0).end
        _in_thread_until(lambda: home.wait((0, end), _LONG_S), lambda: None, first=lambda: fill(home, 1, 1))

    def test_wake_ends_every_wait(self, home: LogHome) -> None:
        """Closing a log need not wait for its sleeping readers."""
        fill(home, 0, 1)
        end = seal(home, 0).end
        _in_thread_until(lambda: home.wait((0, end), _LONG_S), home.wake)


class StorageContract(ObjectsContract, ClaimContract, SegmentsContract, WaitingContract):
    """Every promise of ``oncelog.storage.base``."""


def _in_thread_until(work: Callable[[], object], poke: Callable[[], None], first: Callable[[], object] = int) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    first()
    while thread.is_alive():
        poke()
        thread.join(0.001)
