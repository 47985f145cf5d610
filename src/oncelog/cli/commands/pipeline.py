"""``oncelog pipeline``: records from anywhere, into a log once, and on from there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer
from rich.text import Text

from oncelog.cli.terminal.options import Json, paragraphs, show_help
from oncelog.cli.terminal.outcome import ExitCode
from oncelog.cli.terminal.output import Meter, meter, note, print_facts, print_json, say
from oncelog.cli.terminal.plain import Shell
from oncelog.cli.terminal.quantities import show_count, show_duration, show_time
from oncelog.errors import InvalidArgument

if TYPE_CHECKING:
    from oncelog.spark.pipeline.history import Batch, Leg
    from oncelog.spark.pipeline.mistakes import Mistake
    from oncelog.spark.pipeline.pipeline import Outcome
    from oncelog.spark.pipeline.progress import Status
    from oncelog.spark.pipeline.rehearsal import Rehearsal
    from oncelog.spark.pipeline.spec import Spec

app = Shell(
    help="Pipelines: records from anywhere, into a log once, and on from there.",
    callback=show_help,
    invoke_without_command=True,
)

_NAMED_MAX = 5
_Command = TypeVar("_Command", bound=Callable[..., Any])

SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="The pipeline's TOML file.", show_default=False)]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="The Spark to run on, instead of the spec's.")
]


def _command(*examples: str) -> Callable[[_Command], _Command]:
    """Make a command, with examples below its help."""
    lines = "\n".join(f"  [cyan]oncelog pipeline {example}[/]" for example in examples)

    def made(command: _Command) -> _Command:
        return app.command(help=paragraphs(command.__doc__ or ""), epilog=f"Examples:\n\n{lines}")(command)

    return made


@_command(
    "run orders.toml", "run orders.toml --follow", "run orders.toml --dry-run", "run orders.toml --wait 600 --json"
)
def run(
    spec: SpecFile,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for a run that is under way.", min=0)
    ] = 0.0,
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
    be stored, are there already, clash, or cannot be read, with a few of each. The exit code is 1 if a run would stop.
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
        outcome = running.run(_print_batch if json else _Shown(bar, given.name, batches), follow=follow, wait_s=wait_s)
    target = _report_path(given, spec)
    page.write(target, report.of_run(outcome, list(running.history)))
    if json:
        print_json({"type": "outcome", **msgspec.to_builtins(outcome), "report": str(target)})
    else:
        tell_outcome(outcome, target)
    _warn_of_replaced(outcome.replaced)
    if outcome.missing:
        note(("error:", "bold red"), f" {outcome.missing:,} rows are not accounted for: see the report, and tell us")
        raise typer.Exit(ExitCode.FINDINGS)


def _warn_of_replaced(files: Sequence[str]) -> None:
    """Tell of files that were changed after they were read."""
    for file in files[:_NAMED_MAX]:
        note(
            ("warning:", "yellow"), f" {file} has changed since it was read, and is not read again: give it a new name"
        )
    if len(files) > _NAMED_MAX:
        note(("warning:", "yellow"), f" so have {len(files) - _NAMED_MAX:,} other files")


def _rehearse(given: Spec, folder: Path, *, follow: bool, json: bool) -> None:
    from oncelog.clock import SYSTEM  # noqa: PLC0415 (as above)
    from oncelog.spark.pipeline import rehearsal  # noqa: PLC0415 (as above)

    if follow:
        message = "--dry-run and --follow cannot be had together: a dry run looks at what there is now"
        raise InvalidArgument(message)
    with meter(f"{given.name}: Spark starts", unit="batches", hidden=json) as bar:
        done = rehearsal.rehearse(given, folder, SYSTEM, _Shown(bar, given.name, None))
    if json:
        print_json({"type": "dry run", **msgspec.to_builtins(done)})
    else:
        _tell_rehearsal(done)
    if done.fails or done.missing:
        raise typer.Exit(ExitCode.FINDINGS)


def _tell_rehearsal(done: Rehearsal) -> None:
    facts: list[tuple[str, str | Text]] = [
        ("rows new in the source" if done.resumed else "rows in the source", f"{done.rows:,}"),
        ("would be stored", Text(f"{done.stored:,}", "green")),
        ("duplicates", f"{done.duplicates:,}"),
        ("conflicts", Text(f"{done.conflicts:,}", "yellow" if done.conflicts else "")),
        ("rejected", Text(f"{done.rejected:,}", "yellow" if done.rejected else "")),
    ]
    more = (("left out by SQL", done.left_out), ("rows with fields rescued", done.rescued), ("missing", done.missing))
    facts += [(name, f"{count:,}") for name, count in more if count]
    print_facts([(f"{done.pipeline} → {done.log}: a dry run, nothing was stored", facts)])
    for kind, samples in done.samples.items():
        for sample in samples:
            where = sample.reason or sample.id or ""
            say("  ", (f"{kind}: ", "dim"), (where, "cyan"), "  ", sample.text.rstrip("\n"))
    if done.fails:
        note(("error:", "bold red"), f" a run would stop: {done.fails}")


class _Shown:
    """Shows on a progress bar which batches were done: into the log by their number, out of it by records."""

    def __init__(self, bar: Meter, name: str, batches: int | None) -> None:
        self._bar = bar
        self._name = name
        self._batches = batches
        self._leg: Leg | None = None
        self._rows = self._took_ms = 0

    def __call__(self, batch: Batch) -> None:
        """Show a batch. How quickly it goes is told by Spark's own times: its start does not count."""
        if batch.leg != self._leg:
            self._leg, self._rows, self._took_ms = batch.leg, 0, 0
        self._rows += batch.rows
        self._took_ms += batch.duration_ms
        unit = "batches" if batch.leg == "into the log" else "records"
        self._bar.now(f"{self._name} {batch.leg}", unit, self._rows / max(1, self._took_ms) * 1000)
        if batch.leg == "into the log":
            total = None if self._batches is None else max(self._batches, batch.batch + 1)
            self._bar.to(batch.batch + 1, self._rows, total)
        elif batch.exported is not None:
            self._bar.to(batch.exported, self._rows, batch.stored)


def _print_batch(batch: Batch) -> None:
    print_json(batch)


def _report_path(given: Spec, file: Path) -> Path:
    from oncelog.spark.pipeline import spec as specs  # noqa: PLC0415 (as above)

    if given.report.path is not None:
        return Path(given.report.path)
    checkpoint = specs.local_path(given.checkpoint)
    return checkpoint / "report.html" if checkpoint is not None else file.parent / f"{given.name}.report.html"


def tell_outcome(outcome: Outcome, report: Path | None) -> None:
    """Tell what a run did."""
    facts: list[tuple[str, str | Text]] = [
        ("rows read", f"{outcome.attempts:,}"),
        ("stored", Text(f"{outcome.stored:,}", "green")),
        ("duplicates refused", f"{outcome.duplicates:,}"),
        ("conflicts quarantined", Text(f"{outcome.conflicts:,}", "yellow" if outcome.conflicts else "")),
        ("rows rejected", Text(f"{outcome.rejected:,}", "yellow" if outcome.rejected else "")),
    ]
    for name, count in (
        ("left out by SQL", outcome.left_out),
        ("rows with fields rescued", outcome.rescued),
        ("NOT ACCOUNTED FOR", outcome.missing),
    ):
        if count:
            facts.append((name, f"{count:,}"))
    if outcome.exported is not None:
        facts.append(("sent on", f"{outcome.exported:,}"))
    took = f"{show_count(outcome.batches, 'batch').replace('batchs', 'batches')}, {show_duration(outcome.seconds)}"
    facts.append(("this run", f"{outcome.rows:,} rows in {took}"))
    if report is not None:
        facts.append(("report", Text(str(report), "cyan")))
    print_facts([(f"{outcome.pipeline} → {outcome.log}", facts)])


def _checked(file: Path, master: str | None = None) -> Spec:
    """Return a spec that can be run; ``InvalidArgument`` that names its mistakes otherwise."""
    from oncelog.spark.pipeline import check  # noqa: PLC0415 (as above)
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


@_command("check orders.toml", "check orders.toml --quick", "check orders.toml --json | jq '.mistakes[]'")
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
    from oncelog.spark.pipeline import check, check_with_spark, explain  # noqa: PLC0415 (as above)
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
        _tell_check(spec, steps, schema, found, ok=ok)
    if not ok:
        raise typer.Exit(ExitCode.FINDINGS)


def _tell_check(
    file: Path, steps: list[tuple[str, str]], schema: str | None, found: list[Mistake], *, ok: bool
) -> None:
    facts: list[tuple[str, str | Text]] = [(name, text) for name, text in steps]
    if schema is not None:
        facts.insert(2 if any(name == "transform" for name, _ in steps) else 1, ("columns", schema[7:-1]))
    if facts:
        print_facts([("", facts)])
        say()
    for mistake in found:
        style = "bold red" if mistake.severity == "error" else "yellow"
        where = f"{file}:{mistake.line}" if mistake.line is not None else str(file)
        key = f" {mistake.key}:" if mistake.key else ""
        say((f"{mistake.severity}:", style), f" {where}:{key} {mistake.what}")
        if mistake.suggestion:
            say("    ", (mistake.suggestion, "green"))
    if ok:
        say((str(file), "cyan"), " can be ", ("run", "bold green"))


@_command("status orders.toml", "status orders.toml --json | jq .behind")
def status(spec: SpecFile, *, json: Json = False) -> None:
    """Show how far a pipeline is: who runs it, what all runs did, what waits, and what the sink has yet to get.

    Spark is not started, and nothing is written. The exit code is 1 if rows are not accounted for.
    """
    from oncelog.spark.pipeline import progress  # noqa: PLC0415 (as above)

    found = progress.status(_checked(spec), spec.parent)
    if json:
        print_json(found)
    else:
        _tell_status(found)
        _warn_of_replaced(found.files.replaced if found.files is not None else ())
    if found.missing:
        raise typer.Exit(ExitCode.FINDINGS)


def _tell_status(found: Status) -> None:
    from oncelog.types import moment  # noqa: PLC0415 (as above)

    state = Text(f"running: {found.running}", "green") if found.running is not None else Text("not running")
    if found.killed:
        state = Text("not running; the last run was killed: run it again", "yellow")
    times = [("last run began", found.last_started_us), ("last batch", found.last_batch_us)]
    facts: list[tuple[str, str | Text]] = [("state", state), ("runs", f"{found.runs:,}")]
    facts += [(name, show_time(moment(at_us))) for name, at_us in times if at_us is not None]
    facts += [
        ("rows read", f"{found.attempts:,}"),
        ("stored", f"{found.stored:,}"),
        ("duplicates refused", f"{found.duplicates:,}"),
        ("conflicts quarantined", f"{found.conflicts:,}"),
        ("rows rejected", f"{found.rejected:,}"),
    ]
    more = (("left out by SQL", found.left_out), ("rows with fields rescued", found.rescued))
    facts += [(name, f"{count:,}") for name, count in (*more, ("NOT ACCOUNTED FOR", found.missing)) if count]
    if found.behind is not None:
        facts.append(("sent on", f"{found.exported:,}; {found.behind:,} records wait"))
    if found.files is not None:
        facts.append(("files", f"{found.files.taken:,} taken, {len(found.files.waiting):,} wait"))
    print_facts([(f"{found.pipeline} → {found.log}", facts)])


@_command("rejected orders.toml", "rejected orders.toml --save mended.jsonl", "rejected orders.toml --json")
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
        say(f"{count:,} texts are in ", (str(save), "cyan"), ": mend them, and put the file into the source's folder")
        return
    for one in found:
        if json:
            print_json(one)
        else:
            place = f"{one.file}:{one.line}" if one.file else "a row of SQL's"
            say((f"{one.position}", "bold"), " ", (place, "cyan"), f": {one.reason}")
            say("    ", one.text[:200].rstrip("\n"))


@_command("init orders.toml", "init clicks.toml --input clicks/ --id-field click_id")
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
        with spec.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        message = f"{spec} is there already: name another file, or remove it first"
        raise InvalidArgument(message) from error
    if json:
        print_json({"spec": str(spec), "written": True})
    else:
        say((str(spec), "cyan"), " is written; next: ", (f"oncelog pipeline check {spec}", "bold"))
    if not Path(spec.parent, input).exists() and not json:
        note(("note:", "yellow"), f" its input, {input}, is not there yet")
