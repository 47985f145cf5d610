"""The shell: ``oncelog …``. It only translates: a program can do everything that the shell does."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from oncelog.cli.nouns import NOUNS, Commands
from oncelog.cli.terminal import database_option
from oncelog.cli.terminal.outcome import EXPECTED, ExitCode, fail, noted_interrupts, silence_stdout
from oncelog.cli.terminal.plain import PlainGroup, Shell, paragraphs, show_help


class _Commands(PlainGroup):
    """All commands; one whose reader has gone (``| head``) is done."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = Commands()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (Typer gives it)
        """Return the words, without loading what is behind them."""
        return list(NOUNS)

    def rows(self, ctx: Any) -> list[tuple[str, str, str]]:  # noqa: ARG002 (a group of loaded commands needs it)
        """Return panel, word and summary of each command, without loading it."""
        return [(noun.panel, word, noun.summary) for word, noun in NOUNS.items()]

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            silence_stdout()
            raise typer.Exit(ExitCode.OK) from None
        return result


_HELP = """Append-only logs in which a retried write is never a second write.

The database is named by --url, before the command or behind it, or once for all commands by
[cyan]ONCELOG_URL=file:///var/lib/shop[/]; or by a profile ([cyan]oncelog profile add[/]): --profile NAME anywhere on
the line, or ONCELOG_PROFILE.

Exit codes: 0 done; 1 done, but something was found, or refused; 2 the call is wrong; 3 try again; 4 the data are
damaged; 130 interrupted."""

_EXAMPLES = """Examples, in an empty folder:

  [cyan]oncelog log append orders --create --url ./shop --id-field id day.jsonl[/]
  [cyan]oncelog log cat orders --url ./shop[/]
  [cyan]oncelog status --url ./shop[/]"""

app = Shell(
    cls=_Commands,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help=paragraphs(_HELP),
    epilog=_EXAMPLES,
    invoke_without_command=True,
)


_RUNS_CODE = frozenset({"pipeline", "worker"})
"""Commands that run what a user wrote. The others have no use for the threads that NumPy starts for linear algebra:
starting them takes a fifth of the time of ``oncelog log list``.
"""


def _version(asked: bool) -> None:  # noqa: FBT001 (an option's callback gets its value so)
    if asked:
        import importlib.metadata  # noqa: PLC0415  help does not wait for it

        sys.stdout.write(f"oncelog {importlib.metadata.version('oncelog')}\n")
        raise typer.Exit


@app.callback()
def _oncelog(
    context: typer.Context,
    *,
    version: Annotated[  # noqa: ARG001 (its callback does the work)
        bool, typer.Option("--version", metavar="", help="Show the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    show_help(context)


def run(arguments: Sequence[str]) -> int:
    """Run a command line; return its exit code."""
    as_json = "--json" in arguments
    if not _RUNS_CODE.intersection(arguments):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 (closed by the caller: <&-)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 (closed by the caller: >&-)
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")
    with noted_interrupts() as interrupts:
        try:
            return _outcome(arguments, as_json=as_json)
        except Exception:  # what broke because an import or a library's callback was interrupted is no bug
            if not interrupts:
                raise
            return ExitCode.INTERRUPTED


def _outcome(arguments: Sequence[str], *, as_json: bool) -> int:
    try:
        with database_option.chosen(arguments) as rest:
            code = app(rest, prog_name="oncelog", standalone_mode=False)
    except BrokenPipeError:
        silence_stdout()
        return ExitCode.OK
    except SystemExit as error:  # so Rich ends when the reader of what it prints has gone (``--help | head -1``)
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return ExitCode.OK
    except EXPECTED as error:
        return fail(error, as_json=as_json)
    return code if isinstance(code, int) else ExitCode.OK


def _log_harmlessly() -> None:
    """Make lines of the standard log, and tracebacks, harmless to a terminal, and take passwords out of them.

    Work in the background says by such a line that it fails, with the text of a storage or of a library. Where nobody
    has set the log up, Python writes lines to stderr as they are; and so it does with an error that nobody expected.
    """
    import logging  # noqa: PLC0415  help does not wait for it
    import threading  # noqa: PLC0415

    from oncelog.redaction import harmless, redacted  # noqa: PLC0415

    def show(error: BaseException | None) -> None:
        import traceback  # noqa: PLC0415

        if sys.stderr is not None:
            sys.stderr.write(harmless(redacted("".join(traceback.format_exception(error)))))

    def show_of_thread(thread: threading.ExceptHookArgs) -> None:
        if not isinstance(thread.exc_value, SystemExit):  # a thread may end so, as Python's own hook has it
            show(thread.exc_value)

    sys.excepthook = lambda _, error, __: show(error)
    threading.excepthook = show_of_thread

    class Harmless(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return harmless(redacted(super().format(record)))

    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Harmless())
    if sys.stderr is not None and sys.stderr.isatty():  # somebody waits there for a server that does not answer
        waiting = logging.StreamHandler()
        waiting.setFormatter(Harmless())
        logging.getLogger("oncelog.client").addHandler(waiting)


def main() -> None:
    """Run the command line of this process, and end it with the exit code."""
    if not {"--help", "-h"}.intersection(sys.argv):
        _log_harmlessly()
    sys.exit(run(sys.argv[1:]))
