"""Write sessions: a client's frames by their tags, and the answers that are kept until the client has them.

A session outlives its stream, for ``session_s``: a frame that is sent again over a new stream is answered, and not
executed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from oncelog.errors import InvalidArgument, OncelogError, Unavailable
from oncelog.server.desk import Lane
from oncelog.wire import failures
from oncelog.wire.frames import Kind

if TYPE_CHECKING:
    from oncelog.server.server import Server

SESSION_BYTES = 16
KEPT_MAX = 1024
"""Answers that a session may leave unacknowledged (``answered``) before its stream is ended."""


class FrameAnswer(NamedTuple):
    """The answer to a frame: ``Kind.RESULTS``, ``Kind.COLUMNS`` or ``Kind.ERROR``, and its bytes."""

    kind: Kind
    body: bytes

    @classmethod
    def of_error(cls, error: OncelogError) -> FrameAnswer:
        """Return an error as an answer."""
        return cls(Kind.ERROR, failures.to_message(error).SerializeToString())


class Stream(Protocol):
    """The stream that a session has now."""

    def send(self, tag: int, answer: FrameAnswer) -> None:
        """Send the answer to a frame."""
        ...

    def end(self, error: Exception) -> None:
        """End the stream."""
        ...


class FrameSession:
    """One client's frames for one log. Used by the event loop alone.

    ``last_tag`` is the last tag that was received. ``answers`` has an entry for each tag above what the client has
    acknowledged: ``None`` while the frame is being decided.
    """

    def __init__(self, log: str) -> None:
        self.log = log
        self.last_tag = 0
        self.answers: dict[int, FrameAnswer | None] = {}
        self.pending = 0
        """Frames that are being decided."""
        self.lane: Lane | None = None
        self.stream: Stream | None = None
        self.ended_us = 0

    def forget(self, answered: int) -> None:
        """Forget the answers that the client has: all up to a tag."""
        for tag in [tag for tag, answer in self.answers.items() if tag <= answered and answer is not None]:
            del self.answers[tag]

    def receive(self, tag: int) -> None:
        """Note that the next frame is being decided."""
        if len(self.answers) >= KEPT_MAX:
            message = f"{KEPT_MAX} answers are kept for this session: say in 'answered' which of them have arrived"
            raise InvalidArgument(message)
        self.last_tag = tag
        self.answers[tag] = None
        self.pending += 1

    def settle(self, tag: int, answer: FrameAnswer) -> None:
        """Note the answer to a frame, and send it if there is a stream."""
        if self.answers.get(tag, answer) is None:
            self.answers[tag] = answer
        self.pending -= 1
        if self.stream is not None:
            self.stream.send(tag, answer)


class FrameSessions:
    """The sessions of a server, by their 16 bytes and their log."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sessions: dict[tuple[bytes, str], FrameSession] = {}

    def __len__(self) -> int:
        """Return how many sessions are kept."""
        return len(self._sessions)

    def attach(self, key: bytes, log: str, stream: Stream) -> tuple[FrameSession, bool]:
        """Give a session to a new stream, and tell whether the session was known. A stream that it has is ended."""
        if len(key) != SESSION_BYTES:
            message = f"a session is named by {SESSION_BYTES} random bytes, not {len(key)}"
            raise InvalidArgument(message)
        session = self._sessions.get((key, log))
        resumed = session is not None
        if session is None:
            self._check_room()
            session = self._sessions[key, log] = FrameSession(log)
        elif session.stream is not None:
            session.stream.end(Unavailable("another stream of this session was opened", outcome="unknown"))
        session.stream = stream
        return session, resumed

    def lane_of(self, key: bytes, log: str) -> Lane | None:
        """Return the lane of a session, if the session is known."""
        session = self._sessions.get((key, log))
        return None if session is None else session.lane

    def _check_room(self) -> None:
        if len(self._sessions) >= self._server.settings.sessions_max:
            self.tidy(self._server.clock.elapsed_us())
        if len(self._sessions) >= self._server.settings.sessions_max:
            message = f"this server has {len(self._sessions)} write sessions, and takes no more: try again later"
            raise Unavailable(message, retry_after_s=self._server.retry_after_s())

    def detach(self, session: FrameSession, stream: Stream) -> None:
        """Note that a stream has ended, unless another has taken its place."""
        if session.stream is stream:
            session.stream = None
            session.ended_us = self._server.clock.elapsed_us()

    async def leave(self, key: bytes, log: str, stream: Stream) -> None:
        """Forget the session of a client that has left, and has all answers; the name of its producer is free then."""
        session = self._sessions.get((key, log))
        if session is None or session.stream is not stream or session.pending:
            return
        del self._sessions[key, log]
        if session.lane is None or session.lane.producer is None:
            return
        closing = _closing(session.lane)
        try:
            await self._server.write(closing, log)
        except BaseException as error:  # the client is gone, or there is no room now: nobody else closes it
            self._server.writers.post(closing)
            if not isinstance(error, OncelogError):
                raise

    def cut(self, error: Exception) -> None:
        """End all streams with an error that leaves open whether their frames are stored: this server cannot know."""
        for session in self._sessions.values():
            if session.stream is not None:
                session.stream.end(error)

    def tidy(self, now_us: int) -> None:
        """Forget the sessions whose streams have ended a while ago; their producers' names are free then."""
        kept_us = self._server.settings.session_s * 1e6
        over = [
            key
            for key, session in self._sessions.items()
            if session.stream is None and not session.pending and now_us - session.ended_us >= kept_us
        ]
        for key in over:
            lane = self._sessions.pop(key).lane
            if lane is not None and lane.producer is not None:
                self._server.writers.post(_closing(lane))


def _closing(lane: Lane) -> Callable[[], None]:
    def close() -> None:
        if lane.producer is not None:
            lane.producer.close()

    return close
