"""A session: frames of records on their way to one log, each answered once, whatever becomes of the connection.

docs/wire.md has the rules. Frames are numbered by *tags*. When the stream breaks, a new one is opened under the same
session, and what has no answer is sent again. A frame that the server has received keeps its tag: it is answered, not
executed again. After a restart of the server only frames that can be recognised (by ids or sequences) are sent again;
of the others nobody knows whether they are stored.

Threads: one opens streams and takes answers; gRPC's own asks ``_requests`` for what to send. Both end with the stream.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import grpc

from oncelog.client.channel import Broken, Channel
from oncelog.client.frames_out import (
    Frame,
    Gathered,
    given_up,
    is_passing,
)
from oncelog.client.outbox import Outbox
from oncelog.concurrency.pending import on_loop
from oncelog.errors import NotFound, OncelogError, Unavailable, WriterFenced
from oncelog.handle import Backlog
from oncelog.settings import TIMEOUT_S
from oncelog.types import Ack
from oncelog.wire import failures, frames, messages
from oncelog.wire.frames import Kind, Raw

_REST_S_MAX = 2.0

_LEAVE_S = 2.0
"""How long a session that ends waits, at most, until the server has let its producer go."""

_logger = logging.getLogger("oncelog.client")


class Opening(NamedTuple):
    """What a stream begins with: the log, and the producer if the session has one."""

    log: str
    producer: str | None = None
    takeover: str = "polite"
    wait_s: float = 5.0


class _Stream:
    """One stream of a session."""

    def __init__(self) -> None:
        self.call: Any = None
        self.welcomed = False
        self.progressed = False
        self.stopped = False
        """Nothing more is sent on it; what was sent is answered, and then it ends."""
        self.ended = False
        self.leaving = False
        """This client ends the session: it sends one last message, which says so, and nothing behind it."""
        self.over = threading.Event()
        """Set when nothing more comes from the server."""
        self.complete = False
        """The server ended it in order: it has answered every frame that it received."""
        self.why: Exception | None = None
        self.parts: list[bytes] = []

    def end(self) -> None:
        """End it, from any thread."""
        self.ended = True
        if self.call is not None:
            self.call.cancel()


class Session(Backlog):
    """The frames of one writer, or of one producer. Safe to share between threads."""

    def __init__(self, channel: Channel, opening: Opening, *, pending_records: int, pending_bytes: int) -> None:
        super().__init__()
        self._channel = channel
        self._clock = channel.clock
        self._opening = opening
        self._name = channel.clock.token(16)
        self._pending_max = pending_records
        self._pending_bytes_max = pending_bytes
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._sendable = threading.Condition(lock)
        """What the thread that sends waits for. An answer behind which nothing waits to be sent does not wake that
        thread: it would take the interpreter from the caller who waits for the answer.
        """
        self._outbox = Outbox(self._changed)
        self.answered = self._outbox.answered
        """What the futures of submitted records share."""
        self._answering = False  # whether futures are being given an answer that has come
        self._stream: _Stream | None = None
        self._thread: threading.Thread | None = None
        self._wanted = False  # whether a stream is to be opened without a frame
        self._failure: Exception | None = None
        self._attempts = 0
        self._ended: OncelogError | None = None
        self.welcome: Any = None

    # What writers call.

    def send(self, frame: Frame) -> None:
        """Have a frame sent behind all that came before."""
        with self._changed:
            self.check()
            self._outbox.put(frame)
            self._start()
            self._sendable.notify_all()

    def submit(self, one: Gathered) -> None:
        """Have a record sent, in one frame with others that are submitted soon after it."""
        with self._changed:
            if self._ended is not None:
                self.check()
            enough = self._outbox.gather(one)
            if self._thread is None:
                self._start()
            if enough:
                self._sendable.notify_all()

    def withdraw(self, pending: Future[Ack]) -> OncelogError:
        """Give up a record that was submitted, whose time is over; return the error for who waits."""
        with self._changed:
            why = self._failure or "the time is over"
            if self._outbox.withdraw(pending):
                self._sendable.notify_all()
                return Unavailable(f"not sent: {why}")
            return Unavailable(f"no answer: {why}; retry with the same ids", outcome="unknown")

    def check(self) -> None:
        """Raise what ended this session, if something did."""
        if isinstance(self._ended, WriterFenced):
            raise WriterFenced(str(self._ended), outcome="not written")
        if self._ended is not None:
            raise self._ended

    def room(self, count: int, size_bytes: int, deadline_us: int | None) -> None:
        """Wait until so much more may be pending; ``Unavailable``, not written, when time runs out first.

        On an event loop nothing waits: as much again may be pending, and then it is ``Unavailable``.
        """
        outbox = self._outbox
        if outbox.count + count <= self._pending_max and outbox.size_bytes + size_bytes <= self._pending_bytes_max:
            return  # as nearly always; read without the lock, so a few too many may be let in
        times = 2 if on_loop() else 1

        def has_room() -> bool:
            fits = outbox.size_bytes + size_bytes <= times * self._pending_bytes_max
            return not outbox.count or (outbox.count + count <= times * self._pending_max and fits)

        with self._changed:
            if not has_room() and times == 1:
                self._changed.wait_for(lambda: self._ended is not None or has_room(), self._channel.left(deadline_us))
            self.check()
            if not has_room():
                message = (
                    f"{outbox.count} records ({outbox.size_bytes} bytes) are waiting for the server, "
                    "which is as many as may: "
                    "slow down, or raise pending_bytes and pending_records"
                )
                raise Unavailable(message)

    def open(self, wait_s: float) -> Any:
        """Open the stream; return the server's welcome, or raise why there is none.

        What passes is tried again for ``wait_s``. An attempt that is under way then may come to its end.
        """
        patient_us = self._channel.deadline(wait_s) or 0

        def is_over() -> bool:
            impatient = self._failure is not None and self._clock.elapsed_us() >= patient_us
            return self.welcome is not None or self._ended is not None or impatient

        with self._changed:
            self._wanted = True
            self._start()
            self._changed.wait_for(is_over, wait_s + TIMEOUT_S)
            self._wanted = False
            self.check()
            if self.welcome is None:
                failure = self._failure
                if isinstance(failure, OncelogError):
                    raise failure
                message = f"the server at {self._channel.address.url} does not answer ({failure or 'in time'})"
                raise Unavailable(message)
            return self.welcome

    def expire(self, frame: Frame) -> OncelogError:
        """Give up a frame whose time is over; return the error for who waits."""
        with self._changed:
            self._outbox.drop(frame)
            self._sendable.notify_all()
            frame.told = True
            return given_up(frame, self._failure or "the time is over")

    @property
    def waiting(self) -> int:
        return self._outbox.count

    def wait_idle(self, timeout_s: float | None) -> bool:
        """Return whether everything was answered within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._outbox.count and not self._answering, timeout_s)

    def end(self, reason: OncelogError) -> None:
        """End: nothing is sent or answered any more. What has no answer fails.

        A producer that has all its answers tells the server that the session ends. Then the server frees the name of
        the producer at once. Otherwise the server keeps the name, because the client of a broken stream comes again.
        """
        with self._changed:
            reason = self._ended = self._ended or reason
            left = self._outbox.clear()
            stream, self._stream = self._stream, None
            if stream is not None:
                is_whole = stream.welcomed and not stream.stopped and not left
                may_wait = threading.current_thread() is not self._thread
                stream.leaving = self._opening.producer is not None and is_whole and may_wait
                stream.ended = not stream.leaving  # under the lock: the thread that sends looks before it waits
            self._wake()
        if stream is not None:
            if stream.leaving:
                stream.over.wait(_LEAVE_S)
            stream.end()
        for frame in left:
            frame.answer(given_up(frame, reason))

    def _wake(self) -> None:
        """Wake all who wait, under the lock: something of the session or of its stream has changed."""
        self._changed.notify_all()
        self._sendable.notify_all()

    # The life of streams.

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="oncelog-session", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                message = f"no thread to speak to the server with ({error}): end some, and try again"
                raise Unavailable(message, outcome="unknown") from error
            self._thread = thread

    def _run(self) -> None:
        """Keep a stream open as long as there is something to send or to wait for."""
        while True:
            with self._changed:
                if self._ended is not None or not (self._wanted or self._outbox.count):
                    self._thread = None  # the next call starts another, under this lock
                    return
                stream = self._stream = _Stream()
            self._broke(stream, self._speak(stream))

    def _speak(self, stream: _Stream) -> Exception:
        """Open a stream and take answers until it ends; return why it ended."""
        try:
            stream.call = self._channel.talk("Log.WriteArrow", self._requests(stream))
            for message in stream.call:
                self._take(stream, frames.unpack(message))
        except grpc.RpcError as error:
            return Broken("ended here") if stream.ended else self._channel.translated(error)
        except OncelogError as error:
            return error
        except Exception as error:  # noqa: BLE001 (bytes that are no answer)
            return Broken(repr(error))
        finally:
            stream.over.set()
        stream.complete = True
        return stream.why or Broken("the server ended the stream")

    def _broke(self, stream: _Stream, error: Exception) -> None:
        """Note that a stream ended, and rest before the next."""
        stream.end()
        error = self._of_stream(error)
        if self._ended is None:
            _logger.info("the stream of a writer of %r ended: %s", self._opening.log, error)
        if self._is_over_for_good():
            return
        with self._changed:
            self._failure = error
            if stream.complete:
                for frame in self._outbox.sent.values():  # never received: a server that drains reads no more
                    frame.tag, frame.unwritten = 0, not frame.doubtful
            self._outbox.rewind()
            self._stream = None
            self._attempts = 0 if stream.progressed else self._attempts + 1
            self._wake()
        if isinstance(error, OncelogError) and not is_passing(error) and not stream.stopped:
            self._refuse(error)
            return
        if self._attempts:
            self._rest(error)
        self._expire_waiting(error)

    def _is_over_for_good(self) -> bool:
        """Tell whether the session has ended. What a producer that was taken has not sent fails with why it ended."""
        with self._changed:
            reason = self._ended
            if reason is None:
                return False
            left = self._outbox.clear()
            self._wake()
        for frame in left:
            frame.answer(given_up(frame, reason))
        return True

    def _of_stream(self, error: Exception) -> Exception:
        """Return the error of a stream without a statement about frames, if the next stream can succeed: there the tag
        or the ids of a frame tell whether it is stored.
        """
        passes = isinstance(error, Unavailable | WriterFenced) and not self._is_taken(error)
        if not passes or is_passing(error):
            return error
        return Unavailable(str(error), retry_after_s=getattr(error, "retry_after_s", 0.0))

    def _refuse(self, error: OncelogError) -> None:
        """Fail all frames: the server does not take them. If it never took any, or fenced the producer, that is all."""
        with self._changed:
            if self.welcome is None or isinstance(error, WriterFenced):
                self._ended = error
            left = self._outbox.clear()
            self._wanted = False
            self._wake()
        for frame in left:
            frame.answer(error if frame.unwritten else given_up(frame, error))

    def _rest(self, error: Exception) -> None:
        after_s = error.retry_after_s if isinstance(error, Unavailable) else 0.0
        pause_s = min(max(self._channel.pause_s(self._attempts), min(after_s, 1.0)), _REST_S_MAX)
        with self._changed:
            self._changed.wait_for(lambda: self._ended is not None, pause_s)

    def _expire_waiting(self, error: Exception) -> None:
        """Fail frames whose time is over while there is no stream; the tags of the others are given again."""
        now_us = self._clock.elapsed_us()
        with self._changed:
            late = self._outbox.expired(now_us)
        for frame in late:
            passing = isinstance(error, OncelogError) and frame.unwritten
            frame.answer(error if passing else given_up(frame, error))

    # Sending: called by gRPC, in a thread of the stream's own.

    def _requests(self, stream: _Stream) -> Iterator[bytes]:
        yield frames.pack(Raw(Kind.HELLO, self._hello().SerializeToString()))
        while (found := self._next(stream)) is not None:
            frame, answered = found
            timeout_s = self._channel.left(frame.deadline_us)
            made = frame.made()
            raw = Raw(made.kind, made.body, frame.tag, answered, 0.0 if timeout_s is None else max(0.1, timeout_s))
            yield from frames.parts(raw)
        if stream.leaving:
            yield frames.pack(Raw(Kind.LEAVE, b""))

    def _hello(self) -> Any:
        opening = self._opening
        return messages.Hello(
            version=messages.PROTOCOL,
            session=self._name,
            log=opening.log,
            takeover=opening.takeover if self.welcome is None else "polite",  # a name is taken once, not back
            wait_s=opening.wait_s,
            producer=opening.producer,
        )

    def _next(self, stream: _Stream) -> tuple[Frame, int] | None:
        """Return the next frame as soon as it may be sent, and up to which tag all answers are here; ``None`` when
        nothing more is sent on this stream.
        """
        while True:
            late: list[Frame] = []
            with self._changed:
                if stream.ended or stream.stopped or stream.leaving:
                    return None
                self._outbox.form_next()
                if stream.welcomed and (found := self._outbox.next_frame()) is not None:
                    return found
                late, wait_s = self._outbox.late(self._clock.elapsed_us())
                if not late:
                    self._sendable.wait(wait_s)
            for frame in late:
                frame.answer(given_up(frame, "the server is late"))

    # Receiving.

    def _take(self, stream: _Stream, raw: Raw) -> None:
        if raw.kind is Kind.WELCOME:
            self._begin(stream, messages.Welcome.FromString(bytes(raw.body)))
        elif raw.kind is Kind.DRAINING:
            self._stop(stream, Broken("the server drains"))
        else:
            self._answered(stream, raw)

    def _stop(self, stream: _Stream, why: Exception) -> None:
        with self._changed:
            stream.stopped = True
            stream.why = stream.why or why
            self._wake()

    def _begin(self, stream: _Stream, welcome: Any) -> None:
        """Give frames the tags that the server expects; fail those of which nobody knows whether they are stored."""
        if self.welcome is not None and welcome.log_id != self.welcome.log_id:
            message = f"log {self._opening.log!r} was deleted"  # and another one of its name was made
            raise NotFound(message)
        with self._changed:
            lost = self._outbox.resume(welcome.last_tag if welcome.resumed else 0, resumed=welcome.resumed)
            self.welcome = welcome
            if self._opening.producer is not None and welcome.HasField("producer"):
                self._opening = self._opening._replace(producer=welcome.producer)
            stream.welcomed = True
            self._wake()
        for frame in lost:
            frame.answer(given_up(frame, "the server was restarted, and these records carry no ids"))

    def _answered(self, stream: _Stream, raw: Raw) -> None:
        """Take the answer to a frame, or a part of it."""
        stream.parts.append(bytes(raw.body))
        if raw.more:
            return
        body, stream.parts = b"".join(stream.parts), []
        error = failures.from_message(messages.Error.FromString(body)) if raw.kind is Kind.ERROR else None
        with self._changed:
            frame = self._outbox.sent.pop(raw.tag, None)
            if frame is None:
                return
            taken = self._is_taken(error)
            if taken:
                self._ended = error
            if error is not None and not taken and frame.is_passing(error) and not self._is_over(frame):
                # Nothing behind it was written either: all begin again on the next stream, under new tags.
                frame.doubtful = frame.doubtful or getattr(error, "outcome", "not written") == "unknown"
                frame.unwritten = not frame.doubtful
                frame.tag = 0
                self._outbox.again.append(frame)
                stream.stopped = True
                stream.why = stream.why or error
                self._wake()
                return
            if isinstance(error, WriterFenced) and not taken:  # the server lost the log: this writer did not
                error = Unavailable(str(error), outcome=error.outcome)
            if error is not None and is_passing(error) and frame.doubtful:
                error = given_up(frame, error)  # nothing was done now: what was before, nobody knows
            stream.progressed = True
            self._outbox.forget(frame)
            self._answering = True
            if self._ended is not None and not self._outbox.count:  # the producer was taken, and all have an answer
                stream.stopped = True
                self._wake()
            elif self._outbox.waiting or self._outbox.gathered:
                self._sendable.notify_all()
        try:
            frame.answer((raw.kind, body) if error is None else error)
        finally:
            with self._changed:
                self._answering = False
                self._changed.notify_all()

    def _is_taken(self, error: Exception | None) -> bool:
        """Tell whether an error says that another session took the producer of this one."""
        fenced = isinstance(error, WriterFenced) and not isinstance(error, failures.LogMoved)
        return fenced and self._opening.producer is not None

    def _is_over(self, frame: Frame) -> bool:
        return frame.told or (frame.deadline_us is not None and frame.deadline_us <= self._clock.elapsed_us())
