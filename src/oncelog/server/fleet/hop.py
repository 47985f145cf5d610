"""The proof that a server adds when it hands a call on: which server the call is meant for, and who the caller is.

A call that was handed on is not handed on again. A client cannot make such a proof: it does not have the fleet's key.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from oncelog.shapes import prepare

GRPC_KEY = "oncelog-hop-bin"
"""The name in the metadata of a gRPC call."""

HTTP_HEADER = "oncelog-hop"
"""The header of an HTTP request, in hex."""

_SUM_BYTES = 32
_PURPOSE = b"oncelog hop 1"


class Hop(msgspec.Struct, frozen=True):
    """A call that was handed on: the server it is meant for, the caller, and the names in the caller's certificate."""

    to: tuple[str, int]
    peer: str = ""
    sans: tuple[str, ...] = ()


def seal(key: bytes, hop: Hop) -> bytes:
    """Return a hop with its proof."""
    body = msgspec.msgpack.encode(hop)
    return _sum(key, body) + body


def opened(key: bytes, sealed: bytes) -> Hop | None:
    """Return the hop if its proof holds.

    >>> made = seal(b"k", Hop(("a", 1)))
    >>> opened(b"k", made), opened(b"other", made), opened(b"k", b"")
    (Hop(to=('a', 1), peer='', sans=()), None, None)
    """
    proof, body = sealed[:_SUM_BYTES], sealed[_SUM_BYTES:]
    if not hmac.compare_digest(proof, _sum(key, body)):
        return None
    return msgspec.msgpack.decode(body, type=Hop)


def opened_text(key: bytes, text: str) -> Hop | None:
    """Return the hop of an HTTP header, if its proof holds."""
    try:
        return opened(key, bytes.fromhex(text))
    except ValueError:
        return None


def _sum(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, _PURPOSE + body, hashlib.sha256)


def derived(key: bytes, purpose: str) -> bytes:
    """Return a key for another purpose, made from the fleet's."""
    return hmac.digest(key, purpose.encode(), hashlib.sha256)


prepare(Hop)
