"""Log lines: one object a line, whatever is in it, and no secret."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from oncelog.server.watch.log_lines import JsonFormatter, PlainLines

SECRET = "once_" + "x" * 43


def _record(message: str, **extra: object) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": "oncelog.server", "levelno": logging.INFO, "levelname": "INFO"} | extra)
    record.msg = message
    return record


def test_what_a_client_says_cannot_forge_a_line() -> None:
    """A name with a line break stays inside its line, as JSON and as text."""
    record = _record("refused", log='a\n{"level":"error"}')
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["log"] == 'a\n{"level":"error"}'
    assert "\n" not in PlainLines().format(record)
    assert "\n" not in PlainLines().format(_record("a\nforged"))


def test_fields_and_traces_are_there() -> None:
    """An operator finds the count, and where it failed."""
    try:
        raise ValueError("why")  # noqa: EM101, TRY301
    except ValueError:
        record = _record("failed logins", count=3, unknown=object())
        record.exc_info = sys.exc_info()
    line = json.loads(JsonFormatter().format(record))
    assert line["count"] == 3
    assert line["level"] == "info"
    assert "ValueError: why" in line["trace"]


@pytest.mark.parametrize("formatter", [JsonFormatter(), PlainLines()], ids=["json", "plain"])
@pytest.mark.parametrize("text", [SECRET, f"Bearer {SECRET}", "Authorization: bearer abcdef"])
def test_no_token_is_in_a_line(formatter: logging.Formatter, text: str) -> None:
    """Neither in the message, nor in a field, nor in a traceback."""
    try:
        int(text)
    except ValueError:
        record = _record(f"refused {text}", header=text)
        record.exc_info = sys.exc_info()
    line = formatter.format(record)
    assert SECRET not in line
    assert "abcdef" not in line
