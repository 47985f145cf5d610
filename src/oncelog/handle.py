"""Handles: objects that can be closed, and that belong to the process that opened them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import queue
import sys
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from oncelog.clock import SYSTEM
from oncelog.errors import Closed, OncelogError, Unavailable

_PACKAGE = str(Path(__file__).parent) + os.sep
_EDGES = tuple(_PACKAGE + room + os.sep for room in ("cli", "spark", "testing", "workers"))
"""Rooms that use the package as its users do: they hold none of its locks."""

_BETWEEN = (contextlib.__file__, functools.__file__)
"""Frames of these stand between two frames of the package."""


class Generation:
    """Counts the forks that led to this process."""

    number = 0


def _forked() -> None:
    Generation.number += 1


os.register_at_fork(after_in_child=_forked)

EXIT_S = 10.0
"""So long the end of the interpreter waits, in all, for what was submitted and for what was left open."""

CLOSE_S = 3.0
"""So long it waits at least for what was left open: a server that does not answer must not cut off other writers."""

_left_open: weakref.WeakSet[Handle] = weakref.WeakSet()
_backlogs: weakref.WeakSet[Backlog] = weakref.WeakSet()


class _Reaper:
    """Closes what was dropped. A ``__del__`` runs in the midst of anything, with any lock held, and must not wait: it
    leaves its handle in a queue that may be used there, for a thread that runs already.
    """

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # threads do not survive a fork

    def _begin(self) -> None:
        self.dropped: queue.SimpleQueue[Handle] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Make sure that the thread runs. Without a thread, what is dropped is closed at exit."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=_reap, args=(self.dropped,), name="oncelog-reaper", daemon=True)
                with contextlib.suppress(RuntimeError):
                    thread.start()
                    self._thread = thread


def _reap(dropped: queue.SimpleQueue[Handle]) -> None:
    """Close each in a thread of its own: a storage that does not answer must not hold up the others."""
    while True:
        args = dropped.get(), "was dropped without close()"
        try:
            threading.Thread(target=_close_one, args=args, name="oncelog-closing", daemon=True).start()
        except RuntimeError:
            _close_one(*args)
        del args


_reaper = _Reaper()


def close_soon(handle: Handle) -> None:
    """Have a handle that would be closed at exit closed by another thread, with a ``ResourceWarning``: its user has
    dropped it. May be called by a ``__del__``.
    """
    if not handle._closed and handle._of_this_process and handle in _left_open:  # noqa: SLF001
        _reaper.dropped.put(handle)


class OfOneProcess:
    """What native clients and locks make useless after a fork. ``_check_process`` says so in a child."""

    _what = "handle"

    def __init__(self) -> None:
        self._generation = Generation.number

    def _check_process(self) -> None:
        if self._generation != Generation.number:
            message = f"this {self._what} belongs to the process before a fork: open a new one here"
            raise Closed(message)

    @property
    def _of_this_process(self) -> bool:
        return self._generation == Generation.number


class Backlog(OfOneProcess, ABC):
    """What was submitted, and is worked off by a thread that ends with the interpreter. So the interpreter waits for
    it, before it closes what was left open.
    """

    def __init__(self) -> None:
        super().__init__()
        _backlogs.add(self)

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How much is waiting, or being handled."""

    @abstractmethod
    def wait_idle(self, timeout_s: float | None) -> bool:
        """Return whether all was handled within the time."""


class Handle(OfOneProcess):
    """What can be closed, and used in a ``with``. It does not survive a fork."""

    def __init__(self) -> None:
        super().__init__()
        self._closed = False

    def _check_usable(self) -> None:
        if self._generation != Generation.number:
            self._check_process()
        if self._closed:
            message = f"this {self._what} is closed"
            raise Closed(message)

    @property
    def closed(self) -> bool:
        """Whether this handle was closed."""
        return self._closed

    def close(self) -> None:
        """Close; may be repeated."""
        self._closed = True

    def _closes_now(self) -> bool:
        """Note that the handle is closed. Tell whether its parts have to be closed now: only once, and not in a child
        of a fork, whose parts belong to the parent.
        """
        if self._closed:
            return False
        self._closed = True
        return self._of_this_process

    def _begin_to_close(self) -> None:
        """Take nothing more, as far as that needs no lock: ``close`` runs soon, in a thread of its own."""

    def _close_at_exit(self) -> None:
        """Have this closed when the interpreter ends, if nobody has by then: what was submitted would be lost."""
        _left_open.add(self)
        _reaper.start()

    @property
    def _pending(self) -> int:
        """How much would be lost if this were not closed."""
        return 0

    def __repr__(self) -> str:
        """Say what this is, by its name where it has one, and whether it was closed."""
        name = getattr(self, "name", None) or getattr(self, "url", None)
        return f"<oncelog {self._what}{f' {name!r}' if name else ''}{', closed' if self._closed else ''}>"

    def __enter__(self) -> Self:
        """Return the handle itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    async def __aenter__(self) -> Self:
        """Return the handle itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, without blocking the event loop. Ends when the handle is closed, also if the task is cancelled."""
        from oncelog.concurrency.pending import later, uncancelled  # noqa: PLC0415

        await uncancelled(later(self.__exit__, kind, error, trace))


_H = TypeVar("_H", bound=Handle)
_T = TypeVar("_T")
_P = ParamSpec("_P")


def weakly(method: Callable[_P, None]) -> Callable[_P, None]:
    """Return what calls a bound method as long as its object lives, and does not keep the object alive."""
    reference = weakref.WeakMethod(method)

    def call(*args: _P.args, **kwargs: _P.kwargs) -> None:
        found = reference()
        if found is not None:
            found(*args, **kwargs)

    return call


def closes_anywhere(close: Callable[Concatenate[_H, _P], None]) -> Callable[Concatenate[_H, _P], None]:
    """Let ``close`` be called anywhere, also by a signal handler, a ``__del__`` or a callback.

    Such code runs in the midst of whatever its thread was doing. If that is a call of this package, the call may hold
    locks, and cannot go on before the handler returns: to close then and there would wait for ever. So closing goes on
    in a thread of its own, as soon as the call is over. The process does not end before that thread has; an error is
    shown by ``threading.excepthook``.
    """

    @functools.wraps(close)
    def wrapped(self: _H, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if not is_inside_call(sys._getframe(1)):  # noqa: SLF001
            close(self, *args, **kwargs)
            return
        self._begin_to_close()
        # Not a daemon, whatever thread this is: the interpreter waits for it.
        thread = threading.Thread(target=close, args=(self, *args), kwargs=kwargs, name="oncelog-closing", daemon=False)
        try:
            thread.start()
        except RuntimeError as error:
            message = f"no thread to close this {self._what} with ({error}): what is pending may be stored or not"
            raise Unavailable(message, outcome="unknown") from error

    return wrapped


def is_inside_call(caller: FrameType | None) -> bool:
    """Tell whether a call of this package is under way, in this thread, below foreign code that calls the package
    again. ``caller`` is the frame that calls.
    """
    frame = caller
    while frame is not None and (_is_ours(frame) or frame.f_code.co_filename in _BETWEEN):
        frame = frame.f_back
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    return frame is not None


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_PACKAGE) and not name.startswith(_EDGES)


def _listed(found: Iterable[_T]) -> list[_T]:
    """Return what a set has, also if another thread adds to the set meanwhile: a daemon does not stop at exit."""
    while True:
        with contextlib.suppress(RuntimeError):  # the set changed its size
            return list(found)


@atexit.register
def _close_left_open() -> None:
    """Close what nobody has closed, at the end of the interpreter, and say so."""
    deadline_us = SYSTEM.elapsed_us() + int(EXIT_S * 1e6)
    for one in [one for one in _listed(_backlogs) if one._of_this_process]:  # noqa: SLF001
        if not one.wait_idle(max(0.0, (deadline_us - SYSTEM.elapsed_us()) / 1e6)):
            _say(f"{one.waiting} submissions have no answer: they may be lost, retry with the same ids")
    left = [handle for handle in _listed(_left_open) if handle._of_this_process and not handle.closed]  # noqa: SLF001
    threads = [
        threading.Thread(target=_close_one, args=(handle, "was left open until exit"), daemon=True) for handle in left
    ]
    for handle, thread in zip(left, threads, strict=True):
        try:
            thread.start()
        except RuntimeError:  # Python 3.12 starts no thread at exit
            _close_one(handle, "was left open until exit")
    deadline_us = max(deadline_us, SYSTEM.elapsed_us() + int(CLOSE_S * 1e6))
    for handle, thread in zip(left, threads, strict=True):
        if thread.ident is not None:
            thread.join(max(0.0, (deadline_us - SYSTEM.elapsed_us()) / 1e6))
        if not handle.closed:
            _say(f"the {handle._what} could not be closed in time: what it had pending may be lost")  # noqa: SLF001


def _close_one(handle: Handle, fate: str) -> None:
    count = handle._pending  # noqa: SLF001
    pending = f", with {count} records pending" if count else ""
    message = f"the {handle._what} {fate}{pending}: close it, or use it in a with"  # noqa: SLF001
    try:
        with contextlib.suppress(ResourceWarning):
            warnings.warn(message, ResourceWarning, stacklevel=1, source=handle)
        handle.close()
    except OncelogError as error:
        _say(str(error))


def _say(text: str) -> None:
    if sys.stderr is not None:
        shown = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
        sys.stderr.write(f"oncelog, at exit: {shown}\n")
