"""What a browser may be made to do by a page of another site: nothing.

A server without tokens on loopback is reached by every page that its user looks at, and by a name that a foreign DNS
server points at 127.0.0.1. Such a request is refused by its ``Origin``, its ``Sec-Fetch-Site`` and its ``Host``. A
request that carries a token brings what no foreign page has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from oncelog.server.http.problem import HttpRefusal
from oncelog.server.security.exposure import is_loopback


def check(headers: Mapping[str, str], *, scheme: str, origins: Collection[str], ambient: bool, loopback: bool) -> None:
    """Raise ``Refused`` for a request that another site's page may have sent.

    ``ambient``: whether the server would serve it without a token. ``loopback``: whether only this machine reaches the
    server. ``origins`` are pages that are allowed.
    """
    if not ambient:
        return
    host = headers.get("host", "")
    if loopback and not is_loopback(_name(host)):
        message = f"Host is {host[:100]!r}: without tokens this server answers to 127.0.0.1, [::1] and localhost alone"
        raise HttpRefusal(403, message)
    origin = headers.get("origin")
    if origin in origins:
        return
    if origin is not None and origin != f"{scheme}://{host}":
        message = f"the page of {origin[:100]!r} may not call this server: list it under security.origins"
        raise HttpRefusal(403, message)
    if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        message = "a page of another site may not call this server"
        raise HttpRefusal(403, message)


def _name(host: str) -> str:
    """Return the name of a ``Host`` header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def cors(headers: Mapping[str, str], origins: Collection[str]) -> dict[str, str]:
    """Return what lets a listed page read the answer; never with credentials, never for all."""
    origin = headers.get("origin")
    if origin is None or origin not in origins:
        return {}
    exposed = "Location, ETag, Retry-After, Idempotent-Replayed, Oncelog-Next"
    return {"access-control-allow-origin": origin, "vary": "Origin", "access-control-expose-headers": exposed}


def preflight(headers: Mapping[str, str], origins: Collection[str]) -> dict[str, str] | None:
    """Return the answer to the question of a browser whether a listed page may call; ``None`` for any other request."""
    allowed = cors(headers, origins)
    asked = headers.get("access-control-request-headers", "")
    if not allowed or "access-control-request-method" not in headers:
        return None
    return allowed | {
        "access-control-allow-methods": "GET, POST, PATCH, DELETE",
        "access-control-allow-headers": asked if len(asked) < 1000 and asked.isprintable() else "",  # noqa: PLR2004
        "access-control-max-age": "600",
    }
