"""What a session has to send: records that gather, frames that wait, and frames that are sent and not answered.

An outbox has no lock. Its session holds ``changed`` in every call; an outbox notifies when room comes back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import MutableSequence
from concurrent.futures import Future

from oncelog.client.frames_out import FRAME_BYTES, FRAME_RECORDS, GRACE_S, Frame, Gathered, frame_of
from oncelog.types import Ack
from oncelog.wire import frames

_AHEAD = 2
"""While so many frames have no answer, records that are submitted gather, until they fill a frame: one frame is being
stored and one waits for it. The second has at least as many records as the first: a frame costs the server as much as
fifty records do, and many small ones would be stored no sooner.
"""


class Outbox:
    """All records of a session that have no answer, in their order."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.answered = threading.Condition()
        """What the futures of submitted records share."""
        self.gathered: list[Gathered] = []
        self._gathered_bytes = 0
        self.waiting: deque[Frame] = deque()  # not sent on this stream, in their order
        self.sent: dict[int, Frame] = {}  # sent on this stream, and not answered
        self.again: list[Frame] = []  # answered as not written: sent again on the next stream
        self._order = 0
        self.next_tag = 1
        self.count = self.size_bytes = 0  # of all that has no answer

    def put(self, frame: Frame) -> None:
        """Add a frame behind all records that came before."""
        self.form(everything=True)
        self._queue(frame)
        self.count += frame.count
        self.size_bytes += frame.size_bytes

    def gather(self, one: Gathered) -> bool:
        """Add a record to those that gather; return whether that makes a frame to be sent."""
        was_full = self._is_full()
        self.gathered.append(one)
        self._gathered_bytes += one.size_bytes
        self.count += 1
        self.size_bytes += one.size_bytes
        return len(self.gathered) in (1, self._worth_sending()) or (not was_full and self._is_full())

    def withdraw(self, pending: Future[Ack]) -> bool:
        """Take out a record that was submitted, if it is surely not written; return whether it was."""
        for at, one in enumerate(self.gathered):
            if one.pending is pending:
                del self.gathered[at]
                self._gathered_bytes -= one.size_bytes
                self._release(1, one.size_bytes)
                return True
        for frame in self.unanswered():
            if frame.unwritten and pending in frame.pendings:
                self._release(1, frame.take_out(pending))
                if not frame.count:
                    self.drop(frame)
                return True
        return False

    def _queue(self, frame: Frame) -> None:
        self._order += 1
        frame.order = self._order
        self.waiting.append(frame)

    def form(self, *, everything: bool) -> None:
        """Make a frame of records that were submitted, as many as fit; or frames of all."""
        while self.gathered:
            taken = size_bytes = 0
            for one in self.gathered[:FRAME_RECORDS]:
                if taken and size_bytes + one.size_bytes > FRAME_BYTES:
                    break
                taken, size_bytes = taken + 1, size_bytes + one.size_bytes
            group, self.gathered = self.gathered[:taken], self.gathered[taken:]
            self._gathered_bytes -= size_bytes
            self._queue(frame_of(group, self.answered))
            if not everything:
                return

    def _is_full(self) -> bool:
        """Tell whether what was submitted fills a frame."""
        return len(self.gathered) >= FRAME_RECORDS or self._gathered_bytes >= FRAME_BYTES

    def _may_form(self) -> bool:
        """Tell whether what was submitted is to be sent now."""
        if self.waiting or not self.gathered:
            return False
        if self._is_full():
            return len(self.sent) < frames.FRAMES_MAX
        return len(self.sent) < _AHEAD and len(self.gathered) >= self._worth_sending()

    def _worth_sending(self) -> int:
        """Return how many records are enough for the next frame: one, or as many as are under way."""
        return next(iter(self.sent.values())).count if self.sent else 1

    def unanswered(self) -> list[Frame]:
        """Return all frames that have no answer, in their order."""
        return sorted((*self.sent.values(), *self.again, *self.waiting), key=lambda frame: frame.order)

    def drop(self, frame: Frame) -> None:
        """Never send a frame that is surely not written. Others are settled by a later answer."""
        held: MutableSequence[Frame]
        for held in (self.waiting, self.again):
            if frame.unwritten and frame in held:
                held.remove(frame)
                self.forget(frame)

    def forget(self, frame: Frame) -> None:
        """Count a frame no longer: it has its answer."""
        self._release(frame.count, frame.size_bytes)

    def _release(self, count: int, size_bytes: int) -> None:
        self.count -= count
        self.size_bytes -= size_bytes
        self._changed.notify_all()

    def clear(self) -> list[Frame]:
        """Take everything out, and return it as frames."""
        self.form(everything=True)
        left = self.unanswered()
        self.waiting, self.sent, self.again = deque(), {}, []
        self.count = self.size_bytes = 0
        return left

    def rewind(self) -> None:
        """Have every frame without an answer wait for the next stream, in the order of the frames."""
        self.waiting, self.sent, self.again = deque(self.unanswered()), {}, []

    def next_frame(self) -> tuple[Frame, int] | None:
        """Return the next frame, if one may be sent now, and up to which tag all answers are here."""
        if not self.waiting or not self._may_send(self.waiting[0]):
            return None
        frame = self.waiting.popleft()
        if not frame.tag:
            frame.tag, self.next_tag = self.next_tag, self.next_tag + 1
        frame.unwritten = False
        self.sent[frame.tag] = frame
        return frame, min(self.sent) - 1

    def form_next(self) -> None:
        """Make a frame of records that were submitted, if it is to be sent now."""
        if self._may_form():
            self.form(everything=False)

    def _may_send(self, frame: Frame) -> bool:
        if not self.sent:
            return True
        in_flight = sum(one.size_bytes for one in self.sent.values())
        return len(self.sent) < frames.FRAMES_MAX and in_flight + frame.size_bytes <= frames.IN_FLIGHT_BYTES_MAX

    def late(self, now_us: int) -> tuple[list[Frame], float | None]:
        """Return frames whose time is over, and how long it is until that of the next."""
        first_us = self.gathered[0].deadline_us if self.gathered else None
        if first_us is not None and first_us + int(GRACE_S * 1e6) <= now_us:
            self.form(everything=True)  # the frames before hang, and these have waited long enough
            first_us = None
        ends = [
            (one.deadline_us + int(GRACE_S * 1e6), one)
            for one in (*self.sent.values(), *self.waiting)
            if one.deadline_us is not None and not one.told
        ]
        late = [one for end_us, one in ends if end_us <= now_us]
        for frame in late:
            self.drop(frame)
        until = [end_us for end_us, _ in ends] + ([first_us + int(GRACE_S * 1e6)] if first_us is not None else [])
        return late, (min(until) - now_us) / 1e6 if until else None

    def expired(self, now_us: int) -> list[Frame]:
        """Take out the frames whose time is over while there is no stream."""
        self.form(everything=True)
        late = [one for one in self.waiting if one.deadline_us is not None and one.deadline_us <= now_us]
        for frame in late:
            self.waiting.remove(frame)
            self.forget(frame)
        return late

    def resume(self, last_tag: int, *, resumed: bool) -> list[Frame]:
        """Give frames the tags that a server expects; take out those of which nobody knows whether they are stored."""
        lost: list[Frame] = []
        for frame in list(self.waiting):
            if 0 < frame.tag <= last_tag:
                continue  # the server has it, and will answer
            if not resumed and not frame.unwritten and not frame.repeatable:
                self.waiting.remove(frame)
                self.forget(frame)
                lost.append(frame)
            frame.doubtful = frame.doubtful or not (resumed or frame.unwritten)
            frame.tag = 0  # it gets the next free one
        self.next_tag = last_tag + 1
        return lost
