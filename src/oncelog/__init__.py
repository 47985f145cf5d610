"""Oncelog: an append-only log in which a retried write is never a second write.

Names are loaded when they are first used, so that a program which only needs an error, or the shell's help, does not
wait for numpy and Arrow.
"""

import importlib as _importlib
import sys as _sys
import types as _types
import typing as _typing

if _sys.platform == "win32":
    _message = "Oncelog does not run on Windows: use it in WSL (Windows Subsystem for Linux), or use a server by HTTP."
    raise ImportError(_message)

from oncelog.errors import (
    AppendErrors,
    BadValue,
    Closed,
    CorruptionError,
    EffectFailed,
    IdConflict,
    InvalidArgument,
    LeaseLost,
    LogBusy,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    OncelogError,
    PartialOverlap,
    TooManyCalls,
    TooSlow,
    Unavailable,
    Unsupported,
    WriterFenced,
    WrongExpectedVersion,
)

if _typing.TYPE_CHECKING:
    from oncelog.codec import Codec, json
    from oncelog.concurrency.pending import Pending, later
    from oncelog.connect import Database, connect
    from oncelog.inbox.effect import Effect
    from oncelog.inbox.inbox import Inbox
    from oncelog.log.log import Log
    from oncelog.log.producer import Producer
    from oncelog.log.read.reader import Reader, Tail
    from oncelog.log.writer import Writer
    from oncelog.queue.deliver.consumer import Consumer, Delivery
    from oncelog.queue.deliver.dead_letters import DeadLetter, DeadLetters
    from oncelog.queue.queue import Queue
    from oncelog.queue.rules.message import Message
    from oncelog.queue.rules.retry import RetryPolicy
    from oncelog.queue.rules.settings import QueueSettings
    from oncelog.settings import LogSettings, ProducerPolicy, Window
    from oncelog.streams.events import CaughtUp, EventAck, StreamEvent, StreamInfo
    from oncelog.streams.streams import Streams
    from oncelog.streams.subscription import Subscription
    from oncelog.types import Ack, ColumnAcks, Entry, Location, Record
    from oncelog.workers.open_worker import run_workers, worker
    from oncelog.workers.worker import Worker, WorkerEvent

    __version__: str

__all__ = [
    "Ack",
    "AppendErrors",
    "BadValue",
    "CaughtUp",
    "Closed",
    "Codec",
    "ColumnAcks",
    "Consumer",
    "CorruptionError",
    "Database",
    "DeadLetter",
    "DeadLetters",
    "Delivery",
    "Effect",
    "EffectFailed",
    "Entry",
    "EventAck",
    "IdConflict",
    "Inbox",
    "InvalidArgument",
    "LeaseLost",
    "Location",
    "Log",
    "LogBusy",
    "LogSettings",
    "Message",
    "NotAllowed",
    "NotAuthenticated",
    "NotFound",
    "OncelogError",
    "PartialOverlap",
    "Pending",
    "Producer",
    "ProducerPolicy",
    "Queue",
    "QueueSettings",
    "Reader",
    "Record",
    "RetryPolicy",
    "StreamEvent",
    "StreamInfo",
    "Streams",
    "Subscription",
    "Tail",
    "TooManyCalls",
    "TooSlow",
    "Unavailable",
    "Unsupported",
    "Window",
    "Worker",
    "WorkerEvent",
    "Writer",
    "WriterFenced",
    "WrongExpectedVersion",
    "connect",
    "json",
    "later",
    "run_workers",
    "worker",
]

_LATER = {
    "Ack": "types",
    "CaughtUp": "streams.events",
    "Codec": "codec",
    "ColumnAcks": "types",
    "Consumer": "queue.deliver.consumer",
    "Database": "connect",
    "DeadLetter": "queue.deliver.dead_letters",
    "DeadLetters": "queue.deliver.dead_letters",
    "Delivery": "queue.deliver.consumer",
    "Effect": "inbox.effect",
    "Entry": "types",
    "EventAck": "streams.events",
    "Inbox": "inbox.inbox",
    "Location": "types",
    "Log": "log.log",
    "LogSettings": "settings",
    "Message": "queue.rules.message",
    "Pending": "concurrency.pending",
    "Producer": "log.producer",
    "ProducerPolicy": "settings",
    "Queue": "queue.queue",
    "QueueSettings": "queue.rules.settings",
    "Reader": "log.read.reader",
    "Record": "types",
    "RetryPolicy": "queue.rules.retry",
    "StreamEvent": "streams.events",
    "StreamInfo": "streams.events",
    "Streams": "streams.streams",
    "Subscription": "streams.subscription",
    "Tail": "log.read.reader",
    "Window": "settings",
    "Worker": "workers.worker",
    "WorkerEvent": "workers.worker",
    "Writer": "log.writer",
    "connect": "connect",
    "json": "codec",
    "later": "concurrency.pending",
    "run_workers": "workers.open_worker",
    "worker": "workers.open_worker",
}
"""In which module a name is that is loaded on its first use."""


if not _typing.TYPE_CHECKING:  # for a type checker the names are those above, and no others

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return _importlib.import_module("importlib.metadata").version("oncelog")
        if name not in _LATER:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        found = getattr(_importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(_types.ModuleType):
    """``oncelog.connect`` is the function, also for those who import the module of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "connect" and isinstance(value, _types.ModuleType):
            value = value.connect
        super().__setattr__(name, value)


_sys.modules[__name__].__class__ = _Package
