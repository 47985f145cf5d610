"""Where a server is, and by what right a client may speak to it: from a URL, options and the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from oncelog.errors import InvalidArgument

PORT = 7676
TOKEN_VARIABLE = "ONCELOG_TOKEN"  # noqa: S105 (its name, not its value)
CA_VARIABLE = "ONCELOG_TLS_CA"
_TLS = "oncelog+tls"
_OPTIONS = ("token", "token_file", "tls", "tls_ca", "tls_cert", "tls_key", "tls_name")


class Address(NamedTuple):
    """A server, or several of one database, and what is needed to speak to them. ``repr`` shows no secret."""

    url: str
    targets: tuple[str, ...]
    token: str | None = None
    token_file: Path | None = None
    tls: bool = False
    tls_ca: bytes | None = None
    tls_cert: bytes | None = None
    tls_key: bytes | None = None
    tls_name: str | None = None

    def bearer(self) -> str | None:
        """Return the token as it is now: a file may have a new one."""
        if self.token_file is None:
            return self.token
        try:
            found = self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"token_file {str(self.token_file)!r} cannot be read: {error}"
            raise InvalidArgument(message) from error
        return _checked_token(found)

    def __repr__(self) -> str:
        """Show where it is."""
        return f"Address({self.url!r})"


def parse(url: str, options: Mapping[str, str]) -> Address:
    """Return the address of a server; ``InvalidArgument`` for a URL with a secret, or with more than host and port.

    ``oncelog+tls://host:7676`` is ``oncelog://host:7676`` with the option ``tls``.
    """
    scheme = url.partition("://")[0]
    found = targets(url)
    for name in options:
        if name not in _OPTIONS:
            message = f"option {name!r}: those of a server are {', '.join(_OPTIONS)}"
            raise InvalidArgument(message)
    given = options.get("token")
    file = options.get("token_file")
    if given is not None and file is not None:
        message = "token and token_file are both given: one of them is enough"
        raise InvalidArgument(message)
    tls = _is_tls(options, by_scheme=scheme == _TLS)
    if tls and "tls_ca" not in options and os.environ.get(CA_VARIABLE):
        options = {**options, "tls_ca": os.environ[CA_VARIABLE]}
    token = given if given is not None or file is not None else os.environ.get(TOKEN_VARIABLE) or None
    return Address(
        url=f"{scheme}://{','.join(found)}",
        targets=found,
        token=None if token is None else _checked_token(token),
        token_file=None if file is None else Path(file),
        tls=tls,
        tls_ca=_bytes_of(options, "tls_ca"),
        tls_cert=_bytes_of(options, "tls_cert"),
        tls_key=_bytes_of(options, "tls_key"),
        tls_name=options.get("tls_name"),
    )


def targets(url: str) -> tuple[str, ...]:
    """Return the addresses of a URL, each once: ``oncelog://a:7676,b:7676``."""
    scheme, separator, rest = url.partition("://")
    return tuple(dict.fromkeys(_target(f"{scheme}{separator}{part}") for part in rest.split(",")))


def _target(url: str) -> str:
    """Return host and port. The URL is not shown when it may have a secret in it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        message = f"not a URL of a server ({error}): use oncelog://host:{PORT}"
        raise InvalidArgument(message) from error
    if "@" in parts.netloc or parts.query or parts.fragment:
        message = (
            f"a URL of a server is oncelog://host:{PORT}, without more: URLs end up in logs. "
            f"Give a token by the option token or token_file, or by {TOKEN_VARIABLE}"
        )
        raise InvalidArgument(message)
    if not host or parts.path not in ("", "/"):
        message = f"{url!r}: a URL of a server is oncelog://host:{PORT}, without more"
        raise InvalidArgument(message)
    return f"{f'[{host}]' if ':' in host else host}:{PORT if port is None else port}"


def _checked_token(token: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        message = "the token has characters that no token has: check the option, the file or the environment"
        raise InvalidArgument(message)
    return token


def _is_tls(options: Mapping[str, str], *, by_scheme: bool) -> bool:
    text = options.get("tls")
    if text not in (None, "true", "false"):
        message = f"option tls is {text!r}, must be 'true' or 'false'"
        raise InvalidArgument(message)
    implied = any(options.get(name) is not None for name in ("tls_ca", "tls_cert", "tls_key", "tls_name"))
    if text == "false" and implied:
        message = "options tls_… are given, and tls is 'false'"
        raise InvalidArgument(message)
    if text == "false" and by_scheme:
        message = f"the URL begins with {_TLS}://, and tls is 'false'"
        raise InvalidArgument(message)
    return text == "true" or implied or by_scheme


def _bytes_of(options: Mapping[str, str], name: str) -> bytes | None:
    path = options.get(name)
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        message = f"option {name}: {path!r} cannot be read: {error}"
        raise InvalidArgument(message) from error
