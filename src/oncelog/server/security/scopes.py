"""Scopes: which verbs a caller has, on which logs and queues. Pure.

A scope is verbs and a pattern of names, written ``append,read:shop/*``. A pattern is an exact name, a namespace with
everything in it (``shop/*``), or everything (``*``). A bare prefix is no pattern: ``a`` never covers ``ab``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from oncelog import names
from oncelog.errors import InvalidArgument, NotAllowed, NotFound, OncelogError
from oncelog.queue.send.topic import DEAD_LETTERS

Verb = Literal["look", "read", "append", "consume", "admin"]
"""``look``: counts, times, sizes. ``read``: values, ids, headers, and all of ``look``. ``append``: write records,
events and messages. ``consume``: receive and settle messages. ``admin``: create, configure, truncate, delete, and to
read ``_…``."""

Kind = Literal["log", "queue", "server"]
VERBS: tuple[Verb, ...] = get_args(Verb)
EVERYTHING = "*"
INTERNAL = "_"
"""Logs whose names begin so are the server's own: an admin reads them, nobody writes them."""

_QUEUE_LOG = "queue/"


class Scope(msgspec.Struct, frozen=True):
    """Verbs, and the pattern of the names that they hold for."""

    verbs: frozenset[Verb]
    pattern: str

    def __str__(self) -> str:
        return f"{','.join(verb for verb in VERBS if verb in self.verbs)}:{self.pattern}"


class Subject(NamedTuple):
    """What a call is judged by: ``x`` for ``conflicts.x``, the queue for its dead letters and its logs."""

    name: str
    internal: bool
    queue_log: bool


def parse(text: str) -> Scope:
    """Return a scope from its text, or raise ``InvalidArgument``.

    >>> str(parse("read,append:shop/*"))
    'read,append:shop/*'
    """
    verbs, colon, pattern = text.partition(":")
    found = frozenset(verb.strip() for verb in verbs.split(","))
    unknown = sorted(found - set(VERBS))
    if not colon or unknown:
        wrong = f"{unknown[0]!r} is no verb" if colon else "the names are missing"
        message = f"scope {text!r}: {wrong}; write verbs of {', '.join(VERBS)}, a colon, and a name, namespace/* or *"
        raise InvalidArgument(message)
    return Scope(found, _checked_pattern(text, pattern))  # type: ignore[arg-type]  # none is unknown


def _checked_pattern(text: str, pattern: str) -> str:
    if pattern == EVERYTHING:
        return pattern
    name = pattern.removesuffix("/*")
    if "*" in name:
        message = f"scope {text!r}: a * stands alone, or behind a namespace and a slash; a bare prefix is no pattern"
        raise InvalidArgument(message)
    names.check(name, "scope")
    return pattern


def covers(pattern: str, name: str) -> bool:
    """Tell whether a pattern covers a name.

    >>> covers("a", "ab"), covers("a/*", "a/b"), covers("a/*", "a"), covers("*", "b")
    (False, True, False, True)
    """
    if pattern == EVERYTHING:
        return True
    if pattern.endswith("/*"):
        return name.startswith(pattern[:-1])
    return name == pattern


def subject(kind: Kind, name: str) -> Subject:
    """Return what a name is judged by.

    >>> subject("log", "conflicts.queue/dlq.shop/emails/0").name
    'shop/emails'
    """
    name = name.removeprefix(names.CONFLICTS) if kind == "log" else name
    queue_log = kind == "log" and name.startswith(_QUEUE_LOG)
    if queue_log:
        name = name.removeprefix(_QUEUE_LOG).rpartition("/")[0]
    if queue_log or kind == "queue":
        name = name.removeprefix(DEAD_LETTERS)
    return Subject(name, kind == "log" and name.startswith(INTERNAL), queue_log)


def granted(scopes: Iterable[Scope], name: str) -> frozenset[str]:
    """Return the verbs that scopes give on a name. Who may read may look."""
    found: set[str] = set()
    for scope in scopes:
        if covers(scope.pattern, name):
            found |= scope.verbs
    return frozenset(found | {"look"} if "read" in found else found)


def decide(scopes: Sequence[Scope], verb: Verb, kind: Kind, name: str, *, making: bool = False) -> OncelogError | None:
    """Return why a call is refused, or ``None`` when it is allowed.

    A name that no scope covers is answered like one that is not there: nobody learns which names exist. ``making`` says
    that the call makes or deletes a log, which the Log face may not do with the logs of a queue.
    """
    if kind == "server":
        return None if _on_everything(scopes, verb) else NotAllowed(f"this needs the verb {verb!r} on '*'")
    judged = subject(kind, name)
    verbs = granted(scopes, judged.name)
    if not verbs:
        return missing(kind, name)
    if judged.internal:
        return _internal(verb, verbs, name)
    if judged.queue_log and (verb in ("append", "consume") or making):
        return NotAllowed(f"log {name!r} belongs to a queue: use the queue {judged.name!r}")
    if verb not in verbs:
        return NotAllowed(f"this needs the verb {verb!r} on {name!r}; there are {', '.join(sorted(verbs))}")
    return None


def _internal(verb: Verb, verbs: frozenset[str], name: str) -> OncelogError | None:
    if "admin" not in verbs:
        return missing("log", name)
    if verb not in ("look", "read"):
        return NotAllowed(f"log {name!r} is written by the server alone: it can only be read")
    return None


def _on_everything(scopes: Iterable[Scope], verb: Verb) -> bool:
    verbs = {verb for scope in scopes if scope.pattern == EVERYTHING for verb in scope.verbs}
    return verb in verbs or (verb == "look" and "read" in verbs)


def sees_everything(scopes: Sequence[Scope]) -> bool:
    """Tell whether these scopes let a caller look at every log and queue, the server's own too."""
    return _on_everything(scopes, "look") and _on_everything(scopes, "admin")


def missing(kind: Kind, name: str) -> NotFound:
    """Return the one answer for what is not there, and for what the caller may not know of."""
    return NotFound(f"there is no {kind} {name!r}: create=True makes it")
