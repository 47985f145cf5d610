"""Tables for people: no column without content, no spaces at the end of a line, no number cut."""

from __future__ import annotations

import pytest

from oncelog.cli.terminal import output
from oncelog.cli.terminal.output import print_facts, print_table

COLUMNS = [("key", "left"), ("topic", "left"), ("attempts", "right"), ("", "fold")]


def test_a_column_that_is_empty_in_every_row_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """What nothing is known of takes no room; one row that has it is enough to show it."""
    print_table(COLUMNS, [("order-1", "", "1", ""), ("order-2", "", "12", "")])
    print_table(COLUMNS, [("order-1", "", "1", ""), ("order-2", "mails", "12", "")])
    assert capsys.readouterr().out.splitlines() == [
        "key      attempts",
        "order-1         1",
        "order-2        12",
        "key      topic  attempts",
        "order-1                1",
        "order-2  mails        12",
    ]


def test_lines_end_with_their_last_character(capsys: pytest.CaptureFixture[str]) -> None:
    """A line that is copied, or compared by a script, has no spaces at its end; spaces in a value stay."""
    print_table([("name", "left"), ("what", "fold")], [("a", "x  y"), ("b", "longer than that")])
    print_facts([("orders", [("records", "20"), ("permanent id", "0b35")])])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert "a     x  y" in lines
    assert "permanent id  0b35" in lines


def test_a_long_name_is_broken_behind_a_separator(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a narrow terminal a name goes over lines by its parts, not in the middle of a word; a number stays whole."""
    monkeypatch.setattr(output, "_PIPE_WIDTH", 44)
    columns = [("log", "fold"), ("records", "right"), ("last", "right")]
    print_table(columns, [("shop/eu-central/orders-of-the-web-shop", "1,000,000", "999,999")])
    print_table(columns, [("a" * 40, "1", "2")])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["log", "records", "last"],
        ["shop/eu-central/orders-", "1,000,000", "999,999"],
        ["of-the-web-shop"],
        ["log", "records", "last"],
        ["a" * 29, "1", "2"],
        ["a" * 11],
    ]
