"""Paths: matched as they came, split before they are decoded.

The name of a log is one part of the path; its ``/`` is written ``%2F``. If the path were decoded first, the log
``a/records/1`` would be record 1 of log ``a``. For proxies that decode ``%2F`` a name may come in the query instead:
``/v1/logs/-/records?log=shop/orders``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote

from oncelog.errors import InvalidArgument

ELSEWHERE = "-"
"""Stands in the path for a name that is in the query."""


class Template(NamedTuple):
    """A path with parts that are names: ``/v1/logs/{log}/records``."""

    text: str
    parts: tuple[str, ...]
    names: tuple[str | None, ...]

    @classmethod
    def of(cls, text: str) -> Template:
        """Return the template of a text."""
        parts = tuple(text.strip("/").split("/"))
        return cls(text, parts, tuple(part[1:-1] if part.startswith("{") else None for part in parts))

    def match(self, parts: tuple[str, ...]) -> dict[str, str] | None:
        """Return the raw names in a path, or ``None`` for another path."""
        if len(parts) != len(self.parts):
            return None
        found = {}
        for name, wanted, part in zip(self.names, self.parts, parts, strict=True):
            if name is not None and part:
                found[name] = part
            elif part != wanted:
                return None
        return found


def split(raw_path: bytes) -> tuple[str, ...]:
    """Return the parts of a path, not decoded; nothing for bytes that are no path.

    >>> split(b"/v1/logs/shop%2Forders")
    ('v1', 'logs', 'shop%2Forders')
    """
    try:
        text = raw_path.decode("ascii")
    except UnicodeDecodeError:
        return ()
    return tuple(text.removeprefix("/").split("/"))


def decoded(part: str) -> str:
    """Return a part as the name it stands for; ``InvalidArgument`` for bytes that are no UTF-8.

    >>> decoded("shop%2Forders")
    'shop/orders'
    """
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError as error:
        message = f"the path has a part that is no UTF-8: {part!r}"
        raise InvalidArgument(message) from error


def names(found: Mapping[str, str], query: Mapping[str, str]) -> dict[str, str]:
    """Return the names that a call is about, from its path or its query.

    >>> names({"log": "-"}, {"log": "shop/orders"})
    {'log': 'shop/orders'}
    """
    return {name: _name(name, part, query.get(name)) for name, part in found.items()}


def _name(name: str, part: str, asked: str | None) -> str:
    if asked is None:
        return decoded(part)
    if part not in (ELSEWHERE, quote(asked, safe="")):
        message = f"the path says {decoded(part)!r} and the query {name}={asked!r}: write '-' in the path"
        raise InvalidArgument(message)
    return asked


def spelled(*parts: object) -> str:
    """Return a path of parts, each encoded.

    >>> spelled("v1", "logs", "shop/orders", "records", 7)
    '/v1/logs/shop%2Forders/records/7'
    """
    return "/" + "/".join(quote(str(part), safe="") for part in parts)
