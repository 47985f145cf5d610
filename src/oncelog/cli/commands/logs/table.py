"""``oncelog table``: a log's history as a table that other programs read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from oncelog.cli.commands.logs.opened import opened
from oncelog.cli.terminal.options import Json, Name, Url
from oncelog.cli.terminal.output import print_facts, print_json
from oncelog.cli.terminal.plain import Verbs
from oncelog.cli.terminal.quantities import duration_s
from oncelog.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from oncelog.tables.publishing import Published, PublishedTable

app = Verbs("table", "Tables: a log's history as a table of Delta or Iceberg.")
_KEEP_S = 7 * 86400.0


@app.verb(
    "publish orders --delta /var/lib/tables/orders",
    "publish orders --iceberg shop.orders --option uri=sqlite:////var/lib/catalog.db "
    "--option warehouse=file:///var/lib/tables",
)
def publish(
    name: Name,
    url: Url,
    *,
    delta: Annotated[
        str | None, typer.Option("--delta", metavar="PATH", help="The Delta table: a folder, or a URL of a bucket.")
    ] = None,
    iceberg: Annotated[
        str | None, typer.Option("--iceberg", metavar="NAMESPACE.TABLE", help="The Iceberg table, in its catalog.")
    ] = None,
    catalog: Annotated[str, typer.Option("--catalog", metavar="NAME", help="The catalog, as pyiceberg knows it.")] = (
        "default"
    ),
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="An option of the catalog; may be repeated."),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", metavar="", help="Iceberg: name the log's own files; copy or link nothing.")
    ] = False,
    keep: Annotated[
        float,
        typer.Option(
            "--keep",
            parser=duration_s,
            metavar="DURATION",
            help="How long older versions of the table, and their files, stay.",
            show_default="7 days",
        ),
    ] = _KEEP_S,
    json: Json = False,
) -> None:
    """Publish the sealed files of a log as a Delta or an Iceberg table; run again, it brings the table up to date.

    No bytes are copied on a disk: the table has hard links. In a bucket the store copies the files itself. What was
    sealed, merged, truncated or purged since the last time comes in one commit. Records that are not sealed yet are
    not in the table: "oncelog log seal" seals them. Rows that were purged have a value in the column purged.
    """
    table = _table(delta, iceberg, catalog, option or [], keep, in_place=in_place)
    from oncelog.log.log import Log  # noqa: PLC0415 (help does not wait for pyarrow)
    from oncelog.tables import publishing  # noqa: PLC0415 (as above)

    with opened(url, name) as log:
        found: object = log  # a server's log is not of this class
        if not isinstance(found, Log) or url.startswith("memory:"):
            message = f"{url}: publish where the files of the log are, a disk or a bucket, and not through a server"
            raise Unsupported(message)
        done = publishing.publish(log, table)
    if json:
        print_json(done)
    else:
        _tell(done)


def _table(
    delta: str | None, iceberg: str | None, catalog: str, options: Sequence[str], keep_s: float, *, in_place: bool
) -> PublishedTable:
    from oncelog.clock import SYSTEM  # noqa: PLC0415 (as above)

    if (delta is None) == (iceberg is None):
        message = "name one table: --delta PATH, or --iceberg NAMESPACE.TABLE"
        raise InvalidArgument(message)
    try:
        if delta is not None:
            if in_place or options:
                message = (
                    "--in-place and --option are for Iceberg: readers of Delta find files in the table's folder only"
                )
                raise InvalidArgument(message)
            from oncelog.tables.delta import DeltaPublication  # noqa: PLC0415 (an extra)

            return DeltaPublication(delta, SYSTEM, keep_s)
        from oncelog.tables.iceberg import IcebergPublication  # noqa: PLC0415 (an extra)
    except ImportError as error:
        message = f"{error.name} is not installed: pip install 'oncelog[tables]'"
        raise Unsupported(message) from error
    assert iceberg is not None
    named = _named(options)
    return IcebergPublication(iceberg, SYSTEM, keep_s, catalog=catalog, options=named, in_place=in_place)


def _named(options: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in options]
    for key, sign, _ in pairs:
        if not key or not sign:
            message = f"--option is {key!r}: must be KEY=VALUE, such as uri=sqlite:////var/lib/catalog.db"
            raise InvalidArgument(message)
    return {key: value for key, _, value in pairs}


def _tell(done: Published) -> None:
    rows = (
        f"{done.rows:,}, positions {done.first_position:,} to {done.next_position - 1:,}" if done.rows else "none yet"
    )
    changed = f"{done.added:,} added, {done.removed:,} removed" if done.added or done.removed else "nothing changed"
    print_facts([(f"{done.log} → {done.table}", [("rows", rows), ("files", f"{done.files:,}: {changed}")])])
