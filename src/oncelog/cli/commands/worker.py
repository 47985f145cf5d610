"""``oncelog worker``: run a function for the messages of a queue."""

from __future__ import annotations

import importlib
import os
import stat
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

import oncelog
from oncelog.cli.terminal.options import Json, Url, paragraphs
from oncelog.cli.terminal.output import note, print_json, say
from oncelog.cli.terminal.quantities import duration_s
from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument

_STYLES = {"done": "green", "skipped": "cyan", "back": "green", "failed": "yellow", "dead": "red", "away": "red"}
_HELP = """Run MODULE:FUNCTION for each message of a queue, until SIGTERM or Ctrl-C: then what is in hand is finished.

The function gets the delivery, and the effect if it has a parameter of that name; it may be async. With --inbox its
effect happens once, however often the message comes."""
_EXAMPLES = """Examples, with ONCELOG_URL set:

  [cyan]oncelog worker shop.mails:send emails --inbox postgresql:///shop --concurrency 8[/]
  [cyan]oncelog worker shop.mails:send emails --group mailer --inbox redis://localhost --lease 30s[/]"""

Inbox = Annotated[
    str | None,
    typer.Option(
        "--inbox",
        envvar="ONCELOG_INBOX",
        metavar="URL",
        help="Where keys and results are kept: sqlite:///path, postgresql://… or redis://….",
        show_default=False,
    ),
]


def run(
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What to run.", show_default=False)],
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", show_default=False)],
    url: Url,
    *,
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The group of consumers.")] = "default",
    inbox: Inbox = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="How many messages at once.")] = 1,
    lease: Annotated[
        float | None,
        typer.Option(
            parser=duration_s,
            metavar="DURATION",
            help="Take keys ahead, for so long; always so in Redis.",
            show_default="one transaction with the effect",
        ),
    ] = None,
    expired: Annotated[
        str, typer.Option(metavar="POLICY", help="What becomes of an effect whose lease ran out: rerun, fail, manual.")
    ] = "rerun",
    state: Annotated[
        str | None,
        typer.Option(envvar="ONCELOG_QUEUE_STATE", metavar="URL", help="Where the queue's brokers remember."),
    ] = None,
    json: Json = False,
) -> None:
    """Run a function for the messages of a queue."""
    handler = _loaded(function)
    options: dict[str, Any] = {"lease_s": lease, "expired": expired}
    kept = oncelog.Inbox(inbox, **options) if inbox is not None else None
    try:
        with oncelog.connect(url) as db:
            opened = db.queue(queue, state=state)
            report = _json_report if json else _report
            worker = oncelog.worker(opened, group, handler, inbox=kept, concurrency=concurrency, report=report)
            if not json:
                note("working on ", (queue, "cyan"), " as ", (group, "cyan"), ": Ctrl-C finishes what is in hand")
            worker.run()
            counts = worker.counts()
    finally:
        if kept is not None:
            kept.close()
    if json:
        print_json({"counts": counts})
    else:
        say("stopped: ", ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "nothing was done")


def _loaded(function: str) -> Callable[..., Any]:
    module, colon, name = function.partition(":")
    if not colon or not module or not name:
        message = f"{function!r}: name what to run as MODULE:FUNCTION"
        raise InvalidArgument(message)
    _look_here()
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever a module does when it is loaded
        reason = error if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        message = f"{function!r} cannot be loaded: {reason}"
        raise InvalidArgument(message) from error
    loaded: Callable[..., Any] = found
    return loaded


def _look_here() -> None:
    """Let a module of the working folder be found, behind all that is installed, unless others can write there.

    In front, a file of a common name (``json.py``) in a folder such as ``/tmp`` would run in the place of Python's own.
    """
    here = Path.cwd()
    found = here.stat()
    if found.st_uid in {os.geteuid(), 0} and not found.st_mode & stat.S_IWOTH:
        sys.path.append(str(here))


def _report(word: str, about: str) -> None:
    at = datetime.fromtimestamp(SYSTEM.now_us() / 1e6, UTC)
    first, *_ = about.splitlines() or [""]
    say((f"{at:%H:%M:%S} ", "dim"), (f"{word:<8} ", _STYLES.get(word, "")), first)


def _json_report(word: str, about: str) -> None:
    print_json({"event": word, "about": about, "at_us": SYSTEM.now_us()})
    sys.stdout.flush()


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("worker", help=paragraphs(_HELP), epilog=_EXAMPLES)(run)
