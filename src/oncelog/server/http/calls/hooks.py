"""``POST /v1/hooks/{name}``: what a provider posts becomes a record, once, however often it is posted.

The id comes from a header (``header:X-GitHub-Delivery``) or from the body by a JSON pointer, RFC 6901 (``json:/id``).
Two providers may send the same id. So each hook of a log that has several hooks sets ``id_prefix``: the ids that
the hook stores begin with it.
The provider's signature is the authorization. Providers change fields between retries, so by default the first body
stands, and a retry with another one is answered like a duplicate.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from oncelog import names
from oncelog.errors import IdConflict, InvalidArgument, NotAuthenticated, OncelogError
from oncelog.server.http import spelling
from oncelog.server.http.problem import HttpRefusal
from oncelog.server.http.request import Call, answer
from oncelog.server.security import scopes, signatures
from oncelog.server.security.signatures import Scheme
from oncelog.server.security.tokens import check_mode
from oncelog.shapes import UNREADABLE
from oncelog.types import Ack, Record

DEADLINE_S = 8.0
"""Providers wait about ten seconds."""

_PREFIX_BYTES_MAX = 64
_POINTER = re.compile(r"json:((?:/(?:[^~/]|~[01])*)+)")
_HEADER = re.compile(r"header:([A-Za-z0-9!#$%&'*+.^_`|~-]+)")


class HookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One webhook. ``secret_file`` has the secrets, one a line: two while one replaces the other."""

    log: str
    id: str
    id_prefix: str | None = None
    """What stands before the ids in the log. Hooks that write into one log must say it, also if it is empty."""
    signature: Scheme | Literal["none"] = "none"
    secret_file: str | None = None
    age_s: Annotated[float, Meta(gt=0, le=86_400)] = 300.0
    type: str | None = None
    """The type of the records; by default none."""
    on_conflict: Literal["original", "error"] = "original"


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook that was checked, with its secrets."""

    name: str
    settings: HookSettings
    secrets: tuple[bytes, ...]
    header: str | None
    pointer: tuple[str, ...] | None

    def __repr__(self) -> str:
        return f"<Hook {self.name}>"

    def id_of(self, headers: Mapping[str, str], body: bytes) -> str:
        """Return the id that a request brings; ``InvalidArgument`` when it brings none."""
        if self.header is not None:
            found: Any = headers.get(self.header)
        else:
            found = _pointed(body, self.pointer or ())
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found)
        if not isinstance(found, str) or not found:
            message = f"hook {self.name!r}: there is no id at {self.settings.id!r}"
            raise InvalidArgument(message)
        return (self.settings.id_prefix or "") + found


def _pointed(body: bytes, pointer: tuple[str, ...]) -> Any:
    """Return the value that a JSON pointer names; ``None`` if there is none."""
    try:
        found = msgspec.json.decode(body)
    except UNREADABLE:
        return None
    for part in pointer:
        if isinstance(found, dict):
            found = found.get(part)
        elif isinstance(found, list) and part.isascii() and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


class Hooks:
    """The webhooks of a server, by name, and what was counted of them."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """Take the tables of the settings; ``InvalidArgument`` names the hook and what is wrong with it."""
        self._hooks = {name: _hook(name, table) for name, table in given.items()}
        _check_apart(self._hooks.values())
        self.counts: Counter[tuple[str, str]] = Counter()

    def get(self, name: str) -> Hook | None:
        """Return a webhook."""
        return self._hooks.get(name)

    def count(self, name: str, outcome: str) -> None:
        """Count an outcome: stored, duplicate, conflict, no id, refused, failed."""
        self.counts[name, outcome] += 1


def _check_apart(hooks: Iterable[Hook]) -> None:
    """Refuse hooks of one log that leave open whether their ids may meet: the second event would count as a retry."""
    seen: dict[str, Hook] = {}
    for hook in hooks:
        other = seen.setdefault(hook.settings.log, hook)
        if other is not hook and None in (other.settings.id_prefix, hook.settings.id_prefix):
            message = (
                f"hooks.{other.name} and hooks.{hook.name} both write log {hook.settings.log!r}: an id that both send "
                "would be stored once. Give each a log of its own, or say id_prefix in both; ids that never meet, and "
                'ids of one provider, need none: id_prefix = ""'
            )
            raise InvalidArgument(message)


def _check_names(settings: HookSettings) -> None:
    """Refuse a log that callers may not write, and a prefix that no id can have."""
    names.check(settings.log)
    judged = scopes.subject("log", settings.log)
    if judged.internal or judged.queue_log:
        message = f"log {settings.log!r} is written by the server or through its queue alone"
        raise InvalidArgument(message)
    prefix = settings.id_prefix or ""
    if not prefix.isprintable() or len(prefix.encode("utf-8", "replace")) > _PREFIX_BYTES_MAX:
        message = f"id_prefix is {prefix[:40]!r}, must be printable text of at most {_PREFIX_BYTES_MAX} bytes"
        raise InvalidArgument(message)


def _hook(name: str, table: Any) -> Hook:
    where = f"hooks.{name}"
    try:
        settings = msgspec.convert(table, HookSettings)
        _check_names(settings)
    except (msgspec.ValidationError, InvalidArgument) as error:
        message = f"{where}: {error}"
        raise InvalidArgument(message) from None
    header, pointer = _HEADER.fullmatch(settings.id), _POINTER.fullmatch(settings.id)
    if header is None and pointer is None:
        message = f"{where}: id is {settings.id!r}, must be 'header:NAME' or 'json:/POINTER'"
        raise InvalidArgument(message)
    parts = pointer[1].split("/")[1:] if pointer else []
    return Hook(
        name=name,
        settings=settings,
        secrets=_secrets(where, settings),
        header=header[1].lower() if header else None,
        pointer=tuple(part.replace("~1", "/").replace("~0", "~") for part in parts) if pointer else None,
    )


def _secrets(where: str, settings: HookSettings) -> tuple[bytes, ...]:
    if settings.signature == "none":
        if settings.secret_file is not None:
            message = f"{where}: secret_file is there, and no signature: everybody could post; say which it is"
            raise InvalidArgument(message)
        return ()
    if settings.secret_file is None:
        message = f"{where}: signature {settings.signature!r} needs a secret_file"
        raise InvalidArgument(message)
    try:
        with open(settings.secret_file, "rb") as file:  # noqa: PTH123 (shorter)
            check_mode(Path(settings.secret_file), os.fstat(file.fileno()))
            found = tuple(line.strip() for line in file if line.strip())
    except OSError as error:
        message = f"{where}: secret_file {settings.secret_file}: {error.strerror}"
        raise InvalidArgument(message) from None
    if not found:
        message = f"{where}: secret_file {settings.secret_file} is empty"
        raise InvalidArgument(message)
    return found


async def post(call: Call) -> Response:
    """Store what a provider posts: 200 for stored, duplicate and conflict, so that it stops sending."""
    name = call.names["name"]
    hook = call.app.hooks.get(name)
    if hook is None:
        message = f"there is no hook {name!r}"
        raise HttpRefusal(404, message)
    try:
        found = await _stored(call, hook)
    except InvalidArgument:
        call.app.hooks.count(name, "no id")
        raise
    except NotAuthenticated:
        call.app.hooks.count(name, "refused")
        raise
    except OncelogError:
        call.app.hooks.count(name, "failed")
        raise
    call.app.hooks.count(name, "conflict" if found.conflict else "duplicate" if found.duplicate else "stored")
    return answer(spelling.ack(found))


async def _stored(call: Call, hook: Hook) -> Ack:
    settings = hook.settings
    body = await call.body.whole()
    if settings.signature != "none":
        signatures.check(
            settings.signature, hook.secrets, call.headers, body, clock=call.server.clock, age_s=settings.age_s
        )
    id = await call.apart(len(body), lambda: hook.id_of(call.headers, body))
    record = Record(body, id=id, type=settings.type)
    [found] = await call.server.seats[settings.log].append([record], timeout_s=DEADLINE_S, peer=call.peer)
    if isinstance(found, IdConflict) and settings.on_conflict == "original":
        return Ack(found.position, None, None, None, duplicate=True, conflict=True)
    if isinstance(found, OncelogError):
        raise found
    return found
