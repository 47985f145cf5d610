"""Which keys there may be: relative paths that mean the same thing to every home."""

from __future__ import annotations

import re

from oncelog.errors import InvalidArgument

_KEY = re.compile(r"[A-Za-z0-9._~%/-]+")


def check_key(key: str) -> str:
    """Return the key, or raise ``InvalidArgument`` saying what is wrong with it.

    >>> check_key("manifest/00000000000000000001")
    'manifest/00000000000000000001'
    """
    if not _KEY.fullmatch(key):
        message = f"key {key!r}: only ASCII letters, digits and ._-/~% are allowed, and at least one of them"
        raise InvalidArgument(message)
    if any(part in {"", ".", ".."} for part in key.split("/")):
        message = f"key {key!r}: a part is empty, '.' or '..'"
        raise InvalidArgument(message)
    return key


def is_home_key(key: str) -> bool:
    """Tell whether a home may have this key."""
    try:
        check_home_key(key)
    except InvalidArgument:
        return False
    return True


def check_home_key(key: str) -> str:
    """Return the key of a home, or raise ``InvalidArgument``: it is a key of one part."""
    if "/" in check_key(key):
        message = f"key {key!r} of a home: no '/' is allowed"
        raise InvalidArgument(message)
    return key


def check_prefix(prefix: str) -> str:
    """Return the prefix of keys, or raise ``InvalidArgument``: it is empty or ends with ``/``."""
    if prefix and not prefix.endswith("/"):
        message = f"prefix {prefix!r}: must be empty or end with '/'"
        raise InvalidArgument(message)
    if prefix:
        check_key(prefix[:-1])
    return prefix
