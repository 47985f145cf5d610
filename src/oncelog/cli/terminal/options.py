"""Arguments and options that commands share, so that they are the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

import oncelog
from oncelog.cli.terminal.quantities import duration_s
from oncelog.errors import OncelogError

InputFormat = Literal["lines", "jsonl", "arrow", "parquet"]
RowFormat = Literal["text", "jsonl", "raw"]
OutputFormat = Literal["text", "jsonl", "raw", "arrow", "parquet"]


def _log_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of logs that begin so, for the shell's completion."""
    url = context.params.get("url")
    try:
        if url is None:
            return []
        with oncelog.connect(url) as db:
            return [name for name in db.logs() if name.startswith(incomplete)]
    except OncelogError:
        return []


def meant(given: str, names: Sequence[str]) -> str:
    """Return a question, with a space behind it, if a name that is there looks like the one that was given.

    >>> meant("ordres", ["emails", "orders"]), meant("x", ["orders"])
    ("did you mean 'orders'? ", '')
    """
    import difflib  # noqa: PLC0415 (only who has mistyped waits for it)

    close = difflib.get_close_matches(given, names, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The log's name.", show_default=False, autocompletion=_log_names)
]


def _url(help: str = "The database: a folder, or a URL such as s3://bucket/shop.") -> Any:
    return typer.Option("--url", "-u", envvar="ONCELOG_URL", metavar="URL", help=help, show_default=False)


Url = Annotated[str, _url()]
MaybeUrl = Annotated[str | None, _url()]
SourceUrl = Annotated[str | None, _url("The database of a log that is given by its name alone.")]

Json = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON, for programs.")]

Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        parser=duration_s,
        metavar="DURATION",
        help="How long to wait for a log that another process writes.",
        show_default="5 s",
    ),
]

Create = Annotated[bool, typer.Option("--create", metavar="", help="Create it if it is not there.")]

Yes = Annotated[bool, typer.Option("--yes", "-y", metavar="", help="Do not ask.")]

Limit = Annotated[int | None, typer.Option("--limit", min=0, metavar="N", help="Stop after so many records.")]

Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="NAME,…", help="The columns to write, in this order: position, id, value, …"),
]
