"""Log lines as JSON, one object a line: for programs that collect them.

All text that came from outside is escaped by JSON: nobody forges a second line, or has a terminal obey. Tokens and
passwords are taken out wherever they stand, also in the text of an error.
"""

from __future__ import annotations

import logging
import re

import msgspec

from oncelog.clock import SYSTEM, Clock
from oncelog.redaction import harmless, harmless_json, redacted
from oncelog.types import moment

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SECRET = re.compile(r"once_[A-Za-z0-9_-]{8,}|(?i:bearer)\s+[^\s\"',;]+")
HIDDEN = "[secret]"


def without_secrets(text: str) -> str:
    """Return text in which no token stands.

    >>> without_secrets("Authorization: Bearer abc.def, once_0123456789")
    'Authorization: [secret], [secret]'
    """
    return _SECRET.sub(HIDDEN, text)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object, with the fields that were given as ``extra``."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        super().__init__()
        self._clock = clock

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        found: dict[str, object] = {
            "time": moment(self._clock.now_us()),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        found |= {name: value for name, value in vars(record).items() if name not in _PLAIN and name not in found}
        if record.exc_info:
            found["trace"] = self.formatException(record.exc_info)
        shown = {name: _redacted(value) if isinstance(value, str) else value for name, value in found.items()}
        return without_secrets(harmless_json(msgspec.json.encode(shown, enc_hook=_redacted).decode()))


class PlainLines(logging.Formatter):
    """Formats a record for people: the time, the level, the text and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and the lines of a traceback: these are set in, and a line at the margin is ours."""
        fields = " ".join(f"{name}={value!r}" for name, value in vars(record).items() if name not in _PLAIN)
        text = f"{self.formatTime(record)} {record.levelname.lower()} {record.getMessage()!s} {fields}".rstrip()
        text = text.replace("\n", "\\n")
        if record.exc_info:
            text = "\n    ".join([text, *self.formatException(record.exc_info).splitlines()])
        return without_secrets(redacted(harmless(text)))


def _redacted(value: object) -> str:
    """Return text without passwords that JSON can have: a name of a file may have bytes that are no UTF-8."""
    return redacted(str(value)).encode(errors="backslashreplace").decode()


def _is_ours(record: logging.LogRecord) -> bool:
    """Tell whether a line is about more than a client that left: gRPC tells each answer that nobody waits for."""
    return "ExecuteBatchError" not in record.getMessage()


def set_up(*, as_json: bool, level: str = "info") -> None:
    """Send what the server says to stderr, in one form."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else PlainLines())
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_ours)
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("oncelog").setLevel(level.upper())
