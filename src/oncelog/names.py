"""Names of logs: what is allowed, and the key of the home that a name stands for."""

from __future__ import annotations

import hashlib
import unicodedata
from urllib.parse import unquote

from oncelog.errors import InvalidArgument
from oncelog.limits import NAME_BYTES_MAX

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_KEY_BYTES_MAX = 180
SERVER_SCHEMES = ("oncelog:", "oncelog+tls:")
"""What the URL of a server begins with."""

CONFLICTS = "conflicts."
"""What the name of a log of conflicts begins with, before that of the log they conflict with."""


def check(name: object, what: str = "log") -> str:
    """Return the name, or raise ``InvalidArgument`` saying which rule it breaks.

    A name is 1 to 255 bytes of UTF-8 without control characters; a ``/`` separates a namespace from the rest, and no
    part may be empty, ``.`` or ``..``.
    """
    if not isinstance(name, str):
        message = f"a {what}'s name is a str, not {type(name).__name__}"
        raise InvalidArgument(message)
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        message = f"{what} name {name!r} is not valid Unicode: remove the lone surrogate"
        raise InvalidArgument(message) from error
    if not 1 <= size_bytes <= NAME_BYTES_MAX:
        message = f"{what} name of {size_bytes} bytes: must be 1 to {NAME_BYTES_MAX} bytes of UTF-8"
        raise InvalidArgument(message)
    if any(unicodedata.category(character) == "Cc" for character in name):
        message = f"{what} name {name!r} holds a control character"
        raise InvalidArgument(message)
    if any(part in ("", ".", "..") for part in name.split("/")):
        message = f"{what} name {name!r}: no part between slashes may be empty, '.' or '..'"
        raise InvalidArgument(message)
    return name


def home_key(name: str) -> str:
    """Return the key of the log's home: the name, percent-encoded, and shortened by a hash when that is long.

    What conflicts with a log lives where that log does.
    """
    name = name.removeprefix(CONFLICTS)
    encoded = "".join(c if c in _PLAIN else "".join(f"%{byte:02X}" for byte in c.encode()) for c in name)
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if len(encoded) <= _KEY_BYTES_MAX:
        return encoded
    digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return f"{encoded[: _KEY_BYTES_MAX - 40]}~{digest}"


def of_key(key: str) -> str | None:
    """Return the name whose home has a key; ``None`` when it was too long to be told from it.

    >>> of_key(home_key("shop/ä"))
    'shop/ä'
    """
    return None if "~" in key else unquote(key)
