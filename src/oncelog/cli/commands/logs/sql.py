"""``oncelog sql``: ask a database of logs with SQL, by DuckDB. A log is a table; its newest records are in it too."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import oncelog
from oncelog.cli.terminal.options import Json, Url, meant
from oncelog.cli.terminal.output import print_json, print_table
from oncelog.cli.terminal.plain import paragraphs
from oncelog.errors import InvalidArgument, OncelogError, Unsupported

if TYPE_CHECKING:
    from oncelog.log.log import Log

_HELP = """Ask with SQL: each log is a table with the columns position, timestamp, id, value and the others.

A name with a slash or a dot is quoted: select count(*) from "shop/orders". A value is bytes: decode(value) is its text,
and decode(value)::json ->> '$.total' a field of it. The tables hold everything that is durable, sealed or not."""
_EXAMPLES = """Examples, with ONCELOG_URL set:

  [cyan]oncelog sql "select count(*), min(timestamp) from orders"[/]
  [cyan]oncelog sql "select id, decode(value) from orders where position > 100 limit 5"[/]"""
_ROWS_AT_ONCE = 1000
_INTEGER_BITS = 63
_MISSING = re.compile(r"Table with name (.+?) does not exist")


class LogTable:
    """A log as DuckDB reads it: a new Arrow stream for each scan."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.failure: OncelogError | KeyboardInterrupt | None = None
        """What ended a scan: DuckDB makes a text of it, with a traceback."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        import pyarrow as pa  # noqa: PLC0415  help does not wait for Arrow

        from oncelog.format.payload.schema import READ_SCHEMA  # noqa: PLC0415

        reader = pa.RecordBatchReader.from_batches(READ_SCHEMA, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[Any]:
        try:
            yield from self._log.read_arrow()
        except (OncelogError, KeyboardInterrupt) as error:
            self.failure = error
            raise


def run(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to ask.", show_default=False)],
    url: Url,
    *,
    json: Json = False,
) -> None:
    """Ask with SQL."""
    if any(
        "\ud800" <= character <= "\udfff" for character in query
    ):  # DuckDB fails with an error that is none of its own
        message = "the query is not UTF-8"
        raise InvalidArgument(message)
    with oncelog.connect(url) as db, _duckdb() as connection:
        names = db.logs()
        asked = [name for name in names if name.lower() in query.lower()]  # SQL does not tell orders from ORDERS
        tables = {name: LogTable(db.log(name)) for name in asked}
        for name, table in tables.items():
            connection.register(name, table)
        try:
            found = connection.execute(query)
            columns = [str(column[0]) for column in (found.description if found is not None else None) or ()]
            if not columns:
                message = "the query asks for nothing: write select … from a log"
                raise InvalidArgument(message)
            _print(columns, iter(lambda: found.fetchmany(_ROWS_AT_ONCE), []), as_json=json)
        except _errors() as error:
            if type(error).__name__ == "InterruptException":  # Ctrl-C, while DuckDB was at work
                raise KeyboardInterrupt from None
            failure = next((table.failure for table in tables.values() if table.failure is not None), None)
            raise failure or InvalidArgument(_explained(str(error), names)) from None


def _explained(message: str, names: Sequence[str]) -> str:
    """Return what DuckDB says of a query; of a table that is not there, with the log that was probably meant."""
    missing = _MISSING.search(message)
    if missing is None:
        return f"DuckDB refused the query: {message}"
    return f"there is no log {missing[1]!r}: {meant(missing[1], names)}see oncelog log list"


@contextlib.contextmanager
def _duckdb() -> Iterator[Any]:
    """Yield a connection that sees the registered logs, and no files of this machine."""
    try:
        import duckdb  # noqa: PLC0415  an extra
    except ImportError as error:
        message = "SQL needs a package that is not installed: pip install 'oncelog[sql]'"
        raise Unsupported(message) from error
    connection = duckdb.connect(":memory:", config={"enable_external_access": "false"})
    try:
        yield connection
    finally:
        connection.close()


def _errors() -> type[Exception]:
    import duckdb  # noqa: PLC0415

    found: type[Exception] = duckdb.Error
    return found


def _print(columns: Sequence[str], pieces: Iterator[Sequence[Sequence[Any]]], *, as_json: bool) -> None:
    if as_json:
        for rows in pieces:
            for row in rows:
                print_json({name: _plain(value) for name, value in zip(columns, row, strict=True)})
            sys.stdout.flush()
        return
    rows = [[_text(value) for value in row] for piece in pieces for row in piece]
    print_table([(column, "fold") for column in columns], rows, whole=True)


def _plain(value: object) -> object:
    """Return a value that JSON has, as near as it can be: bytes as text if they are UTF-8."""
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
        return value.hex()
    if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:  # a sum may be a HUGEINT
        return str(value)
    return value


def _text(value: object) -> str:
    plain = _plain(value)
    return "" if plain is None else str(plain)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sql", help=paragraphs(_HELP), epilog=_EXAMPLES)(run)
