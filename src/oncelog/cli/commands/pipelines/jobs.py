"""``oncelog ingest``, ``export``, ``audit``, ``rebuild``, ``purge``: whole logs at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from oncelog.cli.commands.logs.opened import opened
from oncelog.cli.terminal import asking
from oncelog.cli.terminal.options import Create, Json, Name, Url, Yes
from oncelog.cli.terminal.outcome import ExitCode
from oncelog.cli.terminal.output import meter, note, plural, print_facts, print_json, print_table, say
from oncelog.cli.terminal.plain import paragraphs
from oncelog.cli.terminal.quantities import show_bytes, show_count

if TYPE_CHECKING:
    from oncelog.log.jobs.audit import Audit, By
    from oncelog.log.jobs.purge import Purge
    from oncelog.log.jobs.workers import Hands
    from oncelog.log.log import Log

Master = Annotated[str, typer.Option("--master", metavar="URL", help="The Spark to run on.")]
ByMaster = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Have this Spark do the work.", show_default="this machine"),
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write a page of plots.", show_default=False)
]
ByOption = Annotated[str, typer.Option("--by", metavar="COLUMN", help="Count by producer, type, stream or tenant.")]


def add_to(app: typer.Typer) -> None:
    """Make the commands known."""
    for command, examples in (
        (ingest, ("ingest orders incoming/ --id-field order_id", "ingest orders day.parquet --id-field id --create")),
        (export, ("export orders out/", "export orders out/ --schema 'id STRING, amount LONG'")),
        (audit, ("audit orders", "audit orders --by type --report audit.html", "audit orders --json | jq .duplicates")),
        (rebuild, ("rebuild orders", "rebuild orders --master spark://host:7077")),
        (purge, ("purge orders", "purge orders --remove --yes", "purge orders --json | jq .duplicates")),
    ):
        lines = "\n".join(f"  [cyan]oncelog {example}[/]" for example in examples)
        text = f"Examples, with ONCELOG_URL set:\n\n{lines}"
        app.command(help=paragraphs(command.__doc__ or ""), epilog=text, rich_help_panel="Jobs")(command)


def ingest(
    name: Name,
    source: Annotated[str, typer.Argument(metavar="PATH", help="The files to read: a file, folder or pattern.")],
    url: Url,
    *,
    id: Annotated[
        str | None, typer.Option("--id-field", "--id", metavar="COLUMN", help="The column that has the id.")
    ] = None,
    format: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help="What Spark calls it.", show_default="by the name")
    ] = None,
    create: Create = False,
    master: Master = "local[*]",
    json: Json = False,
) -> None:
    """Ingest files into a log with Spark, each record once.

    Run again, or killed and run again, it adds only what is not there. Without --id, rows that are equal are one. A row
    whose id is taken by other content goes to conflicts.NAME.
    """
    from oncelog.cli.commands.pipelines.output import tell_outcome  # noqa: PLC0415 (as below)
    from oncelog.spark.pipeline import jobs  # noqa: PLC0415 (pyarrow is not for those who ask for help)

    with meter(f"ingesting into {name}", unit="rows", hidden=json) as bar:
        outcome = jobs.ingest(
            jobs.SparkFiles(source, format, master),
            url,
            name,
            id=id,
            create=create,
            tell=lambda batch: bar.to(batch.rows, batch.rows),
        )
    if json:
        print_json(outcome)
    else:
        tell_outcome(outcome, None)


def export(
    name: Name,
    output: Annotated[str, typer.Argument(metavar="FOLDER", help="The folder to write.")],
    url: Url,
    *,
    format: Annotated[str, typer.Option("--format", metavar="FORMAT", help="What Spark calls it.")] = "parquet",
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="COLUMNS", help="Columns of values that are JSON.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", metavar="", help="Replace what is there.")] = False,
    master: Master = "local[*]",
    json: Json = False,
) -> None:
    """Export a log to files with Spark: all of it, as it is now.

    What is there is not replaced unless that is asked for; what an export left that was killed is, but for a bucket.
    With --schema, the columns of values that are JSON are taken out of them; what does not fit is null, and ends the
    command with exit code 1. To go on with what comes later, use a pipeline.
    """
    from oncelog.spark.pipeline import jobs  # noqa: PLC0415 (as above)

    with meter(f"exporting {name}", hidden=json):
        done = jobs.export(url, name, jobs.SparkFiles(output, format, master), schema=schema, overwrite=overwrite)
    if json:
        print_json({"log": name, "records": done.records, "unfit": done.unfit, "output": output})
    else:
        say((output, "cyan"), ": ", plural(done.records, "record"), f" of {name}, as {format}")
    if done.unfit:
        verb = "does" if done.unfit == 1 else "do"
        told = f" {plural(done.unfit, 'record')} {verb} not fit the schema (the first at position {done.first_unfit}): "
        note(("warning:", "yellow"), told, "what does not fit is null")
        raise typer.Exit(ExitCode.FINDINGS)


@contextmanager
def _hands(master: str | None, url: str, name: str) -> Iterator[Hands | None]:
    """Yield whose hands do a job: those of a Spark, or ``None`` for the threads of this process."""
    if master is None:
        yield None
        return
    from oncelog.errors import Unsupported  # noqa: PLC0415 (as above)
    from oncelog.spark.session import session  # noqa: PLC0415 (as above)
    from oncelog.spark.session.tasks import Tasks  # noqa: PLC0415 (as above)

    if url.startswith("memory:"):
        message = f"{url} is in the memory of this process, which Spark's do not share: leave --master out"
        raise Unsupported(message)
    spark = session.start(f"oncelog {name}", master, log_file=Path(os.devnull))
    try:
        yield Tasks(spark, url, name)
    finally:
        spark.stop()


def audit(
    name: Name,
    url: Url,
    *,
    by: ByOption = "producer",
    report: Report = None,
    master: ByMaster = None,
    json: Json = False,
) -> None:
    """Audit a log: ids that are there more than once, gaps and checksums, counted by a column and by time.

    The window keeps an id from being stored twice as long as it remembers it; an audit looks at the whole log. What is
    there again is shown (purge removes it): the exit code is 1. With --master, the tasks of a Spark read the log,
    which they must reach by its URL.
    """
    from oncelog.spark.report import audit_page, page  # noqa: PLC0415 (as above)

    column = _column(by)
    with opened(url, name) as log, meter("auditing", hidden=json) as bar, _hands(master, url, name) as hands:
        found = log.audit(column, lambda done, total: bar.to(done, done, total), hands=hands)
    if report is not None:
        page.write(report, audit_page.page_of(name, column, found))
    if json:
        print_json({"log": name, "ok": found.ok, **msgspec.to_builtins(found)})
    else:
        _tell_audit(name, column, found, report)
    if not found.ok:
        raise typer.Exit(ExitCode.FINDINGS)


def _column(by: str) -> By:
    from oncelog.errors import InvalidArgument  # noqa: PLC0415 (as above)

    if by not in {"producer", "type", "stream", "tenant"}:
        message = f"--by {by}: must be producer, type, stream or tenant"
        raise InvalidArgument(message)
    return by  # type: ignore[return-value]


def _tell_audit(name: str, by: str, found: Audit, report: Path | None) -> None:
    again: list[tuple[str, str | Text]] = [
        ("records", f"{found.records:,} at positions {found.first_position:,} to {found.next_position - 1:,}"),
        ("with an id", f"{found.ids:,}"),
        ("duplicates", Text(f"{found.duplicates:,}", "yellow" if found.duplicates else "green")),
        ("conflicts", Text(f"{found.conflicts:,}", "yellow" if found.conflicts else "green")),
        ("read", f"{show_bytes(found.bytes)} in {show_count(found.segments, 'segment')}, all checksums right"),
    ]
    if found.findings:
        again[-1] = ("read", Text("; ".join(f"{one.where}: {one.what}" for one in found.findings), "bold red"))
    if report is not None:
        again.append(("report", Text(str(report), "cyan")))
    print_facts([(name, again)])
    if len(found.by) > 1:
        say()
        rows = [(kind or "(none)", f"{share.records:,}", f"{share.repeats:,}") for kind, share in found.by.items()]
        print_table([(by, "left"), ("records", "right"), ("again", "right")], rows)
    for repeat in found.sample:
        what = "the same" if repeat.same else "other content"
        say(("again:", "yellow"), f" position {repeat.position:,} has the id of position {repeat.first:,}, {what}")
    more = found.duplicates + found.conflicts - len(found.sample)
    if more > 0:
        say(f"and {more:,} more")


def rebuild(name: Name, url: Url, *, master: ByMaster = None, json: Json = False) -> None:
    """Rebuild from the log itself what tells which ids are in it.

    For a log whose runs (with a bounded window: snapshots) are lost or in doubt, or that is to remember its ids without
    bounds from now on. No record is changed, and the log's writer need not stop. With --master, the tasks of a Spark
    read and hash the records.
    """
    with opened(url, name) as log, meter("rebuilding", hidden=json) as bar, _hands(master, url, name) as hands:
        done = log.rebuild(lambda count, total: bar.to(count, count, total), hands=hands)
    if json:
        print_json({"log": name, **msgspec.to_builtins(done)})
    else:
        made = done.snapshot or f"{show_count(done.runs, 'run')} made from {show_count(done.records, 'record')}"
        say((name, "cyan"), ": ", plural(done.ids, "id"), f" up to position {done.position:,}, {made}")


def _purged(log: Log, hands: Hands | None, *, remove: bool, json: bool) -> Purge:
    with meter("purging" if remove else "looking", hidden=json) as bar:
        return log.purge(remove=remove, progress=lambda done, total: bar.to(done, done, total), hands=hands)


def purge(
    name: Name,
    url: Url,
    *,
    remove: Annotated[bool, typer.Option("--remove", metavar="", help="Purge what is found.")] = False,
    yes: Yes = False,
    master: ByMaster = None,
    json: Json = False,
) -> None:
    """Find duplicates that came in when the window had forgotten the first, and with --remove purge them.

    A purged record leaves its place behind, emptied: no position moves, readers skip it, and a retry still meets it.
    The original file is kept until the new one is in place. Records with the same id and other content are left alone.
    With --master, the tasks of a Spark look for them, and rewrite the files.
    """
    with opened(url, name) as log, _hands(master, url, name) as hands:
        found = None if remove and yes else _purged(log, hands, remove=False, json=json)
        if found is not None and remove and found.duplicates:
            asking.confirm(f"Purge {show_count(found.duplicates, 'duplicate')} from {name}?")
            found = None
        if found is None:
            log.seal()
            found = _purged(log, hands, remove=True, json=json)
    if json:
        print_json({"log": name, **msgspec.to_builtins(found)})
        return
    what = f", {found.purged:,} purged" if remove else ""
    left = f", {found.unsealed:,} in the open segment" if found.unsealed else ""
    aside = f"; {show_count(found.conflicts, 'conflict')} left alone" if found.conflicts else ""
    say(
        (name, "cyan"), ": ", plural(found.duplicates, "duplicate"), f" in {found.records:,} records{what}{left}{aside}"
    )
