"""A bare client of the wire, for tests: it sends what it is told to, and retries nothing."""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Iterator
from typing import Any, Self

import grpc

from oncelog.errors import OncelogError
from oncelog.wire import failures, messages
from oncelog.wire.methods import METHODS

WAIT_S = 120.0
"""Longer than any answer takes, also on a machine that is ten times too busy."""


class Wire:
    """A channel to a server."""

    def __init__(self, address: str) -> None:
        """Connect when something is called."""
        self.address = address
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(address, options=options)

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the channel."""
        self.channel.close()

    def call(self, key: str, request: Any = None, **fields: Any) -> Any:
        """Call a method with one answer; raise the error of its trailer."""
        made = request if request is not None else _request(key, fields)
        with _errors():
            return self._method(key)(made, timeout=WAIT_S)

    def answers(self, key: str, request: Any = None, **fields: Any) -> Any:
        """Call a method with a stream of answers: an iterator that can be cancelled."""
        return self._method(key)(request if request is not None else _request(key, fields), timeout=WAIT_S)

    def talk(self, key: str, requests: Iterator[Any]) -> Any:
        """Call a method with a stream of requests."""
        return self._method(key)(requests, timeout=WAIT_S)

    def _method(self, key: str) -> Any:
        method = METHODS[key]
        kind = {
            (False, False): self.channel.unary_unary,
            (False, True): self.channel.unary_stream,
            (True, False): self.channel.stream_unary,
            (True, True): self.channel.stream_stream,
        }[method.client_streams, method.server_streams]
        return kind(method.path, request_serializer=method.encode_request, response_deserializer=method.decode_response)


def _request(key: str, fields: dict[str, Any]) -> Any:
    service, _, name = key.partition(".")
    described = messages.FILE.services_by_name[service].methods_by_name[name]
    return messages.CLASSES[described.input_type.name](**fields)


def error_of(error: grpc.RpcError) -> Exception:
    """Return the error of a trailer; the gRPC error itself if there is none."""
    for name, value in error.trailing_metadata() or ():
        if name == failures.TRAILER:
            found: OncelogError = failures.from_trailer(value)
            return found
    return error  # type: ignore[no-any-return]


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise error_of(error) from None


class WriteSession:
    """One write stream of a session, frame by frame."""

    def __init__(self, wire: Wire, log: str, session: bytes | None = None, **hello: Any) -> None:
        """Say hello, and wait for the welcome."""
        self.session = session if session is not None else os.urandom(16)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = wire.talk("Log.Write", iter(self._requests.get, None))
        said = messages.Hello(version=1, session=self.session, log=log, **hello)
        self._requests.put(messages.WriteRequest(hello=said))
        with _errors():
            self.welcome = next(self.call).welcome

    def send(self, tag: int, *records: messages.Record, **fields: Any) -> None:
        """Send a frame."""
        self._requests.put(messages.WriteRequest(frame=messages.Frame(tag=tag, records=records, **fields)))

    def response(self) -> Any:
        """Return the next message of the server."""
        with _errors():
            return next(self.call)

    def answer(self) -> tuple[int, Any]:
        """Return the next answer: its tag, and the results or the error."""
        found = self.response().answer
        which = found.WhichOneof("answer")
        if which == "results":
            return found.tag, [failures.from_result(one) for one in found.results.results]
        return found.tag, failures.from_message(found.error) if which == "error" else found.columns

    def finish(self) -> None:
        """End the stream as a client does that has nothing more to send."""
        self._requests.put(None)
        with contextlib.suppress(StopIteration):
            next(self.call)

    def cut(self) -> None:
        """End the stream as a broken connection does."""
        self.call.cancel()
        self._requests.put(None)


def record(value: bytes, **fields: Any) -> Any:
    """Return a record of the wire."""
    return messages.Record(value=value, **fields)


def is_error(answer: object) -> bool:
    """Tell whether an answer is an error of the whole frame."""
    return isinstance(answer, OncelogError)
