"""The registers of one segment: written to a quorum, fenced by a quorum, read from any node.

W nodes, A acks, Q = W - A + 1. A block is *chosen* when A registers of its number hold it, and *never chosen* when Q
hold fences. Both are stable and exclude each other. A segment has one writer, which never forms another block for a
number that it has offered; so a number has one possible block.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from oncelog.clock import Clock
from oncelog.errors import CorruptionError, NotFound, OncelogError, Unavailable, WriterFenced
from oncelog.format import block as block_format
from oncelog.format.block import HEADER_BYTES, BlockHeader
from oncelog.storage.base import LogHome, SegmentEnd
from oncelog.storage.quorum import ensemble as stored
from oncelog.storage.quorum.asking import ask_all, ask_for_each, ask_in_turn, ask_into
from oncelog.storage.quorum.ensemble import Ensemble
from oncelog.storage.quorum.node import BELIEVED_US, IDENTITY_US, Node, Written, fence_of, kind_of

_ANSWER_S = 60.0
"""No request takes longer: its client gives up before."""

_LOOKS_AT_ONCE, _LOOKS_MAX, _LOOK_AGAIN_S = 2, 20, 0.1
"""A recovery looks twice at a number at once, then after a pause each time, and gives up after so many looks."""


class Registers:
    """The registers of one segment of one log."""

    def __init__(
        self, segment: int, ensemble: Ensemble, nodes: Sequence[Node], prefix: str, store: LogHome, *, clock: Clock
    ) -> None:
        """Take the nodes of the ensemble that are still known; a node that was replaced is not among them."""
        self.segment = segment
        self.ensemble = ensemble
        self.nodes = nodes
        self.is_short = len(nodes) < len(ensemble.nodes)
        """Whether a node lacks a block that was offered. Nobody repairs that: the segment is sealed early."""
        self.is_damaged = False
        """Whether this process found a damaged copy. Then, too, the segment is sealed early."""
        self._folder = f"{prefix}{ensemble.folder}/"
        self._store = store
        self._clock = clock

    def path(self, number: int) -> str:
        """Return where a register is, on every node."""
        return f"{self._folder}{number:010d}"

    # Writing.

    def write(self, number: int, data: pa.Buffer) -> None:
        """Store a block on a quorum. Returns at A copies; the other nodes go on.

        ``WriterFenced`` when a fence is seen before that; ``Unavailable``, unknown, when too many nodes fail.
        """
        ack, missing = self.ensemble.ack, len(self.ensemble.nodes) - len(self.nodes)
        awake = [node for node in self.nodes if not node.rests]
        targets = awake if len(awake) >= ack else self.nodes
        failures = missing + len(self.nodes) - len(targets)
        self.is_short = self.is_short or failures > 0
        answers: queue.SimpleQueue[Written | OncelogError] = queue.SimpleQueue()
        for node in targets:
            if not ask_into(node, partial(self._write, node, number, data), answers, data.size):
                self.is_short = True
        copies = 0
        while copies < ack:
            try:
                answer = answers.get(timeout=_ANSWER_S)
            except queue.Empty:
                message = (
                    f"segment {self.segment}, block {number}: {copies} of {ack} nodes answered in {_ANSWER_S:.0f} s"
                )
                raise Unavailable(message, outcome="unknown") from None
            if answer == "block":
                copies += 1
            elif answer == "fence":
                message = f"segment {self.segment}, block {number}: fenced, so another writer took the log"
                raise WriterFenced(message, outcome="unknown")
            else:
                if isinstance(answer, CorruptionError):
                    raise answer
                failures += 1
                self.is_short = True
                if failures > len(self.ensemble.nodes) - ack:
                    message = f"segment {self.segment}, block {number}: {failures} nodes do not answer: {answer}"
                    raise Unavailable(message, outcome="unknown")

    def _write(self, node: Node, number: int, data: pa.Buffer) -> Written:
        """Store a block on one node, also when nobody waits for it any more."""
        try:
            written = node.write(self.path(number), data)
        except OncelogError:
            self.is_short = True
            raise
        if written == "damaged":
            self.is_short = self.is_damaged = True
        return written

    def is_whole(self, blocks: int) -> bool:
        """Tell whether all nodes hold the first so many blocks. Copies of different sizes are not copies."""
        listed = self._listed()
        if self.is_damaged or len(listed) < len(self.ensemble.nodes):
            return False
        sizes = [{one.get(number, 0) for one in listed.values()} for number in range(blocks)]
        return all(len(one) == 1 and min(one) >= HEADER_BYTES for one in sizes)

    # Fencing.

    def decide(self, epoch: int) -> SegmentEnd:
        """Keep the earlier writer from adding anything, and return where the segment ends: the same for everybody."""
        seen: tuple[int, frozenset[int]] | None = None
        distance = 1
        looks: Counter[int] = Counter()
        while True:
            listed = self._listed()
            end, lacking = self._walk(listed)
            looks[end] += 1
            self._pause(end, looks[end])
            is_fenced = self._is_fenced(listed, end)
            kinds = [] if is_fenced else self._fence(end, epoch)
            is_fenced = is_fenced or kinds.count("fence") >= self.ensemble.fences
            if "block" in kinds and not is_fenced:
                # A block got in. Stop a writer that is quicker than this further ahead, then look again.
                self._fence(end + distance, epoch)
                distance *= 2
                continue
            if not is_fenced:
                raise self._undecided(end, kinds)
            behind = frozenset(n for one in listed.values() for n in one if n >= end + self.ensemble.in_flight_max)
            lost = frozenset(n for n in behind if self._blocks(listed, n))
            if lost and seen == (end, lost):  # lists of a living writer's nodes are taken at different moments
                message = f"segment {self.segment}: block {end} is on no node, though block {min(lost)} is: it was lost"
                raise CorruptionError(message)
            if lost:
                seen = (end, lost)
                continue
            return self._decided(listed, end, lacking)

    def _pause(self, end: int, looks: int) -> None:
        """Wait before a number is looked at again and again: nodes that fail now and then, each in another way, may
        neither list its block nor take a fence. ``Unavailable`` after ``_LOOKS_MAX``.
        """
        if looks > _LOOKS_MAX:
            message = f"segment {self.segment}, block {end}: a node holds it, and does not list it: look at the nodes"
            raise Unavailable(message, outcome="unknown")
        if looks > _LOOKS_AT_ONCE:
            until_us = self._clock.elapsed_us() + int(1e6 * _LOOK_AGAIN_S)
            idle = threading.Condition()
            with idle:
                while (left_us := until_us - self._clock.elapsed_us()) > 0:
                    self._clock.wait(idle, left_us / 1e6)

    def _undecided(self, number: int, kinds: Sequence[Written | OncelogError]) -> OncelogError:
        """Return why a number is neither kept nor fenced: too few nodes answer, or all copies are damaged."""
        failed = next((kind for kind in kinds if isinstance(kind, OncelogError)), None)
        damaged = kinds.count("damaged")
        if damaged and failed is None:
            return CorruptionError(
                f"segment {self.segment}, block {number}: {damaged} nodes hold a damaged copy, and none a sound one"
            )
        return Unavailable(f"segment {self.segment}: too few nodes answer to fence it: {failed}", outcome="unknown")

    def _listed(self) -> dict[str, dict[int, int]]:
        """Return the registers of each node that answers: number and bytes. ``Unavailable`` if too few answer."""
        listed: dict[str, dict[int, int]] = {}
        failed: OncelogError | None = None
        for node, answer in zip(
            self.nodes,
            ask_all(self.nodes, lambda node: node.registers(self._folder), self.ensemble.fences),
            strict=True,
        ):
            if isinstance(answer, OncelogError):
                failed = answer
            else:
                numbers = {int(path.rpartition("/")[2]): size_bytes for path, size_bytes in answer.items()}
                listed[node.name] = numbers
        if len(listed) < self.ensemble.fences:
            message = f"segment {self.segment}: {len(listed)} of {len(self.ensemble.nodes)} nodes answer: {failed}"
            raise Unavailable(message, outcome="unknown")
        return listed

    def _walk(self, listed: dict[str, dict[int, int]]) -> tuple[int, dict[int, pa.Buffer]]:
        """Return the first number that is not kept: nothing is there, or a quorum of fences. Any sound copy is kept.

        Return besides it the kept blocks of which fewer than A sound copies are known.
        """
        number, lacking = 0, {}
        while (copies := self._blocks(listed, number)) and not self._is_fenced(listed, number):
            sizes = {one[number] for one in listed.values() if one.get(number, 0) >= HEADER_BYTES}
            if copies < self.ensemble.ack or len(sizes) > 1:
                sound = self._sound_copies(listed, number)
                if not sound:
                    break
                if len(sound) < self.ensemble.ack:
                    lacking[number] = sound[0]
            number += 1
        return number, lacking

    def _sound_copies(self, listed: dict[str, dict[int, int]], number: int) -> list[pa.Buffer]:
        """Read the copies of a block that were listed; return those whose checksums hold.

        A damaged copy is no copy. It shows that a block was offered for the number, so the block may have been chosen:
        only fences can show that it was not. ``Unavailable`` if a copy cannot be read now.
        """
        holders = [node for node in self.nodes if listed.get(node.name, {}).get(number, 0) >= HEADER_BYTES]
        answers = ask_all(holders, lambda node: self._copy(node, number), 1)
        sound = [answer for answer in answers if isinstance(answer, pa.Buffer)]
        failed = [answer for answer in answers if isinstance(answer, Unavailable)]
        if failed and not sound:
            raise failed[0]
        return sound

    def _is_fenced(self, listed: dict[str, dict[int, int]], number: int) -> bool:
        """Tell whether a quorum of fences was listed. What is as short as a fence may be a block that was cut short."""
        short = [node for node in self.nodes if listed.get(node.name, {}).get(number, HEADER_BYTES) < HEADER_BYTES]
        if len(short) < self.ensemble.fences:
            return False
        answers = ask_all(short, lambda node: node.kind_of(self.path(number)), len(short))
        return answers.count("fence") >= self.ensemble.fences

    def _blocks(self, listed: dict[str, dict[int, int]], number: int) -> int:
        return sum(one.get(number, 0) >= HEADER_BYTES for one in listed.values())

    def _fence(self, number: int, epoch: int) -> list[Written | OncelogError]:
        """Create fences at a number on all nodes; return what each register holds then."""
        fence, path = fence_of(epoch), self.path(number)
        return ask_all(self.nodes, lambda node: node.fence(path, fence, self.segment), self.ensemble.fences)

    def _decided(self, listed: dict[str, dict[int, int]], end: int, lacking: dict[int, pa.Buffer]) -> SegmentEnd:
        """Rescue what too few nodes hold, then store where the segment ends."""
        for number, block in lacking.items():
            self._rescue(number, block)
        if end == 0:
            tail = SegmentEnd(entries=0, blocks=0, end=0, checksum=0)
        else:
            last = self.header(end - 1)
            size_bytes = sum(max(one.get(number, 0) for one in listed.values()) for number in range(end))
            entries = last.next_entry
            tail = SegmentEnd(entries=entries, blocks=end, end=end, checksum=last.checksum, size_bytes=size_bytes)
        return stored.decide_tail(self._store, self.segment, tail)

    def _rescue(self, number: int, block: pa.Buffer) -> None:
        """Put one copy into the store: nodes with fences, or damage, there cannot take the block any more."""
        self._store.create(stored.rescued_key(self.segment, number), [block])

    # Reading.

    def block(self, number: int) -> pa.Buffer | None:
        """Return a block from the nearest node that has a sound copy, or from the store; ``None`` if nobody has it.

        ``Unavailable`` when a node that does not answer may have it; ``CorruptionError`` when all copies are bad of a
        block that may have been acknowledged.
        """
        failed: OncelogError | None = None
        damaged: CorruptionError | None = None
        absent = 0
        for node, answer, is_late in ask_in_turn(self.nodes, lambda node: node.read(self.path(number))):
            if is_late and absent >= self.ensemble.fences:
                break
            try:
                data = self._block_in(answer(), node.bucket.url, number)
                if data is not None:
                    return data
                absent += 1
            except CorruptionError as error:
                damaged, self.is_damaged = error, True
            except OncelogError as error:
                failed = error
        try:
            key = stored.rescued_key(self.segment, number)
            return self._sound(self._store.read(key), self._store.location(key), number)
        except NotFound:
            pass
        if absent >= self.ensemble.fences:  # too few are left to have acknowledged the block, damaged or not
            return None
        if failed is not None:
            raise failed
        if damaged is not None:
            raise damaged
        return None

    def blocks(self, numbers: range) -> list[pa.Buffer | None]:
        """Return several blocks. The nearest node is asked for all at once. What it lacks, or does not answer in
        time, is read as ``block`` does.
        """
        nearest = min(self.nodes, key=lambda node: node.rests, default=None)
        if nearest is None or len(numbers) == 1:
            return [self.block(number) for number in numbers]
        answers = ask_for_each(nearest, [partial(self._copy, nearest, number) for number in numbers])
        return [
            answer if isinstance(answer, pa.Buffer) else self.block(number)
            for number, answer in zip(numbers, answers, strict=True)
        ]

    def last_number(self) -> int:
        """Return the highest number of which a node has a block; -1 if there is none."""
        listed = self._listed()
        return max((n for one in listed.values() for n, size in one.items() if size >= HEADER_BYTES), default=-1)

    def problems(self, number: int) -> dict[str, str]:
        """Read all copies of a block; return what is wrong with each that is not sound, by the name of its node."""
        found = {}
        for node, answer in zip(self.nodes, ask_all(self.nodes, lambda node: self._copy(node, number)), strict=True):
            if isinstance(answer, OncelogError):
                found[node.name] = str(answer)
            elif answer is None:
                found[node.name] = "missing"
        return found

    def _copy(self, node: Node, number: int) -> pa.Buffer | None:
        return self._block_in(node.read(self.path(number)), node.bucket.url, number)

    def _block_in(self, data: pa.Buffer | None, where: str, number: int) -> pa.Buffer | None:
        """Return the block in a register; ``None`` if it is empty, or holds a fence. ``CorruptionError`` for damage."""
        if data is None or (data.size < HEADER_BYTES and kind_of(data) == "fence"):
            return None
        return self._sound(data, where, number)

    def _sound(self, data: pa.Buffer, where: str, number: int) -> pa.Buffer:
        """Return a block whose checksums hold: a bad copy must not hide a good one."""
        header = block_format.check(data)
        if header.segment != self.segment or header.size_bytes != data.size:
            message = f"{where}, {self.path(number)}: a block of segment {header.segment}, not of {self.segment}"
            raise CorruptionError(message)
        return data

    def header(self, number: int) -> BlockHeader:
        """Return the header of a block that is there."""
        data = self.block(number)
        header = None if data is None else block_format.read_header(data)
        if header is None:
            message = f"segment {self.segment}, block {number}: gone from every node"
            raise NotFound(message)
        return header

    def is_chosen(self, number: int, *, waiting: bool = False) -> bool:
        """Tell whether A nodes hold a block, by as few requests as that takes.

        Who is ``waiting`` asks again and again: each time the identity of one node is checked, if it is time.
        """
        believed_us = dict.fromkeys((node.name for node in self.nodes), BELIEVED_US)
        if waiting and self.nodes:
            asked = sorted(self.nodes, key=lambda node: node.rests)[: self.ensemble.fences]
            believed_us[max(asked, key=lambda node: node.unchecked_us).name] = IDENTITY_US
        copies = unknown = 0
        unasked = len(self.nodes)
        failed: OncelogError | None = None
        spare = self.ensemble.fences - 1 - (len(self.ensemble.nodes) - len(self.nodes))
        for node, answer, is_late in ask_in_turn(
            self.nodes, lambda node: node.holds(self.path(number), believed_us[node.name])
        ):
            unasked -= 1
            try:
                if is_late and unknown < spare:
                    raise node.late()
                copies += answer()
            except OncelogError as error:
                failed, unknown = error, unknown + 1
            if copies >= self.ensemble.ack:
                return True
            if copies + unknown + unasked < self.ensemble.ack:
                return False
        unknown += len(self.ensemble.nodes) - len(self.nodes)
        if failed is not None and unknown > len(self.ensemble.nodes) - self.ensemble.ack:
            raise failed  # so few nodes answer that nothing can be known
        return self._is_settled(number, copies, unknown)

    def chosen_from(self, number: int) -> int:
        """Return the first number from here on that A nodes do not hold."""
        listed = self._listed()
        unknown = len(self.ensemble.nodes) - len(listed)
        while True:
            copies = self._blocks(listed, number)
            if copies < self.ensemble.ack and not self._is_settled(number, copies, unknown):
                return number
            number += 1

    def _is_settled(self, number: int, copies: int, unknown: int) -> bool:
        """Tell whether a block is chosen of which too few copies are known, and nodes that do not answer may have more.

        A reader that said no could take back what another has seen. So it stores the block on the nodes that answer, as
        its writer would: then A nodes hold it, or a fence is in the way, and it never will be chosen. That is the
        write-back of readers in Attiya, Bar-Noy and Dolev, "Sharing memory robustly in message-passing systems" (1995).
        """
        if not copies or copies + unknown < self.ensemble.ack:
            return False
        data = self.block(number)
        if data is None:
            return False
        answers = ask_all(self.nodes, lambda node: self._write_back(node, number, data), self.ensemble.ack)
        return sum(answer == "block" for answer in answers) >= self.ensemble.ack

    def _write_back(self, node: Node, number: int, data: pa.Buffer) -> Written:
        kind = node.write(self.path(number), data)
        node.check_identity()
        return kind

    # Removing.

    def remove(self) -> list[str]:
        """Delete the blocks; fences stay. Return the names of nodes that did not answer: their blocks go later."""
        answers = ask_all(self.nodes, self._remove, self.ensemble.ack)
        return [node.name for node, one in zip(self.nodes, answers, strict=True) if isinstance(one, OncelogError)]

    def _remove(self, node: Node) -> None:
        for path, size_bytes in node.bucket.below(self._folder):
            if size_bytes >= HEADER_BYTES:
                node.bucket.delete(path)
