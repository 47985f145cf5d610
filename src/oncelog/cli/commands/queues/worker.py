"""``oncelog worker``: run a function for the messages of a queue."""

from __future__ import annotations

import importlib
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

import oncelog
from oncelog.cli.commands.queues.options import Group, State
from oncelog.cli.terminal.options import Json, Url
from oncelog.cli.terminal.output import note, print_json, say
from oncelog.cli.terminal.plain import paragraphs
from oncelog.cli.terminal.quantities import duration_s
from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument

_STYLES = {"done": "green", "duplicate": "cyan", "back": "green", "failed": "yellow", "dead": "red", "away": "red"}
_LEVELS = ("debug", "info", "warning", "error")
_HELP = """Run MODULE:FUNCTION for each message of QUEUE, until SIGTERM or Ctrl-C: then what is in hand is finished.

The function gets the delivery, and the effect if it has a parameter of that name; it may be async. With --inbox its
effect happens once, however often the message comes. More pairs of a function and its queue run in the same process.

What a function raises is logged with its traceback, to stderr."""
_EXAMPLES = """Examples, with ONCELOG_URL set:

  [cyan]oncelog worker shop.mails:send emails --inbox postgresql:///shop --concurrency 8[/]
  [cyan]oncelog worker shop.mails:send emails --group mailer --inbox redis://localhost --lease 30s[/]
  [cyan]oncelog worker shop.mails:send emails shop.bills:make bills --time-limit 1m --ack-timeout 2m[/]"""

Pairs = Annotated[
    list[str],
    typer.Argument(
        metavar="MODULE:FUNCTION QUEUE",
        help="What to run, and the name of the queue to run it for; as many pairs as there are functions.",
        show_default=False,
    ),
]
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


def _duration(help: str, default: str) -> Any:
    return typer.Option(parser=duration_s, metavar="DURATION", help=help, show_default=default)


Concurrency = Annotated[int, typer.Option(min=1, metavar="N", help="How many messages at once, a function.")]
AckTimeout = Annotated[
    float | None, _duration("After how long without a sign of life a message is another worker's.", "as the queue says")
]
TimeLimit = Annotated[
    float | None,
    _duration("How long a function may take; then it has failed, and its message comes again.", "no limit"),
]
Lease = Annotated[
    float | None, _duration("Take keys ahead, for so long; always so in Redis.", "one transaction with the effect")
]
LogLevel = Annotated[str, typer.Option(metavar="LEVEL", help="What is logged to stderr: debug, info, warning, error.")]
Expired = Annotated[
    str, typer.Option(metavar="POLICY", help="What becomes of an effect whose lease ran out: rerun, fail, manual.")
]


def run(
    pairs: Pairs,
    url: Url,
    *,
    group: Group = "default",
    inbox: Inbox = None,
    concurrency: Concurrency = 1,
    ack_timeout: AckTimeout = None,
    time_limit: TimeLimit = None,
    log_level: LogLevel = "warning",
    lease: Lease = None,
    expired: Expired = "rerun",
    state: State = None,
    json: Json = False,
) -> None:
    """Run a function for the messages of a queue."""
    from oncelog.server.watch import log_lines  # noqa: PLC0415  (help does not wait for numpy)

    handlers = _paired(pairs)
    log_lines.set_up(as_json=json, level=_level(log_level))
    options: dict[str, Any] = {"lease_s": lease, "expired": expired}
    kept = oncelog.Inbox(inbox, **options) if inbox is not None else None
    try:
        with oncelog.connect(url) as db:
            workers = [
                oncelog.worker(
                    db.queue(queue, state=state),
                    group,
                    handler,
                    inbox=kept,
                    concurrency=concurrency,
                    ack_timeout_s=ack_timeout,
                    time_limit_s=time_limit,
                    report=_json_report if json else _report,
                )
                for handler, queue in handlers
            ]
            if not json:
                queues = ", ".join(queue for _, queue in handlers)
                note("working on ", (queues, "cyan"), " as ", (group, "cyan"), ": Ctrl-C finishes what is in hand")
            oncelog.run_workers(workers)
            counts: Counter[str] = sum((Counter(worker.counts()) for worker in workers), Counter())
    finally:
        if kept is not None:
            kept.close()
    if json:
        print_json({"counts": counts})
    else:
        say("stopped: ", ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "nothing was done")


def _paired(pairs: list[str]) -> list[tuple[Callable[..., Any], str]]:
    """Return functions with the queues that they are for. One queue has one function of a group."""
    functions, queues = pairs[::2], pairs[1::2]
    if len(functions) != len(queues):
        message = f"{functions[-1]!r}: name the queue behind it; functions and queues come in pairs"
        raise InvalidArgument(message)
    for queue in queues:
        if queues.count(queue) > 1:
            message = f"queue {queue!r} is there twice: two functions of one group would share its messages at random"
            raise InvalidArgument(message)
    return [(_loaded(function), queue) for function, queue in zip(functions, queues, strict=True)]


def _level(name: str) -> str:
    if name.lower() not in _LEVELS:
        message = f"--log-level {name}: must be one of {', '.join(_LEVELS)}"
        raise InvalidArgument(message)
    return name.lower()


def _loaded(function: str) -> Callable[..., Any]:
    module, colon, name = function.partition(":")
    if not colon or not module or not name:
        message = f"{function!r}: name what to run as MODULE:FUNCTION"
        raise InvalidArgument(message)
    refused = _look_here()
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever a module does when it is loaded
        reason = error if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        is_missing = isinstance(error, ModuleNotFoundError) and refused is not None
        message = f"{function!r} cannot be loaded: {reason}" + (f"; {refused}" if is_missing else "")
        raise InvalidArgument(message) from error
    loaded: Callable[..., Any] = found
    return loaded


def _look_here() -> str | None:
    """Let a module of the working folder be found, behind all that is installed, unless others can write there. Return
    why it is not looked for there, if so.

    In front, a file of a common name (``json.py``) in a folder such as ``/tmp`` would run in the place of Python's own.
    """
    here = Path.cwd()
    found = here.stat()
    if found.st_uid not in {os.geteuid(), 0}:
        return f"the folder {here} was not looked in, for it belongs to another user; PYTHONPATH can name it"
    if found.st_mode & stat.S_IWOTH:
        return f"the folder {here} was not looked in, for every user can write there; PYTHONPATH can name it"
    sys.path.append(str(here))
    return None


def _report(event: oncelog.WorkerEvent) -> None:
    at = datetime.fromtimestamp(SYSTEM.now_us() / 1e6, UTC)
    first, *_ = event.about.splitlines() or [""]
    say((f"{at:%H:%M:%S} ", "dim"), (f"{event.word:<9} ", _STYLES.get(event.word, "")), first)


def _json_report(event: oncelog.WorkerEvent) -> None:
    told: dict[str, object] = {"event": event.word, "about": event.about, "at_us": SYSTEM.now_us()}
    if event.delivery is not None:
        delivery = event.delivery
        told |= {"queue": delivery.topic, "id": delivery.id, "attempts": delivery.attempts}
    if event.error is not None:
        told["error"] = type(event.error).__name__
    print_json(told)
    sys.stdout.flush()


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("worker", help=paragraphs(_HELP), epilog=_EXAMPLES)(run)
