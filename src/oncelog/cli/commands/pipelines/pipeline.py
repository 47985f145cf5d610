"""``oncelog pipeline``: records from anywhere, into a log once, and on from there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from oncelog.cli.commands.pipelines import output
from oncelog.cli.terminal.options import Json
from oncelog.cli.terminal.outcome import ExitCode
from oncelog.cli.terminal.output import meter, note, plural, print_json, say
from oncelog.cli.terminal.plain import Verbs
from oncelog.cli.terminal.quantities import duration_s
from oncelog.errors import InvalidArgument

if TYPE_CHECKING:
    from oncelog.spark.pipeline.spec import Spec

app = Verbs("pipeline", "Pipelines: records from anywhere, into a log once, and on from there.", heading="Examples")

SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="The pipeline's TOML file.", show_default=False)]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="The Spark to run on, instead of the spec's.")
]

WaitForRun = Annotated[
    float,
    typer.Option(
        "--wait",
        parser=duration_s,
        metavar="DURATION",
        help="How long to wait for a run that is under way.",
        show_default="0 s",
    ),
]


@app.verb(
    "run orders.toml", "run orders.toml --follow", "run orders.toml --dry-run", "run orders.toml --wait 600 --json"
)
def run(
    spec: SpecFile,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    wait_s: WaitForRun = 0.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Store nothing: tell what a run would do now.")
    ] = False,
    master: Master = None,
    json: Json = False,
) -> None:
    """Run a pipeline until all there is has gone through.

    It may be killed at any moment and run again: what is in the log is recognised, what is not goes in. One run at a
    time: a second one says who runs, and ends with exit code 3, unless it is to wait. With --json: one object for each
    batch, and the outcome at the end. A report is written beside the pipeline's progress.

    With --dry-run nothing is stored, noted or sent on. It tells how many of the rows that are new in the source would
    be stored, are duplicates or conflicts, or cannot be read, with a few of each. The exit code is 1 if a run would
    stop.
    """
    from oncelog.clock import SYSTEM  # noqa: PLC0415 (as below)
    from oncelog.spark.pipeline import pipeline as pipelines  # noqa: PLC0415 (as above)
    from oncelog.spark.pipeline import spec as specs  # noqa: PLC0415 (as above)
    from oncelog.spark.report import page, report  # noqa: PLC0415 (pyarrow is not for those who ask for help)

    given = _checked(spec, master)
    if dry_run:
        _rehearse(given, spec.parent, follow=follow, json=json)
        return
    running = pipelines.Pipeline(given, spec.parent, SYSTEM)
    batches = None if follow else specs.batches_expected(given)
    with meter(f"{given.name}: Spark starts", unit="batches", total=batches, hidden=json) as bar:
        outcome = running.run(
            output.print_batch if json else output.ShownBatches(bar, given.name, batches), follow=follow, wait_s=wait_s
        )
    target = _report_path(given, spec)
    page.write(target, report.of_run(outcome, list(running.history)))
    if json:
        print_json({"type": "outcome", **msgspec.to_builtins(outcome), "report": str(target)})
    else:
        output.tell_outcome(outcome, target)
    output.warn_of_files(outcome.replaced, outcome.passed_over, outcome.vanished)
    if outcome.missing:
        note(("error:", "bold red"), f" {outcome.missing:,} rows are not accounted for: see the report, and tell us")
    if outcome.missing or outcome.vanished:
        raise typer.Exit(ExitCode.FINDINGS)


def _rehearse(given: Spec, folder: Path, *, follow: bool, json: bool) -> None:
    from oncelog.clock import SYSTEM  # noqa: PLC0415 (as above)
    from oncelog.spark.pipeline import rehearsal  # noqa: PLC0415 (as above)

    if follow:
        message = "--dry-run and --follow cannot be had together: a dry run looks at what there is now"
        raise InvalidArgument(message)
    with meter(f"{given.name}: Spark starts", unit="batches", hidden=json) as bar:
        done = rehearsal.rehearse(given, folder, SYSTEM, output.ShownBatches(bar, given.name, None))
    if json:
        print_json({"type": "dry run", **msgspec.to_builtins(done)})
    else:
        output.tell_rehearsal(done)
    output.warn_of_files(vanished=done.vanished)
    if done.fails or done.missing or done.vanished:
        raise typer.Exit(ExitCode.FINDINGS)


def _report_path(given: Spec, file: Path) -> Path:
    from oncelog.spark.pipeline import spec as specs  # noqa: PLC0415 (as above)

    if given.report.path is not None:
        return Path(given.report.path)
    checkpoint = specs.local_path(given.checkpoint)
    return checkpoint / "report.html" if checkpoint is not None else file.parent / f"{given.name}.report.html"


def _checked(file: Path, master: str | None = None) -> Spec:
    """Return a spec that can be run; ``InvalidArgument`` that names its mistakes otherwise."""
    from oncelog.spark.pipeline.checks import check  # noqa: PLC0415 (as above)
    from oncelog.spark.pipeline.mistakes import one_line  # noqa: PLC0415 (as above)

    given, found = check.check(file)
    wrong = [mistake for mistake in found if mistake.severity == "error"]
    if given is None or wrong:
        message = f"{file}: " + "; ".join(one_line(mistake) for mistake in wrong)
        raise InvalidArgument(message)
    return (
        given
        if master is None
        else msgspec.structs.replace(given, run=msgspec.structs.replace(given.run, master=master))
    )


@app.verb("check orders.toml", "check orders.toml --quick", "check orders.toml --json | jq '.mistakes[]'")
def check(
    spec: SpecFile,
    *,
    quick: Annotated[bool, typer.Option("--quick", metavar="", help="Without starting Spark.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", metavar="", help="Start Spark with run.packages and run.conf, which are code.")
    ] = False,
    master: Master = None,
    json: Json = False,
) -> None:
    """Explain what a pipeline would do, and find its mistakes, each with its line and what was probably meant.

    Nothing is read but the source's schema, and nothing is written. Spark is started to look at columns and SQL, unless
    there are mistakes already, or the spec brings code (run.packages, run.conf): say --trust if you trust its author.
    The exit code is 1 if there is an error.
    """
    from oncelog.spark.pipeline.checks import check, check_with_spark, explain  # noqa: PLC0415 (as above)
    from oncelog.spark.session import session  # noqa: PLC0415 (as above)

    given, found = check.check(spec)
    schema = None
    code = check.code_of(spec, given) if given is not None and not quick and not trust else []
    found += code
    if given is not None and not quick and not code and not any(mistake.severity == "error" for mistake in found):
        if master is not None:
            given = msgspec.structs.replace(given, run=msgspec.structs.replace(given.run, master=master))
        run = given.run
        spark = session.start(given.name, run.master, run.conf, run.packages, log_file=Path(os.devnull))
        try:
            schema, more = check_with_spark.check(spec, given, spark)
        finally:
            spark.stop()
        found += more
    steps = explain.explain(given) if given is not None else []
    ok = not any(mistake.severity == "error" for mistake in found)
    if json:
        print_json({"spec": str(spec), "ok": ok, "mistakes": found, "steps": dict(steps), "columns": schema})
    else:
        output.tell_check(spec, steps, schema, found, ok=ok)
    if not ok:
        raise typer.Exit(ExitCode.FINDINGS)


@app.verb(
    "backfill orders.toml --from 2026-01-01 --to 2026-01-31",
    "backfill orders.toml --partition hour --from 9 --to 17 --json",
)
def backfill(
    spec: SpecFile,
    *,
    first: Annotated[str, typer.Option("--from", metavar="VALUE", help="The first day, or value of the partition.")],
    last: Annotated[str, typer.Option("--to", metavar="VALUE", help="The last one; it is included.")],
    partition: Annotated[
        str | None,
        typer.Option("--partition", metavar="COLUMN", help="Folders COLUMN=VALUE of the source, and not days."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", metavar="", help="Read parts again that are done.")] = False,
    master: Master = None,
    json: Json = False,
) -> None:
    """Bring files of the past into a pipeline's log, a partition or a day at a time.

    Days go by when files were last changed (UTC). What the log has already is recognised by its id. The pipeline may
    run meanwhile; what is stored goes on to its sink by the next run. Killed, the backfill goes on with the next part
    when it is run again. With --json: one object for each part.
    """
    from oncelog.clock import SYSTEM  # noqa: PLC0415 (as above)
    from oncelog.spark.pipeline import backfill as backfills  # noqa: PLC0415 (as above)

    given = _checked(spec, master)
    chosen = (
        backfills.days(given, first, last) if partition is None else backfills.partitions(given, partition, first, last)
    )
    running = backfills.Backfill(given, spec.parent, SYSTEM)
    known = {} if again else running.done()
    done = sum(part.name in known for part in chosen)
    with meter(f"{given.name}: Spark starts", unit="parts", total=len(chosen), hidden=json) as bar:
        told = output.Filling(bar, given.name, done, as_json=json)
        filled = running.run(chosen, told, again=again, spark=None)
    if not json:
        output.tell_backfill(given.name, len(chosen), done, filled)
    if any(one.missing for one in filled):
        raise typer.Exit(ExitCode.FINDINGS)


@app.verb("compact orders.toml", "compact orders.toml --target-mib 512 --wait 600 --json")
def compact(
    spec: SpecFile,
    *,
    target_mib: Annotated[
        int, typer.Option("--target-mib", metavar="MIB", help="About how large files are to be.", min=1)
    ] = 128,
    wait_s: WaitForRun = 0.0,
    json: Json = False,
) -> None:
    """Put small files of a pipeline's sink together: parquet, orc, json, csv and text.

    Each row stays in the table once, wherever a compaction is killed: on a disk at every moment; in a bucket a reader
    may miss rows for a moment, and never finds one twice. No run of the pipeline adds to the sink meanwhile.
    """
    from oncelog.clock import SYSTEM  # noqa: PLC0415 (as above)
    from oncelog.spark.pipeline import compact as compacts  # noqa: PLC0415 (as above)

    done = compacts.compact(_checked(spec), SYSTEM, target_bytes=target_mib << 20, wait_s=wait_s)
    if json:
        print_json(done)
    else:
        say(plural(done.files_before, "file"), " before, ", (f"{done.files_after:,}", "bold green"), " now")


@app.verb("status orders.toml", "status orders.toml --json | jq .behind")
def status(spec: SpecFile, *, json: Json = False) -> None:
    """Show how far a pipeline is: who runs it, what all runs did, what waits, and what the sink has yet to get.

    Spark is not started, and nothing is written. The exit code is 1 if rows are not accounted for.
    """
    from oncelog.spark.pipeline import progress  # noqa: PLC0415 (as above)

    found = progress.status(_checked(spec), spec.parent)
    if json:
        print_json(found)
    else:
        output.tell_status(found)
        if found.files is not None:
            output.warn_of_files(found.files.replaced, found.files.passed_over, found.files.vanished)
    if found.missing or (found.files is not None and found.files.vanished):
        raise typer.Exit(ExitCode.FINDINGS)


@app.verb("rejected orders.toml", "rejected orders.toml --save mended.jsonl", "rejected orders.toml --json")
def rejected(
    spec: SpecFile,
    *,
    after: Annotated[int, typer.Option("--after", metavar="POSITION", help="Only those behind this one.")] = -1,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write their texts to a file, to be mended.")
    ] = None,
    json: Json = False,
) -> None:
    """Show the rows that a pipeline could not read, or that cannot be records: file, line, reason and text.

    To send them again: --save their texts, mend the file, and put it into the source's folder.
    """
    from oncelog.spark.pipeline import rejects  # noqa: PLC0415 (as above)

    given = _checked(spec)
    found = rejects.rejected(given, after)
    if save is not None:
        count = rejects.save(given, after, save)
        say(plural(count, "text"), " saved to ", (str(save), "cyan"), ": mend it, and put it into the source's folder")
        return
    for one in found:
        if json:
            print_json(one)
        else:
            place = f"{one.file}:{one.line}" if one.file else "a row of SQL's"
            say((f"{one.position}", "bold"), " ", (place, "cyan"), f": {one.reason}")
            say("    ", one.text[:200].rstrip("\n"))


@app.verb("init orders.toml", "init clicks.toml --input clicks/ --id-field click_id")
def init(
    spec: SpecFile,
    *,
    input: Annotated[str, typer.Option("--input", metavar="PATH", help="The folder of JSON files.")] = "incoming",
    id: Annotated[
        str, typer.Option("--id-field", "--id", metavar="COLUMN", help="The column that has the id.")
    ] = "order_id",
    log_url: Annotated[str, typer.Option("--log-url", metavar="URL", help="The database of the log.")] = "data",
    output: Annotated[str, typer.Option("--output", metavar="PATH", help="The folder of Parquet to write.")] = "out",
    json: Json = False,
) -> None:
    """Write a commented spec to begin with.

    A file that is there is left as it is.
    """
    from oncelog.spark.pipeline.template import template  # noqa: PLC0415 (as above)

    text = template(file=spec.name, name=spec.stem, input=input, id=id, url=log_url, output=output)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        message = "a spec is UTF-8, and a name that was given is not: use another name"
        raise InvalidArgument(message) from error
    try:
        with spec.open("xb") as file:
            file.write(data)
    except FileExistsError as error:
        message = f"{spec} is there already: name another file, or remove it first"
        raise InvalidArgument(message) from error
    if json:
        print_json({"spec": str(spec), "written": True})
    else:
        say((str(spec), "cyan"), " is written; next: ", (f"oncelog pipeline check {spec}", "bold"))
    if not Path(spec.parent, input).exists() and not json:
        note(("note:", "yellow"), f" its input, {input}, is not there yet")
