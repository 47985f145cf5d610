"""Every error arrives whole in another process: pickled, copied, raised in a process pool."""

from __future__ import annotations

import copy
import importlib
import multiprocessing
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial

import pytest

import oncelog
from oncelog import errors
from oncelog.inbox.decisions import Undecided
from oncelog.log.producer_sessions import ProducerTaken
from oncelog.queue.state.database import StateBusy
from oncelog.server.http.problem import HttpRefusal
from oncelog.streams.expecting import Earlier
from oncelog.types import Ack
from oncelog.wire.failures import LogMoved, Misdirected

ACK = Ack(1, 2, 3, datetime(2026, 1, 1, tzinfo=UTC), duplicate=True)

Carry = Callable[[errors.OncelogError], errors.OncelogError]


def refused() -> errors.InvalidArgument:
    """Return an error whose fields were set after it was made."""
    error = errors.InvalidArgument("m")
    error.column, error.row, error.rule = "id", 3, "size"
    error.add_note("seen on the way")
    return error


SAMPLES: list[errors.OncelogError] = [
    errors.OncelogError("m"),
    refused(),
    errors.BadValue("m", position=3),
    errors.IdConflict("m", position=3),
    errors.IdConflict("m", position=None),
    errors.PartialOverlap("m", known=["a"], new=["b", "c"]),
    errors.AppendErrors("m", results=[ACK, errors.IdConflict("inner", position=7)]),
    errors.NotFound("m", first=3),
    errors.NotAllowed("m"),
    errors.NotAuthenticated("m"),
    errors.WrongExpectedVersion("m", expected="no_stream", actual=4),
    errors.Unavailable("m", retry_after_s=2.5, outcome="unknown"),
    errors.TooManyCalls("m", retry_after_s=2.5),
    errors.WriterFenced("m", outcome="unknown"),
    ProducerTaken("m", outcome="unknown"),
    LogMoved("m", outcome="unknown"),
    Misdirected("m"),
    errors.LogBusy("m", pid=3),
    errors.LeaseLost("m"),
    errors.EffectFailed("m", error="why"),
    errors.TooSlow("m"),
    errors.Unsupported("m"),
    errors.Closed("m"),
    errors.CorruptionError("m"),
    Undecided("m", retry_after_s=3, outcome="unknown"),
    Earlier("stream", 3, 4, 5),
    StateBusy("m", retry_after_s=2),
    HttpRefusal(413, "m", headers={"connection": "close"}),
]


def pickled(protocol: int, error: errors.OncelogError) -> errors.OncelogError:
    """Send an error through pickle."""
    loaded = pickle.loads(pickle.dumps(error, protocol))
    assert isinstance(loaded, errors.OncelogError)
    return loaded


CARRIES: list[Carry] = [
    copy.copy,
    copy.deepcopy,
    *(partial(pickled, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),
]


def content(error: object) -> object:
    """Return what two errors that are the same have in common."""
    if not isinstance(error, errors.OncelogError):
        return error
    fields = {name: list(map(content, value)) if name == "results" else value for name, value in vars(error).items()}
    return type(error), error.args, str(error), fields


def kinds(kind: type[errors.OncelogError]) -> Iterator[type[errors.OncelogError]]:
    """Yield a class of errors and all below it."""
    yield kind
    for below in kind.__subclasses__():
        yield from kinds(below)


def of_pool(number: int) -> None:
    """Fail in a worker of a pool."""
    raise SAMPLES[number]


def test_samples_have_every_class_of_errors() -> None:
    """A class that comes later is held to the same promise."""
    for module in pkgutil.walk_packages(oncelog.__path__, "oncelog."):
        if not module.name.startswith(("oncelog.spark", "oncelog.cli")) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {kind for kind in kinds(errors.OncelogError) if kind.__module__.startswith("oncelog.")}
    assert ours == set(map(type, SAMPLES))


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_pickle_and_copy(error: errors.OncelogError) -> None:
    """An error that cannot be loaded hides what happened; one that loses a field misleads the one who decides by it."""
    for carry in CARRIES:
        carried = carry(error)
        assert carried is not error
        assert content(carried) == content(error)


def test_errors_come_back_from_a_process_pool() -> None:
    """A pool cannot go on when an error does not load: multiprocessing waits for ever, executors call it broken."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        found = [pool.submit(of_pool, number).exception() for number in range(len(SAMPLES))]
    assert list(map(content, found)) == list(map(content, SAMPLES))
