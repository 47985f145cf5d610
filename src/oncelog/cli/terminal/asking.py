"""Asking a person before something goes for good."""

from __future__ import annotations

import sys

import typer

from oncelog.errors import InvalidArgument
from oncelog.redaction import harmless


def confirm(question: str) -> None:
    """Go on only if a person says yes; ``Abort`` otherwise."""
    _need_person()
    typer.confirm(harmless(question), abort=True, err=True)


def confirm_name(question: str, name: str) -> None:
    """Go on only if a person types the name; ``Abort`` otherwise."""
    _need_person()
    if typer.prompt(harmless(question), err=True) != name:
        raise typer.Abort


def _need_person() -> None:
    if not sys.stdin.isatty():
        message = "there is nobody to be asked: say --yes"
        raise InvalidArgument(message)
