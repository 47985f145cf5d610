"""``oncelog log append``, ``cat`` and ``tail``: records into a log and out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from oncelog.cli.commands.logs import describe
from oncelog.cli.commands.logs.opened import opened
from oncelog.cli.terminal.options import (
    Columns,
    Create,
    InputFormat,
    Json,
    Limit,
    Name,
    OutputFormat,
    RowFormat,
    Url,
    Wait,
)
from oncelog.cli.terminal.outcome import ExitCode
from oncelog.cli.terminal.output import plural, print_json, say
from oncelog.cli.terminal.quantities import PLACES, show_bytes, start


def append(
    name: Name,
    url: Url,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="What to read; - or nothing is stdin.", show_default=False),
    ] = None,
    *,
    format: Annotated[
        InputFormat | None,
        typer.Option(
            help="The form of the input.", show_default="by the file's name; jsonl with a --…-field; else lines"
        ),
    ] = None,
    id_field: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where each JSON document has its id, as in order.id.")
    ] = None,
    value_field: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where it has its value, if that is not the whole line.")
    ] = None,
    create: Create = False,
    wait: Wait = 5.0,
    json: Json = False,
) -> None:
    """Append lines, JSON lines, Arrow or Parquet.

    Run again, it adds only what is not there: a record with an id is stored once, however often it comes, as long as
    the record is in the log. Lines have no ids: in a log created with --idempotence content, their content is
    the id.

    [bold]lines[/]: each line is a value. [bold]jsonl[/]: each line is an object with value (text) or value_base64, and
    optionally id, stream, type, headers, tenant, as cat writes it; with --id-field or --value-field it is any document,
    kept whole. [bold]arrow[/] and [bold]parquet[/]: columns of these names, or those that the two options name.

    Refused records are shown line by line on stderr; everything else is stored, and the exit code is 1.
    """
    from oncelog.cli.records import appending, sources  # noqa: PLC0415 (pyarrow is not for those who ask for help)

    run = appending.Appending(
        files or [], format, sources.Fields(id_field, value_field), describe.refusals(as_json=json)
    )
    try:
        with opened(url, name, create=create) as log:
            run.run(log, wait)
    finally:
        describe.tell_summary(run.summary(name), as_json=json)
    if not run.clean:
        raise typer.Exit(ExitCode.FINDINGS)


def cat(
    name: Name,
    url: Url,
    *,
    begin: Annotated[Any, typer.Option("--from", parser=start, metavar="PLACE", help=f"Where to begin: {PLACES}.")] = (
        "earliest"
    ),
    end: Annotated[
        Any, typer.Option("--to", parser=start, metavar="PLACE", help="Where to end, before that record or moment.")
    ] = None,
    limit: Limit = None,
    format: Annotated[
        OutputFormat | None, typer.Option(help="The form of the output.", show_default="by the file's name; else text")
    ] = None,
    columns: Columns = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="A file to write, which is there once it is whole.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write a log's records to stdout, or to a file.

    [bold]text[/]: the values, one a line; on a terminal with position, time and id. [bold]jsonl[/] (or --json): an
    object a line, in which a value that is not UTF-8 is value_base64 instead of value, and such a header
    {"base64": …}; stream, type, headers, producer, sequence and tenant are there if the record has them. [bold]raw[/]:
    the values' bytes, nothing between them. [bold]arrow[/]: a file, or into a pipe a stream. [bold]parquet[/]: zstd.
    """
    from oncelog.cli.records import reading  # noqa: PLC0415 (pyarrow is not for those who ask for help)

    format = format or ("jsonl" if json and output is None else None)
    with opened(url, name) as log:
        count = reading.cat(log, begin, end, limit, format=format, columns=reading.columns_of(columns), output=output)
    if output is not None and json:
        print_json({"log": name, "records": count, "output": str(output), "bytes": output.stat().st_size})
    elif output is not None:
        say((str(output), "cyan"), ": ", plural(count, "record"), f", {show_bytes(output.stat().st_size)}")


def tail(
    name: Name,
    url: Url,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Go on with what is appended, until Ctrl-C.")
    ] = False,
    last: Annotated[int, typer.Option("--last", "-n", min=0, metavar="N", help="Begin with the last N records.")] = 10,
    begin: Annotated[
        Any, typer.Option("--from", parser=start, metavar="PLACE", help=f"Or begin at: {PLACES}.", show_default=False)
    ] = None,
    limit: Limit = None,
    format: Annotated[RowFormat, typer.Option(help="The form of the output, as in cat.")] = "text",
    columns: Columns = None,
    json: Json = False,
) -> None:
    """Show the newest records, and with -f those that come."""
    from oncelog.cli.records import reading  # noqa: PLC0415 (pyarrow is not for those who ask for help)

    with opened(url, name) as log:
        rows = reading.rows_of("jsonl" if json else format, reading.columns_of(columns))
        reading.tail(log, begin, last, limit, rows, follow=follow)
