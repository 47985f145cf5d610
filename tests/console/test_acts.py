"""Acts, without a browser: what a form chose, and what is asked before it is done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from starlette.requests import Request
from starlette.types import Message as HttpMessage

from oncelog import Inbox, InvalidArgument, Message, NotFound, QueueSettings, RetryPolicy
from oncelog.connect import Database
from oncelog.console.acts import ACTS
from oncelog.console.forms import Form, form_of
from oncelog.console.render import tag
from oncelog.console.source import Source
from oncelog.storage.memory import MemoryStorage

LINES = "Traceback:\r\n  line 2"
"""An error of several lines, with the line ends of another system."""


@pytest.fixture
def source() -> Iterator[Source]:
    """Yield a database with a log of three records, and a queue with three dead letters, each with its own error."""
    with Database(MemoryStorage()) as database:
        with database.log("orders", create=True).writer() as writer:
            for number in range(3):
                writer.append(b"paid", id=f"order-{number}")
        emails = database.queue("emails", QueueSettings(retry=RetryPolicy(max_attempts=1)), create=True)
        errors = {"plain": "smtp 550", "lines": LINES, "none": ""}
        emails.send_many([Message(b"hello", id=id) for id in errors])
        while len(emails.dead_letters.list()) < len(errors):
            with emails.consume("mailer", prefetch=len(errors)) as consumer:
                for delivery in consumer.receive(timeout_s=0.1):
                    delivery.nack(errors[delivery.id])
        yield Source(database)


def asked(source: Source, verb: str, name: str, **form: str) -> str:
    """Return what a question says would be done."""
    preview = ACTS[verb].preview
    assert preview is not None
    return preview(source, name, form)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"retention_s": "60"}, "Older records are removed for good"),
        ({"retention_bytes": "1000000"}, "Older records are removed for good"),
        ({"max_keys": "5"}, "Ids beyond these bounds are forgotten"),
        ({"idempotence": "off"}, "appends with an id are refused"),
        ({"on_conflict": "original"}, ""),
    ],
)
def test_settings_that_take_something_away_say_so_before(source: Source, form: dict[str, str], says: str) -> None:
    """A retention removes records and a bound forgets ids: the question says so, not the names of settings alone."""
    lines = asked(source, "configure", "orders", tag=tag(source.log("orders").settings), **form).splitlines()
    sentences = [line for line in lines if " → " not in line]
    assert len(sentences) == bool(says)
    assert says in "".join(sentences)


@pytest.mark.parametrize(
    ("error", "left"),
    [("smtp 550", {"lines", "none"}), ("Traceback:\n  line 2", {"plain", "none"}), ("", {"plain", "lines"})],
)
def test_letters_with_one_error_are_given_up_and_no_others(source: Source, error: str, left: set[str]) -> None:
    """An error may be empty, which is not "all of them", and may have lines, whose ends a browser changes."""
    form = {"error": error}
    assert asked(source, "discard", "emails", **form).startswith("1 dead letter with")
    assert ACTS["discard"].do(source, "emails", form) == "1 dead letter of emails was given up for good."
    assert {letter.id for letter in source.letters("emails")} == left


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\u2028"])
def test_a_text_of_others_adds_no_line_to_a_question(source: Source, end: str) -> None:
    """A key or an error with a line end cannot say something in our name: the line end is spelled out."""
    evil = f"1{end}inbox ours, topic nothing"
    [first, second] = asked(source, "resolve", "shop", to="again", key=evil, topic=evil, tenant=evil).splitlines()
    assert first.startswith("1\\")
    assert first.endswith(" may be tried again.")
    assert second.startswith("inbox shop, topic 1\\")
    assert len(asked(source, "redrive", "emails", error="Traceback:\n  line 2").splitlines()) == 1


def sent(**fields: str) -> Form:
    """Return the form that the console makes of what a client sent."""

    async def receive() -> HttpMessage:
        return {"type": "http.request", "body": urlencode(fields).encode()}

    return asyncio.run(form_of(Request({"type": "http", "method": "POST"}, receive)))


def test_a_key_with_a_line_end_is_not_taken_for_another(source: Source, tmp_path: Path) -> None:
    """Keys that differ in their line ends are different keys. A browser sends them alike: such a form is refused."""
    keys = ["a\nb", "a\rb", "a\r\nb"]
    with Inbox(f"sqlite:///{tmp_path}/inbox.db") as inbox:
        source.inboxes["shop"] = inbox
        for key in keys:
            with contextlib.suppress(ZeroDivisionError), inbox.once(key):
                raise ZeroDivisionError
        ACTS["resolve"].do(source, "shop", sent(key="a\rb", to="committed"))
        assert [inbox.show(key)[0].status for key in keys] == ["FAILED", "COMMITTED", "FAILED"]
        for step in (ACTS["resolve"].preview, ACTS["resolve"].do):
            assert step is not None
            with pytest.raises(InvalidArgument, match="oncelog inbox resolve"):
                step(source, "shop", sent(key="a\r\nb", to="committed"))
        assert inbox.show(keys[2])[0].status == "FAILED"


def test_an_error_has_one_kind_of_line_end() -> None:
    """A browser sends every line end of an error as CR LF: the letters with that error are found all the same."""
    assert sent(error=LINES) == {"error": "Traceback:\n  line 2"}


def test_a_question_says_how_much_would_be_done(source: Source) -> None:
    """A person who is asked sees what goes for good; what would do nothing is refused before the question."""
    assert asked(source, "redrive", "emails") == "3 dead letters, all there are"
    assert asked(source, "truncate", "orders", before="2") == "2 records of 3: all before position 2"
    assert asked(source, "truncate", "orders", before="9,000").startswith("3 records of 3")
    assert asked(source, "delete", "orders", again="orders") == "3 records"
    with pytest.raises(NotFound, match="no such dead letter any more"):
        asked(source, "discard", "emails", position="77")
    for wrong in ("0", "", "-1", "9" * 5000, "²"):
        with pytest.raises(InvalidArgument):
            asked(source, "truncate", "orders", before=wrong)
    with pytest.raises(InvalidArgument, match="type the name"):
        asked(source, "delete", "orders", again="order")
