"""Passwords, and what a terminal obeys, taken out of text that people, logs and files get to see.

URLs carry passwords (``postgresql://app:secret@host/shop``), and so do connection strings and options
(``password=secret``). Every message of an error goes through here, so code that words a message need not do this.
"""

from __future__ import annotations

import re

HIDDEN = "***"

_WORDS = (
    r"(?:password|passwd|passphrase|pwd|secret|token|credential|signature|sas"
    r"|(?:private|api|access|account|session|signing|hmac)[_.-]?key)[\w.-]{0,128}"
)
"""What a name has in it. A message may hold a long text from an attacker, and a search that may begin anywhere and go
on to the end takes time that grows with the square of the length. So a name is searched from its word on, for a
bounded length. A value has no bound, because tokens of some thousand bytes serve as passwords: it ends before
the next value.
"""

_UNBROKEN = re.compile(r"[^\s'\"]+")
_USER = re.compile(r"//[^:/@]*:")
_QUOTED = re.compile(
    rf"(?i)(?P<name>{_WORDS}['\"]?\s{{0,8}}[:=]\s{{0,8}})(?P<quote>['\"])(?:\\.|(?!(?P=quote)).)*+(?P=quote)"
)
_USER_ALONE = re.compile(r"(?i)(?P<scheme>https?://)(?P<token>[^\s:/@?#'\"]{1,1024})@")
"""In a URL of the web, a user name without a password is often a token, and a token is a secret."""

_HEADER = re.compile(r"(?i)(?P<name>\bbearer\s+|\bauthorization\s*[:=]\s*basic\s+|\bx-api-key\s*:\s*)[\w.~+/=-]{6,}")
_SIGNED = re.compile(r"(?P<name>[?&]sig=)[^\s&'\"]+")
_PAIR = re.compile(rf"(?i)(?P<name>{_WORDS}\s*=\s*)(?P<value>[^\s&;,'\"()]+)")


_FILE_USER = re.compile(r"^(?P<user>[a-z][\w+.-]{0,31}://[^/:@]*:)[^/@]*@")

_BARE = re.compile(
    r"\b(?:(?P<token>once_)[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048](?![A-Za-z0-9_-])|(?P<secret>whsec_)[A-Za-z0-9+/]{32,}={0,2})"
)
"""Tokens of a server and secrets of web hooks: their beginning tells what they are, wherever they stand.

A token is 32 bytes in base64 for URLs, without padding: 43 characters, and the last one has four bits. A name that
begins alike, ``once_per_customer_orders_2024``, is none. A secret of a web hook is 24 bytes or more in base64
(Standard Webhooks).
"""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What a terminal obeys instead of showing it: control characters of both sets, what turns the writing around, and
the two separators of Unicode that begin a line.
"""

_TWO_DIGITS = 0x100


def harmless(data: bytes | str) -> str:
    """Return text in which no character moves a cursor, rings a bell, or shows text in another order than it has."""
    text = data if isinstance(data, str) else data.decode(errors="backslashreplace")
    return _CONTROL.sub(_spelled, text)


def harmless_line(data: bytes | str) -> str:
    """Return the same on one line: text of others cannot begin a line that looks like one of ours."""
    return harmless(data).replace("\n", "\\n")


def harmless_json(text: str) -> str:
    """Return JSON in which such characters are escapes of JSON: a program decodes the same."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < _TWO_DIGITS else f"\\u{code:04x}"


def redacted(text: str) -> str:
    """Return text, a URL say, in which no password stands.

    >>> redacted("postgresql://app:secret@host/shop?sslpassword=other&x=1")
    'postgresql://app:***@host/shop?sslpassword=***&x=1'
    >>> redacted("{'access_key_id': 'AKIA', 'secret_access_key': 'hidden'}")
    "{'access_key_id': '***', 'secret_access_key': '***'}"
    """
    if "@" in text:
        text = _UNBROKEN.sub(_without_password, text)
        text = _USER_ALONE.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _HEADER.sub(rf"\g<name>{HIDDEN}", text)
    if "=" in text or ":" in text:
        text = _SIGNED.sub(rf"\g<name>{HIDDEN}", text)
        text = _QUOTED.sub(rf"\g<name>\g<quote>{HIDDEN}\g<quote>", text)
        text = _PAIR.sub(rf"\g<name>{HIDDEN}", text)
    return _BARE.sub(rf"\g<token>\g<secret>{HIDDEN}", text) if "once_" in text or "whsec_" in text else text


def without_password(url: str) -> str:
    """Return a URL of a file without the password before its host. Its path tells where rows are from, and stays.

    >>> without_password("ftp://app:secret@host/day/token=1.json")
    'ftp://app:***@host/day/token=1.json'
    """
    return _FILE_USER.sub(rf"\g<user>{HIDDEN}@", url)


def _without_password(run: re.Match[str]) -> str:
    """Return text without spaces in which the password of a URL is hidden: it goes to the last at sign."""
    text = run[0]
    end = text.rfind("@")
    user = _USER.search(text, 0, end) if end >= 0 else None
    return text if user is None or user.end() == end else f"{text[: user.end()]}{HIDDEN}{text[end:]}"
