"""Every error Oncelog raises, grouped by what the one who catches it does.

::

    OncelogError
    ├── InvalidArgument         fix the call
    │   ├── BadValue            a stored value is not of the type that a codec reads
    │   ├── IdConflict          this id is taken by other content
    │   └── PartialOverlap      a batch that is neither stored exactly so, nor all new
    ├── AppendErrors            some records of append_many were refused
    ├── NotFound                no such log, stream, topic, position
    ├── NotAllowed              the token of the caller does not allow this
    │   └── NotAuthenticated    there is no token, the server does not know it, or is not known itself
    ├── WrongExpectedVersion    the stream is at another version
    ├── Unavailable             try again
    │   └── TooManyCalls        this caller is over its rate: wait, then try again
    ├── WriterFenced            another writer took the log: stop
    ├── LogBusy                 another live process holds a local log
    ├── LeaseLost               this token is no longer the owner
    ├── EffectFailed            this effect failed for good, and is not run again
    ├── TooSlow                 a subscriber fell too far behind
    ├── Unsupported             this store, or this version, lacks what is needed
    ├── Closed                  the handle was closed, or belongs to the process before a fork
    └── CorruptionError         stop and look
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from oncelog.redaction import redacted

Outcome = Literal["unknown", "not written"]


class OncelogError(Exception):
    """The root of the tree: catches everything Oncelog raises on purpose.

    Every error survives ``pickle``, ``copy`` and a process pool, with all its fields. No message shows a password.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(redacted(part) if isinstance(part, str) else part for part in args))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make an equal error. Python's own way calls the class with the message alone, which fails
        where a field must be named; a process pool that cannot load an error waits for ever.
        """
        return _remake, (type(self), self.args), self.__dict__


def _remake(kind: type[OncelogError], args: tuple[Any, ...]) -> OncelogError:
    """Make an error without its ``__init__``: its fields are set from its state."""
    return kind.__new__(kind, *args)


class InvalidArgument(OncelogError, ValueError):
    """The call is wrong and will stay wrong: fix it. Nothing was written.

    Where a record or a table was refused, ``column`` and ``rule`` say which column breaks which rule, and ``row`` in
    which row first (``None``: as a whole).
    """

    column: str | None = None
    row: int | None = None
    rule: str | None = None


class BadValue(InvalidArgument):
    """A stored value is not of the type that a codec reads; ``position`` is where it stands, if that is known.

    The bytes stay as they are, and so does the error: read them with another codec. A worker does not try such a
    message again: it goes to the dead letters.
    """

    def __init__(self, message: str, *, position: int | None) -> None:
        super().__init__(message)
        self.position = position


class IdConflict(InvalidArgument):
    """This id is taken by other content; ``position`` is where the first one stands, if it stands in a log."""

    def __init__(self, message: str, *, position: int | None) -> None:
        super().__init__(message)
        self.position = position


class PartialOverlap(InvalidArgument):
    """A batch that is not exactly one that was stored, nor all new. Nothing was written.

    ``known`` and ``new`` are the ids (in the batch's order) that were and were not found.
    """

    def __init__(self, message: str, *, known: Sequence[str], new: Sequence[str]) -> None:
        super().__init__(message)
        self.known = tuple(known)
        self.new = tuple(new)


class AppendErrors(OncelogError):
    """Some records were refused; every other one is stored.

    ``results`` has, for each record in the order given, its ``Ack`` or the error that refused it.
    """

    def __init__(self, message: str, *, results: Sequence[Any]) -> None:
        super().__init__(message)
        self.results = tuple(results)


class NotFound(OncelogError, LookupError):
    """No such log, stream, topic or position; ``first`` is the first position there is, if it was truncated."""

    def __init__(self, message: str, *, first: int | None = None) -> None:
        super().__init__(message)
        self.first = first


class NotAllowed(OncelogError):
    """The caller's token does not allow this call. Nothing was done. Ask for a token with the verb that is named."""


class NotAuthenticated(NotAllowed):
    """The call came without a token, or with one that is unknown, revoked or expired; or the client does not trust the
    certificate of the server. Nothing was done.
    """


class WrongExpectedVersion(OncelogError):
    """The stream is at ``actual``, not at ``expected``. Nothing was written."""

    def __init__(self, message: str, *, expected: int | str, actual: int | None) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class Unavailable(OncelogError):
    """Try again: storage is away, too busy, or time ran out.

    ``outcome`` is ``"unknown"`` when the write may or may not be stored: retry it with the same id.
    """

    def __init__(self, message: str, *, retry_after_s: float = 1.0, outcome: Outcome = "not written") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.outcome = outcome


class TooManyCalls(Unavailable):
    """This caller is over its rate, or failed to log in too often. Nothing was done: wait ``retry_after_s``."""


class WriterFenced(OncelogError):
    """Another writer took the log: stop, reopen if you must. ``outcome`` is that of the write in hand."""

    def __init__(self, message: str, *, outcome: Outcome = "not written") -> None:
        super().__init__(message)
        self.outcome = outcome


class LogBusy(OncelogError):
    """Another live process (``pid``, where it is known) holds this local log."""

    def __init__(self, message: str, *, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class LeaseLost(OncelogError):
    """This token is no longer the owner: what was done under it must not be recorded."""


class EffectFailed(OncelogError):
    """This effect failed for good, for the reason in ``error``: it is not run again unless somebody says so.

    Raised by a handler, it says so of its own effect.
    """

    def __init__(self, message: str, *, error: str | None = None) -> None:
        super().__init__(message)
        self.error = message if error is None else error


class TooSlow(OncelogError):
    """A subscriber fell too far behind and was ended; subscribe again from the last position seen."""


class Unsupported(OncelogError):
    """This store lacks what is needed, or the bytes are of a newer format than this version reads."""


class Closed(OncelogError):
    """The handle was closed, or belongs to the process before a fork: open a new one."""


class CorruptionError(OncelogError):
    """Stored bytes are not what was written: stop and look. The message says what and where."""
