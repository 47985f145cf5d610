"""Passwords taken out of text that people, logs and files get to see.

URLs carry passwords (``postgresql://app:secret@host/shop``), and so do connection strings and options
(``password=secret``). Every message of an error goes through here, so nobody who words one has to think of it.
"""

from __future__ import annotations

import re

HIDDEN = "***"

_WORDS = (
    r"[\w.-]*(?:password|passwd|passphrase|pwd|secret|token|credential|signature|private_?key|api_?key|access_?key"
    r"|account_?key|session_?key|sas)[\w.-]*"
)
_USERINFO = re.compile(r"//(?P<user>[^\s:/@'\"]*):(?P<password>[^\s'\"]+)@")
_QUOTED = re.compile(rf"(?i)(?P<name>['\"]?{_WORDS}['\"]?\s*[:=]\s*)(?P<quote>['\"])(?:\\.|(?!(?P=quote)).)*(?P=quote)")
_PAIR = re.compile(rf"(?i)(?P<name>\b{_WORDS}\s*=\s*)(?P<value>[^\s&;,'\"()]+)")


def redacted(text: str) -> str:
    """Return text, a URL say, in which no password stands.

    >>> redacted("postgresql://app:secret@host/shop?sslpassword=other&x=1")
    'postgresql://app:***@host/shop?sslpassword=***&x=1'
    >>> redacted("{'access_key_id': 'AKIA', 'secret_access_key': 'hidden'}")
    "{'access_key_id': '***', 'secret_access_key': '***'}"
    """
    if "@" in text:
        text = _USERINFO.sub(rf"//\g<user>:{HIDDEN}@", text)
    if "=" in text or ":" in text:
        text = _QUOTED.sub(rf"\g<name>\g<quote>{HIDDEN}\g<quote>", text)
        text = _PAIR.sub(rf"\g<name>{HIDDEN}", text)
    return text
