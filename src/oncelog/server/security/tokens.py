"""Tokens: 256 random bits that only their owner has. The server keeps the SHA-256 of each, in one file of mode 0600.

The file is replaced as a whole and read again when it changes. A file that cannot be read leaves the tokens as they
were: a damaged file neither locks callers out nor lets new ones in.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from oncelog import names
from oncelog.clock import Clock
from oncelog.errors import InvalidArgument, NotFound
from oncelog.server.security import scopes
from oncelog.server.security.scopes import Scope
from oncelog.shapes import UNREADABLE

PREFIX = "once_"
"""What every token begins with: programs that look for leaked secrets recognise it."""

_SECRET_BYTES = 32
_VERSION = 1
_log = logging.getLogger("oncelog.server.security")


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is stored: everything but the token itself."""

    name: str
    sha256: str
    allow: list[str]
    created_us: int
    expires_us: int | None = None

    def scopes(self) -> list[Scope]:
        """Return what the token allows."""
        return [scopes.parse(text) for text in self.allow]


class Store(Protocol):
    """Where tokens are kept, other than in a file."""

    def stored(self) -> list[Token]:
        """Return the tokens as they are stored now."""
        ...

    def change(self, change: Callable[[list[Token]], list[Token]]) -> None:
        """Replace the tokens by changed ones, as a whole, one process at a time."""
        ...


Place = Path | Store


class _StoredTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    tokens: list[Token]


class KnownToken(msgspec.Struct, frozen=True):
    """A token of the file, with its scopes parsed."""

    token: Token
    scopes: tuple[Scope, ...]


def digest(secret: str) -> str:
    """Return what is stored of a token."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def create(path: Place, name: str, allow: Sequence[str], clock: Clock, *, expires_s: float | None = None) -> str:
    """Add a token to a file, or to a database; return the token, which is shown once and stored nowhere.

    ``InvalidArgument`` for a name that is taken, and for a scope that is none.
    """
    names.check(name, "token")
    if not allow:
        message = f"token {name!r}: say what it allows, such as append:orders"
        raise InvalidArgument(message)
    allowed = [str(scopes.parse(text)) for text in allow]
    now_us = clock.now_us()
    expires_us = None if expires_s is None else now_us + int(expires_s * 1e6)
    secret = PREFIX + base64.urlsafe_b64encode(clock.token(_SECRET_BYTES)).decode().rstrip("=")
    made = Token(name=name, sha256=digest(secret), allow=allowed, created_us=now_us, expires_us=expires_us)

    def added(found: list[Token]) -> list[Token]:
        if any(token.name == name for token in found):
            message = f"there is a token {name!r} already: revoke it first, or choose another name"
            raise InvalidArgument(message)
        return [*found, made]

    _change(path, added)
    return secret


def revoke(path: Place, name: str) -> None:
    """Remove a token from a file, or from a database; ``NotFound`` when it is not there."""

    def removed(found: list[Token]) -> list[Token]:
        left = [token for token in found if token.name != name]
        if len(left) == len(found):
            message = f"there is no token {name!r} in {path}"
            raise NotFound(message)
        return left

    _change(path, removed)


def stored(path: Place) -> list[Token]:
    """Return the tokens of a file, or of a database. ``InvalidArgument`` for a file that others can read, or that is
    damaged.
    """
    if not isinstance(path, Path):
        return path.stored()
    try:
        with path.open("rb") as file:
            check_mode(path, os.fstat(file.fileno()))
            data = file.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise InvalidArgument(message) from error
    try:
        found = msgspec.json.decode(data, type=_StoredTokens)
    except UNREADABLE as error:
        message = f"{path}: is no file of tokens ({error})"
        raise InvalidArgument(message) from error
    if found.version != _VERSION:
        message = f"{path}: has version {found.version}, this Oncelog reads version {_VERSION}"
        raise InvalidArgument(message)
    return found.tokens


def check_mode(path: Path, status: os.stat_result) -> None:
    """Raise ``InvalidArgument`` for a file with secrets that others than its owner, or root, can read or change."""
    if stat.S_IMODE(status.st_mode) & 0o077:
        message = f"{path}: others can read or change the secrets in it: chmod 600 {path}"
        raise InvalidArgument(message)
    if status.st_uid not in {os.geteuid(), 0}:
        message = f"{path}: belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}: chown it"
        raise InvalidArgument(message)


def _change(path: Place, change: Callable[[list[Token]], list[Token]]) -> None:
    """Replace the file by a changed one, as a whole, one process at a time."""
    if not isinstance(path, Path):
        path.change(change)
        return
    with _locked(path):
        tokens = change(stored(path))
        descriptor, new = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600, and nobody's before
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(_StoredTokens(_VERSION, tokens)), indent=1))
            file.flush()
            os.fsync(descriptor)
        Path(new).replace(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path.with_name(f"{path.name}.lock"), flags, 0o600)
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise InvalidArgument(message) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class TokenFile:
    """The tokens of a file as they are now. Each question looks whether the file has changed: a revoked token ends
    at once.

    Invariant: ``_known`` is the content of the last file that could be read, never an empty one in its place.
    """

    def __init__(self, path: Path) -> None:
        """Read the file; ``InvalidArgument`` when that is not possible: a server starts with good tokens or not."""
        self._path = path
        self._seen = self._status()
        self._known = by_digest(stored(path))
        self.damaged: str | None = None
        self.required = True
        """Callers need a token, also if the file has none."""

    def find(self, sha256: str) -> KnownToken | None:
        """Return the token with this digest."""
        self._refresh()
        return self._known.get(sha256)

    def all(self) -> list[Token]:
        """Return all tokens, the oldest first."""
        self._refresh()
        return [known.token for known in self._known.values()]

    def _refresh(self) -> None:
        status = self._status()
        if status == self._seen:
            return
        self._seen = status
        try:
            if status is None:
                message = f"{self._path}: the file of tokens is gone"
                raise InvalidArgument(message)  # noqa: TRY301
            self._known, self.damaged = by_digest(stored(self._path)), None
            _log.info("tokens were read again", extra={"path": str(self._path), "tokens": len(self._known)})
        except InvalidArgument as error:
            self.damaged = str(error)
            _log.error("tokens stay as they were", extra={"path": str(self._path), "reason": str(error)})

    def _status(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode)


def by_digest(tokens: Sequence[Token]) -> Mapping[str, KnownToken]:
    """Return tokens by what is stored of them, with their scopes."""
    return {token.sha256: KnownToken(token, tuple(token.scopes())) for token in tokens}
