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


def test_an_error_cannot_forge_a_line() -> None:
    """The text of an error ends a traceback, and may have lines: none of them begins at the margin, as ours do."""
    try:
        raise ValueError("why\n2026-01-01 info forged\rforged")  # noqa: EM101, TRY003, TRY301
    except ValueError:
        record = _record("failed")
        record.exc_info = sys.exc_info()
    first, *rest = PlainLines().format(record).splitlines()
    assert first.endswith("info failed")
    assert "    2026-01-01 info forged" in rest
    assert all(line.startswith("    ") for line in rest)


def test_a_name_that_is_not_text_is_a_line_too() -> None:
    """Python keeps bytes that are no UTF-8 as lone surrogates: the line was lost, and its parts went out raw."""
    line = json.loads(JsonFormatter().format(_record("cannot read /in/\udc9b", file="/in/\udc9b")))
    assert (line["message"], line["file"]) == ("cannot read /in/\\udc9b", "/in/\\udc9b")


@pytest.mark.parametrize("formatter", [JsonFormatter(), PlainLines()], ids=["json", "plain"])
def test_no_line_is_for_the_terminal(formatter: logging.Formatter) -> None:
    """An operator looks at the lines in a terminal: text of a client must not move its cursor, nor turn the writing."""
    escape = "\x1b]0;owned\x07\x9b31m\x7f\u202e\r"
    try:
        raise ValueError(escape)  # noqa: TRY301
    except ValueError:
        record = _record(f"refused {escape}", log=escape)
        record.exc_info = sys.exc_info()
    line = formatter.format(record)
    assert "owned" in line
    assert not [character for character in escape if not character.isprintable() and character in line]


@pytest.mark.parametrize("formatter", [JsonFormatter(), PlainLines()], ids=["json", "plain"])
def test_no_password_is_in_a_line(formatter: logging.Formatter) -> None:
    """The message of a library that connects has the URL that it was given."""
    url = "postgresql://app:hunter2@host/shop"
    try:
        raise ValueError(url)  # noqa: TRY301
    except ValueError:
        record = _record(f'cannot connect: "password=hunter2" {url}', url=url, error=ValueError(url))
        record.exc_info = sys.exc_info()
    line = formatter.format(record)
    assert "hunter2" not in line
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["url"] == "postgresql://app:***@host/shop"


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
