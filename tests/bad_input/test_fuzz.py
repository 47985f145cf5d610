"""Thousands of calls with arguments that are none: whatever comes in, what comes out is an error of the tree."""

from __future__ import annotations

import inspect
import os
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import oncelog
from oncelog import (
    Inbox,
    InvalidArgument,
    LogSettings,
    Message,
    OncelogError,
    QueueSettings,
    Record,
    RetryPolicy,
    Window,
)
from oncelog.connect import Database
from oncelog.storage.memory import MemoryStorage
from tests.bad_input.test_records import Number, Text

SOAK = os.environ.get("ONCELOG_SOAK") == "1"


class Broken:
    """An object that fails whatever one does with it."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError

    def __bool__(self) -> bool:
        raise RuntimeError


NASTY: list[object] = [
    None, True, False, 0, -1, 1, 5, 2**31, 2**63, 2**70, -(2**70), 10**400, 0.5, -0.5, float("nan"), 1e308, -1e308,
    "", "x", "orders", "\ud800", "a\0b", "x" * 300, "\N{GRINNING FACE}" * 100, "../x", b"", b"x", b"\xff" * 10,
    bytearray(b"x"), memoryview(b"x"), np.int64(3), np.float64(0.25), np.bool_(1), np.array([1, 2]), np.array(1),
    np.array(["a"]), [], [1], ["a"], (), (1, 2), (1,), {}, {"a": 1}, {"a": b"x"}, {1: b"x"}, set(), object(), Broken(),
    Broken, int, str, print, lambda: None, datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1),  # noqa: DTZ001
    Record(b"x"), Record(5), Record(b"x", id=5), Record(b"x", sequence=2**70), Message(b"x"), Message(5),  # type: ignore[arg-type]
    Message(b"x", headers={"a": 1}), Message(b"x", delay_s="1"), LogSettings(), QueueSettings(), RetryPolicy(),  # type: ignore[dict-item, arg-type]
    Window(),
    LogSettings(window=5), QueueSettings(log=5), RetryPolicy(jitter="x"), [Record(b"x"), 5], [Message(b"x"), None],  # type: ignore[arg-type]
    pa.table({"value": [b"x"]}), pa.table({"value": ["x"]}), pa.table({"x": [1]}), pa.array([1]), ValueError,
    ValueError(),
    "memory://", "s3://bucket/x", Path("x"), Text("x"), Number(3), 1j, iter([]), range(3), threading.Lock(),
]  # fmt: skip
"""What programs give by mistake, and worse."""

SOON = [0, 0.0, None, True, "1", -1, float("nan"), 10**400, np.array([1, 2]), np.array(0.0), b"x", Broken(), str, 0.001]
"""What is given for seconds: nothing that is waited for."""

WAITED = ("timeout_s", "wait_s", "lease_s", "seconds")

CALLED = [print, 5, "x", Broken(), np.array([1, 2])]
"""What is given for a function: what a function raises is its own."""

GOOD: dict[str, object] = {
    "value": b"x", "id": "1", "name": "orders", "records": [Record(b"a", id="a")], "table": pa.table({"value": [b"x"]}),
    "events": [Record(b"e", id="e")], "stream": "s", "messages": [Message(b"m")], "group": "g", "before": 0,
    "settings": LogSettings(), "changed": QueueSettings(), "policy": oncelog.ProducerPolicy(), "url": "memory://",
    "key": "k", "reason": "no", "seconds": 1.0, "handler": print, "tables": [pa.table({"value": [b"x"]})],
}  # fmt: skip

SKIPPED = {
    "run",  # a worker's: until it is stopped
    # parts that rooms use of each other
    "batches", "serve", "scan", "desk", "store", "home", "hands", "adopted", "is_same", "is_of", "prepare", "extents",
    "leave_producer", "overlap", "adopt", "ingest", "acting", "own", "look",
    "position_at", "stage", "forget_producer", "reader", "begin_at",
    "add_done_callback", "set_result", "set_exception", "set_running_or_notify_cancel", "cancel",  # a Future's own
}  # fmt: skip


def made() -> dict[str, object]:
    """Return one of each thing that has public methods, all of one database in memory."""
    db = Database(MemoryStorage())
    log = db.log("orders", create=True)
    writer = log.writer()
    writer.append(b"first", id="first")
    queue = db.queue("work", create=True)
    queue.send(b"m", id="m")
    consumer = queue.consume("g")
    streams = db.streams("events", create=True)
    streams.append("s", Record(b"e"))
    inbox = Inbox(sqlite3.connect(":memory:"))
    return {
        "Database": db, "Log": log, "Writer": writer, "Producer": writer.as_producer("p"), "Reader": log.read(),
        "Tail": log.tail(), "Queue": queue, "Consumer": consumer, "Delivery": consumer.receive()[0],
        "DeadLetters": queue.dead_letters, "Streams": streams, "Subscription": streams.subscribe_all(), "Inbox": inbox,
        "oncelog": oncelog,
    }  # fmt: skip


def methods() -> Iterator[tuple[tuple[str, str], inspect.Signature]]:
    """Yield everything public that takes an argument: of which class, its name, and what it takes."""
    for kind, thing in made().items():
        names = ["connect", "worker", "Inbox", "Record", "Message"] if kind == "oncelog" else dir(type(thing))
        for name in names:
            found = getattr(thing if kind == "oncelog" else type(thing), name)
            if name.startswith("_") or name in SKIPPED or not callable(found) or inspect.iscoroutinefunction(found):
                continue
            signature = inspect.signature(found)
            if any(parameter != "self" for parameter in signature.parameters):
                yield (kind, name), signature


SIGNATURES = dict(methods())


def arguments_of(draw: Callable[[st.SearchStrategy[Any]], Any], signature: inspect.Signature) -> dict[str, object]:
    """Return arguments for a call, some of which are good."""
    given: dict[str, object] = {}
    for name, parameter in signature.parameters.items():
        if name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        optional = parameter.default is not parameter.empty
        is_good = draw(st.integers(0, 2)) == 0
        if is_good and optional and name not in ("wait_s", "timeout_s"):
            continue
        pool = CALLED if name in ("progress", "report", "judge") else SOON if name in WAITED else NASTY
        if is_good:
            given[name] = 0 if name in ("timeout_s", "wait_s") else GOOD.get(name, "x")
        else:
            given[name] = pool[draw(st.integers(0, len(pool) - 1))]
    return given


def called(call: Callable[..., object], given: dict[str, object]) -> tuple[object, str | None]:
    """Call; return what came of it, and what an ``InvalidArgument`` says. Any other error of the tree is good."""
    try:
        return call(**given), None
    except InvalidArgument as error:
        return None, str(error)
    except OncelogError:
        return None, None


def names_one(text: str, call: Callable[..., object], given: dict[str, object]) -> bool:
    """Tell whether a message names a parameter of the call, or shows a text that was given."""
    texts = [value.lower() for value in given.values() if isinstance(value, str) and value]
    names = [*inspect.signature(call).parameters, "settings", "key"]  # of settings a part; of an identity its key
    return any(name.lower().rstrip("s") in text for name in names) or any(value in text for value in texts)


class Things:
    """The things that are called, made again when a call has closed or deleted one of them."""

    def __init__(self) -> None:
        self._made: dict[str, object] | None = None

    def get(self, kind: str) -> object:
        """Return a thing to call."""
        if self._made is None or any(getattr(thing, "closed", False) is True for thing in self._made.values()):
            self.close()
            self._made = made()
        return self._made[kind]

    def close(self) -> None:
        """Close them all."""
        if self._made is not None:
            self._made["Inbox"].close()  # type: ignore[attr-defined]
            self._made["Database"].close()  # type: ignore[attr-defined]
        self._made = None


@pytest.fixture(scope="module")
def things() -> Iterator[Things]:
    """Return the things that are called."""
    found = Things()
    yield found
    found.close()


@pytest.mark.parametrize(("kind", "name"), list(SIGNATURES), ids=str)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=1000 if SOAK else 25,
    phases=[Phase.explicit, Phase.generate],  # what is drawn is small already
)
@given(data=st.data())
def test_whatever_is_given_what_comes_out_is_an_error_of_the_tree(
    things: Things, kind: str, name: str, data: st.DataObject
) -> None:
    """Bare TypeErrors, ValueErrors, OverflowErrors and errors of other people's libraries came out by the hundred."""
    given = arguments_of(data.draw, SIGNATURES[kind, name])
    call = getattr(things.get(kind), name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, refusal = called(call, given)
        if refusal is not None:
            assert names_one(refusal.lower(), call, given), f"{refusal} names no argument of {name}"
            return
        if isinstance(found, Iterator) and name != "tail":
            with pytest.MonkeyPatch.context():
                try:
                    next(iter(found), None)
                except OncelogError:
                    return
        if hasattr(found, "close") and kind in ("Log", "Queue", "Streams"):
            found.close()
