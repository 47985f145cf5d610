"""``Log.Write`` and ``Log.WriteArrow``: frames of a session in, answers out. docs/wire.md has the rules."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple, Protocol

from google.protobuf.message import DecodeError

from oncelog import __version__
from oncelog.errors import AppendErrors, InvalidArgument, LogBusy, OncelogError, Unavailable
from oncelog.limits import BLOCK_BYTES_MAX
from oncelog.log import inner
from oncelog.server.call import Caller
from oncelog.server.desk import Ask, Lane, Way, stops
from oncelog.server.rpc.calls import Requests
from oncelog.server.seats import Seat
from oncelog.server.server import Server
from oncelog.server.sessions import FrameAnswer, FrameSession
from oncelog.types import ColumnAcks
from oncelog.wire import failures, frames, messages, values
from oncelog.wire.frames import Kind, Raw

CHECK_S = 30.0
"""A stream's caller is asked again so often whether the call is still allowed."""

WAIT_S_MAX = 30.0
AGAIN_S = 0.25
"""How long a ``Hello`` waits for a log or a producer that another has, at most, and how often it asks again."""

_RECORD_BYTES_MIN = 16
_WAYS = {Kind.EACH: Way.EACH, Kind.BATCH: Way.BATCH, Kind.TABLE: Way.TABLE, Kind.ROWS: Way.EACH}


class ReceivedFrame(NamedTuple):
    """A frame as it came, or a part of one."""

    tag: int
    answered: int
    way: Way
    parts: list[Any]
    size_bytes: int
    load: Callable[[list[Any]], Any]
    timeout_s: float
    more: bool
    encode: Callable[[Any], FrameAnswer]


class Form(Protocol):
    """How messages of a write stream look: as protobuf messages, or raw."""

    def hello(self, request: Any) -> Any:
        """Return the first message of a stream."""
        ...

    def frame(self, request: Any) -> ReceivedFrame | None:
        """Return a later message; ``None`` if it says that the client leaves: its session is over."""
        ...

    def welcome(self, welcome: Any) -> Any:
        """Return a welcome as a message."""
        ...

    def answers(self, tag: int, answer: FrameAnswer) -> list[Any]:
        """Return the answer to a frame as messages."""
        ...

    def draining(self, draining: Any) -> Any:
        """Return the notice that the stream ends soon, as a message."""
        ...


class Messages:
    """The form of ``Log.Write``."""

    def hello(self, request: Any) -> Any:
        """Return the first message of a stream."""
        if request.WhichOneof("request") != "hello":
            message = "a write stream begins with a Hello"
            raise InvalidArgument(message)
        return request.hello

    def frame(self, request: Any) -> ReceivedFrame:
        """Return a later message."""
        if request.WhichOneof("request") != "frame":
            message = "a write stream has one Hello, and frames behind it"
            raise InvalidArgument(message)
        found = request.frame
        table = bool(found.arrow)
        way = Way.TABLE if table else Way.BATCH if found.way == messages.BATCH else Way.EACH
        size_bytes = len(found.arrow) if table else found.ByteSize()
        load = _joined_table if table else _joined_records
        parts = [found.arrow] if table else [found.records]
        return ReceivedFrame(
            found.tag, found.answered, way, parts, size_bytes, load, found.timeout_s, found.more, _encoded
        )

    def welcome(self, welcome: Any) -> Any:
        """Return a welcome as a message."""
        return messages.WriteResponse(welcome=welcome)

    def answers(self, tag: int, answer: FrameAnswer) -> list[Any]:
        """Return the answer to a frame as messages."""
        made = messages.Answer(tag=tag)
        if answer.kind is Kind.RESULTS:
            made.results.ParseFromString(answer.body)
            made.results.SetInParent()
        elif answer.kind is Kind.COLUMNS:
            made.columns = answer.body
        else:
            made.error.ParseFromString(answer.body)
        return [messages.WriteResponse(answer=made)]

    def draining(self, draining: Any) -> Any:
        """Return the notice that the stream ends soon, as a message."""
        return messages.WriteResponse(draining=draining)


class RawMessages:
    """The form of ``Log.WriteArrow``."""

    def hello(self, request: Any) -> Any:
        """Return the first message of a stream."""
        raw = frames.unpack(request)
        if raw.kind is not Kind.HELLO:
            message = "a write stream begins with a Hello"
            raise InvalidArgument(message)
        return parsed(messages.Hello, raw.body)

    def frame(self, request: Any) -> ReceivedFrame | None:
        """Return a later message; ``None`` if it says that the client leaves."""
        raw = frames.unpack(request)
        if raw.kind is Kind.LEAVE:
            return None
        if raw.kind not in _WAYS:
            message = f"a client does not send raw messages of kind {raw.kind.name} in a write stream"
            raise InvalidArgument(message)
        way = _WAYS[raw.kind]
        load = _joined_raw_records if raw.kind in (Kind.EACH, Kind.BATCH) else _joined_table
        encode = _placed if raw.kind is Kind.ROWS else _encoded
        return ReceivedFrame(
            raw.tag, raw.answered, way, [raw.body], len(raw.body), load, raw.timeout_s, raw.more, encode
        )

    def welcome(self, welcome: Any) -> Any:
        """Return a welcome as a message."""
        return frames.pack(Raw(Kind.WELCOME, welcome.SerializeToString()))

    def answers(self, tag: int, answer: FrameAnswer) -> list[Any]:
        """Return the answer to a frame as messages, in parts if it is large."""
        return list(frames.parts(Raw(answer.kind, answer.body, tag, tag)))

    def draining(self, draining: Any) -> Any:
        """Return the notice that the stream ends soon, as a message."""
        return frames.pack(Raw(Kind.DRAINING, draining.SerializeToString()))


def parsed(kind: Any, body: bytes | memoryview) -> Any:
    """Return a message of this kind; ``InvalidArgument`` for bytes that are none."""
    try:
        return kind.FromString(bytes(body))
    except (DecodeError, UnicodeDecodeError) as error:
        message = f"the body is not a {kind.DESCRIPTOR.name} of wire.proto: {error}"
        raise InvalidArgument(message) from None


def _joined_records(parts: list[Any]) -> Any:
    return [values.record(one) for part in parts for one in part]


def _joined_raw_records(parts: list[Any]) -> Any:
    return [values.record(one) for one in parsed(messages.Records, b"".join(parts)).records]


def _joined_table(parts: list[Any]) -> Any:
    return frames.table(parts[0] if len(parts) == 1 else b"".join(parts), full=False)  # append_arrow looks at each row


def _placed(result: Any) -> FrameAnswer:
    """Return the results of records that came in columns as their answer. Called by the desk's thread."""
    return FrameAnswer(Kind.PLACED, frames.placed_bytes(result).to_pybytes())


def _encoded(result: Any) -> FrameAnswer:
    """Return the result of a frame as its answer. Called by the desk's thread."""
    if isinstance(result, ColumnAcks):
        return FrameAnswer(Kind.COLUMNS, frames.columns_bytes(result).to_pybytes())
    if isinstance(result, AppendErrors):
        return FrameAnswer(Kind.COLUMNS, frames.refused_bytes(result.results).to_pybytes())
    made = messages.Results(results=[failures.result(one) for one in result])
    return FrameAnswer(Kind.RESULTS, made.SerializeToString())


class WriteStream:
    """One write stream of a session."""

    def __init__(self, server: Server, form: Form, requests: Requests, call: Caller) -> None:
        self._server = server
        self._form = form
        self._requests = requests
        self._call = call
        self._out: deque[tuple[int, FrameAnswer]] = deque()
        self._sending: set[int] = set()
        self._changed = asyncio.Event()
        self._written = asyncio.Event()
        self._unanswered: dict[int, int] = {}
        """Frames whose answers were not written to the connection yet, with their bytes."""
        self._part: ReceivedFrame | None = None
        self._left = False  # whether the client has said that it leaves
        self._ended: Exception | None = None
        self._reading: asyncio.Task[None] | None = None
        self._session = FrameSession("")
        self._seat: Seat
        self._hello: Any = None

    # What the session calls.

    def send(self, tag: int, answer: FrameAnswer) -> None:
        """Send an answer, once."""
        if tag in self._unanswered and tag not in self._sending:
            self._sending.add(tag)
            self._out.append((tag, answer))
            self._changed.set()

    def end(self, error: Exception) -> None:
        """End the stream with an error."""
        self._ended = error
        if self._reading is not None:
            self._reading.cancel()
        self._changed.set()

    # The stream.

    async def answers(self) -> AsyncIterator[Any]:
        """Yield the messages of the server, until the client has ended the stream and has all answers."""
        request = await self._requests.next()
        if request is None:
            return
        self._hello = self._form.hello(request)
        welcome = await self._begin()
        try:
            yield welcome
            self._server.told.add(self._changed)
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(lambda _: self._changed.set())
            async for message in self._answered():
                yield message
            if self._left:  # before the stream ends: then the client may open its producer again at once
                await self._server.sessions.leave(self._hello.session, self._hello.log, self)
        finally:
            self._server.told.discard(self._changed)
            self._server.sessions.detach(self._session, self)
            await self._stop_reading()

    async def _stop_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, OncelogError):
                await reading
        if self._part is not None:
            self._server.budget.give(self._part.size_bytes)
            self._part = None

    async def _answered(self) -> AsyncIterator[Any]:
        """Yield answers as they come. A server that drains says so, reads no more, and answers what it has."""
        told = False
        while True:
            self._changed.clear()
            while self._out:
                tag, answer = self._out.popleft()
                for message in self._form.answers(tag, answer):
                    yield message
                self._sending.discard(tag)
                self._unanswered.pop(tag, None)
                self._written.set()
            if self._server.draining.is_set() and not told:
                told = True
                assert self._reading is not None
                self._reading.cancel()
                yield self._form.draining(messages.Draining(retry_after_s=self._server.retry_after_s()))
            if self._ended is not None:
                raise self._ended
            if self._reading is not None and self._reading.done() and not self._out:
                self._check_reading(self._reading)
                if not self._unanswered:
                    return
            await self._wait()

    def _check_reading(self, reading: asyncio.Task[None]) -> None:
        if not reading.cancelled() and (error := reading.exception()) is not None:
            raise error

    async def _wait(self) -> None:
        """Wait for an answer, for the end of reading, or for the drain; ask from time to time if all is allowed."""
        try:
            async with asyncio.timeout(CHECK_S):
                await self._changed.wait()
        except TimeoutError:
            self._requests.admit(self._hello.log)

    # Beginning.

    async def _begin(self) -> Any:
        """Attach the session, open the log's writer and the producer; return the welcome."""
        hello = self._hello
        self._requests.admit(hello.log)
        if hello.version != messages.PROTOCOL:
            message = f"this server speaks version {messages.PROTOCOL} of the protocol, not {hello.version}"
            raise InvalidArgument(message)
        if hello.takeover not in ("", "polite", "force"):
            message = f"takeover {hello.takeover!r}: must be 'polite' or 'force'"
            raise InvalidArgument(message)
        self._seat = self._server.seats[hello.log]
        epoch, log_id, lane = await self._opened(hello.wait_s)
        self._session, resumed = self._server.sessions.attach(hello.session, hello.log, self)
        self._take_lane(lane)
        welcome = messages.Welcome(
            version=messages.PROTOCOL,
            log_id=log_id,
            epoch=epoch,
            server=f"oncelog {__version__} {self._server.name}",
            resumed=resumed,
            last_tag=self._session.last_tag,
            frames_max=frames.FRAMES_MAX,
            bytes_max=frames.IN_FLIGHT_BYTES_MAX,
            message_bytes_max=frames.MESSAGE_BYTES_MAX,
        )
        if self._call.handed_on and self._server.fleet is not None:
            welcome.holder = self._server.fleet.card.grpc  # the client may come here by itself
        producer = lane.producer
        if producer is not None:
            welcome.producer = producer.name
            last = producer.last_sequence
            if last is not None:
                welcome.last_sequence = last
        return self._form.welcome(welcome)

    async def _opened(self, wait_s: float) -> tuple[int, str, Lane]:
        """Open the writer; while another process has the log, or another session the producer, try for ``wait_s``."""
        clock = self._server.clock
        deadline_us = clock.elapsed_us() + int(min(wait_s, WAIT_S_MAX) * 1e6) if wait_s > 0 else 0
        while True:
            try:
                return await self._server.write(self._prepared, self._hello.log)
            except LogBusy:
                left_s = (deadline_us - clock.elapsed_us()) / 1e6
                if left_s <= 0:
                    raise
            await asyncio.sleep(min(left_s, AGAIN_S))

    def _prepared(self) -> tuple[int, str, Lane]:
        """Open the writer, and the producer if the session has one. For a thread."""
        hello = self._hello
        before = self._server.sessions.lane_of(hello.session, hello.log)
        with self._seat.writing() as (writer, generation):
            lane = Lane(generation)
            if hello.HasField("producer"):
                if before is not None and before.producer is not None and before.generation == generation:
                    lane.producer = before.producer
                    if hello.producer in ("", before.producer.name):
                        return inner.epoch(writer), self._server.open_log(hello.log).log_id, lane
                    before.producer.close()
                takeover = "force" if hello.takeover == "force" else "polite"
                lane.producer = writer.as_producer(hello.producer or None, takeover=takeover)  # type: ignore[arg-type]
            return inner.epoch(writer), self._server.open_log(hello.log).log_id, lane

    def _take_lane(self, lane: Lane) -> None:
        """Give the session a new lane, unless frames of the one before are still being decided: nothing overtakes."""
        if self._session.lane is None or not self._session.pending:
            self._session.lane = lane

    # Reading.

    async def _read(self) -> None:
        """Take frames, as long as there is room for more without an answer."""
        while True:
            await self._room()
            request = await self._requests.next()
            if request is None:
                return
            received = self._form.frame(request)
            if received is None:
                if self._part is not None:
                    message = f"the client leaves, and the parts of frame {self._part.tag} are not complete"
                    raise InvalidArgument(message)
                self._left = True
                return
            frame = await self._whole(received)
            if frame is not None:
                await self._accept(frame)

    async def _room(self) -> None:
        while (
            len(self._unanswered) >= frames.FRAMES_MAX or sum(self._unanswered.values()) >= frames.IN_FLIGHT_BYTES_MAX
        ):
            self._written.clear()
            await self._written.wait()

    async def _whole(self, frame: ReceivedFrame) -> ReceivedFrame | None:
        """Return a frame when its last part is there."""
        before = self._part
        if before is None and not frame.more:
            return frame
        if before is not None and (before.tag != frame.tag or before.way is not frame.way):
            message = f"frame {frame.tag}: the parts of frame {before.tag} are not complete"
            raise InvalidArgument(message)
        size_bytes = frame.size_bytes + (0 if before is None else before.size_bytes)
        if size_bytes > 2 * BLOCK_BYTES_MAX:
            message = f"frame {frame.tag} has more than {2 * BLOCK_BYTES_MAX} bytes"
            raise InvalidArgument(message)
        await self._server.budget.take(frame.size_bytes)
        parts = frame.parts if before is None else before.parts + frame.parts
        self._part = frame._replace(parts=parts, size_bytes=size_bytes)
        if frame.more:
            return None
        whole, self._part = self._part, None
        self._server.budget.give(size_bytes)  # the desk takes them for the whole frame
        return whole

    async def _accept(self, frame: ReceivedFrame) -> None:
        """Decide a frame by its tag: a known one is answered again, the next one is executed, others are not."""
        session = self._session
        session.forget(frame.answered)
        self._unanswered[frame.tag] = frame.size_bytes
        if frame.tag <= session.last_tag:
            self._repeat(frame.tag)
        elif frame.tag != session.last_tag + 1:
            self.send(frame.tag, FrameAnswer.of_error(_unknown(f"frame {frame.tag} came behind {session.last_tag}")))
        else:
            session.receive(frame.tag)
            await self._execute(frame)

    def _repeat(self, tag: int) -> None:
        """Answer a frame that was received before, now or when it is decided."""
        if tag not in self._session.answers:
            self.send(tag, FrameAnswer.of_error(_unknown(f"the answer to frame {tag} is not kept any more")))
            return
        answer = self._session.answers[tag]
        if answer is not None:
            self.send(tag, answer)

    async def _execute(self, frame: ReceivedFrame) -> None:
        session, tag = self._session, frame.tag
        timer: asyncio.TimerHandle | None = None

        def settled(answer: FrameAnswer | None, error: OncelogError | None) -> None:
            if timer is not None:
                timer.cancel()
            session.settle(tag, answer if answer is not None else FrameAnswer.of_error(error or _unknown("no answer")))

        try:
            lane = await self._lane()
            if lane.stopped is not None:
                raise lane.stopped
            records = max(1, frame.size_bytes // _RECORD_BYTES_MIN) if frame.way is Way.EACH else 1
            ask = Ask(
                frame.way,
                lambda: frame.load(frame.parts),
                settled,
                frame.size_bytes,
                records,
                encode=frame.encode,
                lane=lane,
                peer=self._call.peer,
            )
            await self._seat.put(ask)
        except OncelogError as error:
            if session.lane is not None and session.lane.stopped is None and stops(error):
                session.lane.stopped = error
            session.settle(tag, FrameAnswer.of_error(error))
        except asyncio.CancelledError:  # the stream broke before the frame was handed on
            session.settle(tag, FrameAnswer.of_error(Unavailable("the stream ended before this frame was begun")))
            raise
        else:
            if frame.timeout_s > 0:
                timer = self._server.loop.call_later(frame.timeout_s, self._late, ask, tag, settled)

    async def _lane(self) -> Lane:
        """Return the lane for the next frame. When the log's writer was closed while nothing was under way, as it is
        after a while without frames, the lane goes on with the next writer.
        """
        lane = self._session.lane
        assert lane is not None
        is_first = self._session.pending == 1
        if is_first and lane.stopped is None and not self._seat.is_open(lane.generation):
            *_, renewed = await self._server.write(self._prepared, self._hello.log)
            self._session.lane = renewed
            return renewed
        return lane

    def _late(self, ask: Ask, tag: int, settled: Callable[[FrameAnswer | None, OncelogError | None], None]) -> None:
        """Tell the client that its time is over. The frame of a producer is never taken back."""
        late = Unavailable(f"frame {tag} was not begun in time")
        assert ask.lane is not None
        if ask.lane.producer is None and self._seat.withdraw(ask, late):
            settled(None, late)
            return
        self.send(tag, FrameAnswer.of_error(_unknown(f"no answer to frame {tag} in time; the write goes on")))


def _unknown(text: str) -> Unavailable:
    return Unavailable(f"{text}: its outcome is unknown", outcome="unknown")


def write(server: Server, form: Form, requests: Requests, call: Caller) -> AsyncIterator[Any]:
    """Serve one write stream."""
    return WriteStream(server, form, requests, call).answers()
