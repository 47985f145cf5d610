"""Homes on a quorum: blocks of segments that are not sealed are on nodes, everything else is in the store.

::

    store   <home>/ensembles/<segment>       on which nodes the segment is
            <home>/tails/<segment>           where it ends, once that is decided
            <home>/rescued/<segment>/<number>   a block that too few nodes hold
            <home>/unremoved/<segment>.<node>   blocks to delete when the node is back
            <home>/…                          manifest, snapshots, sealed files: as in any home
    node    logs/<home>/<folder>/<number>    a register: a block, or a fence
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from oncelog.clock import SYSTEM, Clock
from oncelog.errors import InvalidArgument, NotFound, Unavailable, WriterFenced
from oncelog.storage.base import ENSEMBLES, Chunk, Claim, Following, LogHome, SegmentEnd, Storage
from oncelog.storage.bell import Bell
from oncelog.storage.chunks import joined
from oncelog.storage.looks import Looks
from oncelog.storage.quorum import ensemble as stored
from oncelog.storage.quorum import membership as members
from oncelog.storage.quorum.ensemble import Ensemble
from oncelog.storage.quorum.membership import Membership
from oncelog.storage.quorum.node import LANE_REQUESTS, Node, NodeIdentity, open_bucket
from oncelog.storage.quorum.registers import Registers

IN_FLIGHT_MAX = 4
COMMIT_INTERVAL_S = 0.0
CATCH_UP_US = 1_000_000
"""So long closing waits, at most, for copies beyond those that an append waits for."""

MEMBERSHIP_US = 10_000_000
"""How often a writer looks whether a node was replaced."""

SHORT_US = 60_000_000
"""A segment of which a node lacks blocks is closed when it is so old."""

_FOLDER_BYTES = 8


class QuorumStorage:
    """The home of a database on several stores, shared by everybody who can reach them."""

    def __init__(
        self,
        store: Storage,
        options: Mapping[str, Mapping[str, str]] | None = None,
        near: str | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Read who the nodes are. ``options`` are of each node's client, by its name; ``near`` is read from first."""
        found = members.newest(store)
        if found is None:
            message = f"{store.url} was never made the store of a quorum: oncelog quorum create {store.url} --node …"
            raise InvalidArgument(message)
        self.url = f"quorum:{store.url}"
        self.store = store
        self._options = options or {}
        self._near = near
        self._clock = clock
        self.membership = found
        self._nodes: dict[str, Node] = {}
        self._open(found)
        self._looked_us = clock.elapsed_us()
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="oncelog-membership")
        self._homes: dict[str, QuorumHome] = {}

    def _open(self, membership: Membership) -> None:
        if self._near is not None:
            membership.named(self._near)
        for member in membership.nodes:
            if member.identity not in self._nodes:
                bucket = open_bucket(member.url, self._options.get(member.name, {}))
                identity = NodeIdentity(identity=member.identity, quorum=membership.quorum, name=member.name)
                self._nodes[member.identity] = Node(member.name, bucket, identity, self._clock)
        self.membership = membership

    def refresh(self) -> Membership:
        """Look whether nodes were replaced, and return who they are now."""
        found = members.newest(self.store)
        if found is not None and found.version > self.membership.version:
            self._open(found)
        return self.membership

    def refresh_now_and_then(self) -> None:
        """Look for replaced nodes, in another thread: an append does not wait for the store."""
        now_us = self._clock.elapsed_us()
        if now_us - self._looked_us >= MEMBERSHIP_US:
            self._looked_us = now_us
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._looking.submit(self.refresh)

    def options_of(self, name: str) -> Mapping[str, str]:
        """Return the options of a node's client."""
        return self._options.get(name, {})

    @property
    def nodes(self) -> list[Node]:
        """The nodes of the newest membership, the near one first."""
        found = [self._nodes[member.identity] for member in self.membership.nodes]
        return sorted(found, key=lambda node: node.name != self._near)

    def nodes_of(self, ensemble: Ensemble) -> list[Node]:
        """Return the nodes of an ensemble that are known, the near one first; a replaced node may be unknown."""
        wanted = {identity for _, identity in ensemble.nodes}
        if not wanted <= set(self._nodes):
            self.refresh()
        found = [self._nodes[identity] for _, identity in ensemble.nodes if identity in self._nodes]
        return sorted(found, key=lambda node: node.name != self._near)

    def has_all(self, ensemble: Ensemble, *, look: bool = True) -> bool:
        """Tell whether all nodes of an ensemble are nodes of the quorum now: none was replaced."""
        membership = self.refresh() if look else self.membership
        return {identity for _, identity in ensemble.nodes} <= {member.identity for member in membership.nodes}

    def homes(self) -> list[str]:
        """Return the keys of the homes there are, sorted."""
        return [key for key in self.store.homes() if key != members.HOME]

    def home(self, key: str) -> QuorumHome:
        """Return the home of one log."""
        if key not in self._homes:
            self._homes[key] = QuorumHome(self, self.store.home(key), f"logs/{key}/", self._clock)
        return self._homes[key]

    def remove_home(self, key: str) -> None:
        """Delete a log's home: its blocks on the nodes that answer, then everything in the store.

        A node that does not answer keeps dead bytes: nothing refers to their folder any more.
        """
        home = self.home(key)
        for name in home.store.list(ENSEMBLES):
            home.remove_segment(int(name.removeprefix(ENSEMBLES)))
        self.store.remove_home(key)

    def close(self) -> None:
        """Give the last copies of blocks a moment to arrive, let go of the threads, and close the store."""
        until_us = self._clock.elapsed_us() + CATCH_UP_US
        for node in self._nodes.values():
            node.catch_up(until_us)
        self._looking.shutdown(wait=False, cancel_futures=True)
        for node in self._nodes.values():
            node.close()
        self.store.close()


class QuorumHome:
    """The home of one log on a quorum. Safe to share between threads and processes."""

    def __init__(self, storage: QuorumStorage, store: LogHome, prefix: str, clock: Clock) -> None:
        """Keep everything but blocks in the store's home; ``QuorumStorage.home`` calls this."""
        self.exclusive = store.exclusive
        self.seals_early = True
        self.looking_costs = True
        self.store = store
        self._storage = storage
        self._prefix = prefix
        self._clock = clock
        self._bell = Bell()
        self._looks = Looks(self._bell, clock)
        self._known: dict[int, Registers] = {}
        self._seen: dict[int, tuple[int, int]] = {}
        self._whole: set[int] = set()

    # Objects: all in the store.

    def probe(self) -> None:
        """Raise ``Unsupported`` unless the store can do what a log needs. Nodes were checked when formatted."""
        self.store.probe()

    def create(self, key: str, data: Sequence[Chunk]) -> bool:
        """Create an object if nothing is there."""
        return self.store.create(key, data)

    def read(self, key: str, start: int = 0, length: int | None = None, *, mapped: bool = False) -> pa.Buffer:  # noqa: ARG002
        """Return an object's bytes from ``start``, at most ``length`` of them."""
        return self.store.read(key, start, length)

    def location(self, key: str) -> str:
        """Return where an object is."""
        return self.store.location(key)

    def exists(self, key: str) -> bool:
        """Tell whether an object is there."""
        return self.store.exists(key)

    def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, sorted."""
        return self.store.list(prefix)

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        self.store.delete(key)

    def claim(self, wait_s: float, *, force: bool) -> Claim:
        """Obtain the right to write, as far as the store can give it."""
        return self.store.claim(wait_s, force=force)

    # Writing blocks.

    def start_segment(self, segment: int, epoch: int) -> QuorumSegmentWriter:
        """Store on which nodes the segment is. ``WriterFenced`` if another writer started, or fenced, it first."""
        membership = self._storage.refresh()
        wanted = Ensemble(
            epoch=epoch,
            ack=membership.ack,
            in_flight_max=IN_FLIGHT_MAX,
            folder=f"{segment:020d}-{self._clock.token(_FOLDER_BYTES).hex()}",
            nodes=tuple((member.name, member.identity) for member in membership.nodes),
        )
        found = stored.create(self.store, segment, wanted)
        if found.epoch != epoch or not found.nodes:
            message = f"segment {segment} was started or fenced by the writer of epoch {found.epoch}"
            raise WriterFenced(message, outcome="not written")
        return QuorumSegmentWriter(self, self.registers(segment, found), self._clock)

    def appended(self) -> None:
        """Wake readers in this process."""
        self._bell.nudge()
        self._storage.refresh_now_and_then()

    def fence(self, segment: int, epoch: int) -> SegmentEnd:
        """Stop every earlier writer from adding to a segment, and return where it ends."""
        decided = stored.read_tail(self.store, segment)
        if decided is not None:
            return decided
        tombstone = Ensemble(epoch=epoch, ack=1, in_flight_max=IN_FLIGHT_MAX, folder="none", nodes=())
        found = stored.create(self.store, segment, tombstone)
        if not found.nodes:
            tail = stored.decide_tail(self.store, segment, SegmentEnd(entries=0, blocks=0, end=0, checksum=0))
        else:
            tail = self.registers(segment, found).decide(epoch)
        self._bell.ring()
        return tail

    # Reading blocks.

    def registers(self, segment: int, ensemble: Ensemble) -> Registers:
        """Return the registers of a segment, on those of its nodes that are known."""
        known = self._known.get(segment)
        if known is None or len(known.nodes) < len(ensemble.nodes):
            nodes = self._storage.nodes_of(ensemble)
            known = self._known[segment] = Registers(
                segment, ensemble, nodes, self._prefix, self.store, clock=self._clock
            )
        return known

    def _found(self, segment: int) -> Registers | None:
        """Return the registers of a segment that was started."""
        if segment in self._known:
            return self._known[segment]
        ensemble = stored.read(self.store, segment)
        return None if ensemble is None or not ensemble.nodes else self.registers(segment, ensemble)

    def blocks(
        self,
        segment: int,
        cursor: int,
        end: int | None,
        limit_bytes: int,
        then: Following | None = None,  # noqa: ARG002  nothing is fetched ahead
    ) -> tuple[Sequence[pa.Buffer], int]:
        """Return blocks from number ``cursor`` on, and the next number."""
        registers, sounds = self._found(segment), self._bell.sounds
        visible = end if end is not None else self._visible(segment)[0]
        found: list[pa.Buffer] = []
        total = 0
        while total < limit_bytes and cursor < visible:
            numbers = range(cursor, cursor + _how_many(found, total, limit_bytes, visible - cursor))
            for block in [None] if registers is None else registers.blocks(numbers):
                if block is None:
                    if end is None:
                        return found, cursor
                    message = f"segment {segment}, block {cursor}: gone from every node"
                    raise NotFound(message)
                found.append(block)
                total += block.size
                cursor += 1
        if end is None and cursor >= visible:
            self._looks.note((segment, cursor), sounds, found=bool(found))
        return found, cursor

    def locate(self, segment: int, entry: int, end: int | None) -> int:
        """Return the number of the block that holds ``entry``, by looking at a few headers."""
        behind = self._visible(segment)[0] if end is None else end
        registers = self._found(segment)
        return (
            0
            if registers is None
            else bisect_right(range(behind), entry, key=lambda number: registers.header(number).next_entry)
        )

    def visible(self, segment: int) -> int:
        """Return how many entries of an open segment can be read now."""
        return self._visible(segment)[1]

    def _visible(self, segment: int) -> tuple[int, int]:
        """Return how many blocks, and entries, a quorum holds without a hole; never less than was seen before."""
        known = self._seen.get(segment, (0, 0))
        registers = self._found(segment)
        if registers is None or not registers.is_chosen(known[0]):
            return known
        number = registers.chosen_from(known[0])
        if number == known[0]:
            return known
        last = registers.header(number - 1)
        found = number, last.next_entry
        self._seen[segment] = max(found, self._seen.get(segment, found))
        return found

    def has_segments(self) -> bool:
        """Tell whether a segment was ever started."""
        return bool(self.store.list(ENSEMBLES))

    def at_risk(self, segment: int, end: int) -> bool:
        """Tell whether a closed segment lacks a sound copy, or names a replaced node. A whole one stays whole, unless
        a reader meets a damaged copy.
        """
        known = self._known.get(segment)
        is_whole = segment in self._whole and not (known is not None and known.is_damaged)
        ensemble = None if is_whole else stored.read(self.store, segment)
        if ensemble is None or not ensemble.nodes:
            return False
        if not self._storage.has_all(ensemble) or not self.registers(segment, ensemble).is_whole(end):
            return True
        self._whole.add(segment)
        return False

    def is_replaced(self, ensemble: Ensemble) -> bool:
        """Tell whether a node of an ensemble is no node any more, as far as this process knows."""
        return not self._storage.has_all(ensemble, look=False)

    def remove_segment(self, segment: int) -> None:
        """Delete a segment's blocks. Fences stay. Blocks on a node that does not answer are noted, and go later."""
        registers = self._found(segment)
        if registers is None:
            return
        for name in registers.remove():
            self.store.create(f"{stored.UNREMOVED}{segment:020d}.{name}", [b""])
        for key in self.store.list(f"{stored.RESCUED}{segment:020d}/"):
            self.store.delete(key)
        self._seen.pop(segment, None)
        self._known.pop(segment, None)

    def sweep(self) -> int:
        """Delete blocks that nodes kept because they did not answer; return how many notes are left."""
        for key in self.store.list(stored.UNREMOVED):
            segment = int(key.removeprefix(stored.UNREMOVED).partition(".")[0])
            registers = self._found(segment)
            with contextlib.suppress(Unavailable):
                if registers is None or not registers.remove():
                    self.store.delete(key)
        return len(self.store.list(stored.UNREMOVED))

    # Waiting.

    def wait(self, cursor_seen: tuple[int, int], timeout_s: float) -> bool:
        """Return when a quorum holds a block at ``(segment, number)``, or it is time to look at the log again."""
        segment, number = cursor_seen

        def is_there() -> bool:
            registers = self._found(segment)
            return registers is not None and registers.is_chosen(number, waiting=True)

        return self._looks.wait(cursor_seen, is_there, timeout_s)

    def is_silent(self, cursor_seen: tuple[int, int]) -> bool:
        """Tell whether this process has written nothing since a block was looked for there in vain."""
        return self._looks.is_silent(cursor_seen)

    def wake(self) -> None:
        """Make every ``wait`` in this process return now."""
        self._bell.ring()

    def forget(self) -> None:
        """Let go of where blocks are, and of how many were seen."""
        self._known.clear()
        self._seen.clear()


class QuorumSegmentWriter:
    """Writes the blocks of one segment to its ensemble."""

    in_flight_max = IN_FLIGHT_MAX
    commit_interval_s = COMMIT_INTERVAL_S

    def __init__(self, home: QuorumHome, registers: Registers, clock: Clock) -> None:
        """Write one segment; ``QuorumHome.start_segment`` calls this."""
        self._home = home
        self._registers = registers
        self._clock = clock
        self._until_us = clock.elapsed_us() + SHORT_US

    @property
    def ends_early(self) -> bool:
        """Whether a node was replaced, or a node lacks a block and the segment is not brand-new: it is sealed soon.

        While a node is away every segment lacks its copies: one a minute is closed for that reason, and not more.
        """
        if self._home.is_replaced(self._registers.ensemble):
            return True
        return self._registers.is_short and self._clock.elapsed_us() >= self._until_us

    def begin(self, number: int, block: Sequence[Chunk]) -> None:
        """Do nothing: a block is one request to each node."""

    def append(self, number: int, block: Sequence[Chunk]) -> int:
        """Store a block under its number, on a quorum."""
        self._registers.write(number, joined(block))
        self._home.appended()
        return number + 1

    def close(self) -> None:
        """Nothing is held open."""


def _how_many(found: Sequence[pa.Buffer], total: int, limit_bytes: int, left: int) -> int:
    """Return how many blocks to read at once: as many as a node's lane does, or as are wanted if they are like those
    before.
    """
    if not found:
        return 1
    return min(LANE_REQUESTS, left, 1 + (limit_bytes - total) * len(found) // max(1, total))
