"""``oncelog console``: what a database holds, in a browser, beside the process that writes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated

import typer

import oncelog
from oncelog.cli.terminal.options import Json, Url
from oncelog.cli.terminal.output import note, print_json, say
from oncelog.cli.terminal.plain import paragraphs
from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument, Unsupported

PORT = 7678
_HELP = """Show a database in a browser: logs, ids, streams, queues, dead letters. The console only looks.

It listens on this machine alone. The link that it prints has a key, so that other users of the machine see nothing."""
_EXAMPLES = """Examples:

  [cyan]oncelog console --url file:///var/lib/shop --open[/]
  [cyan]oncelog console --url file:///var/lib/shop --inbox shop=sqlite:////var/lib/shop/inbox.db[/]"""

Inboxes = Annotated[
    list[str], typer.Option("--inbox", metavar="NAME=URL", help="An inbox to look into; may be repeated.")
]
Reports = Annotated[
    list[str], typer.Option("--report", metavar="NAME=FILE", help="A pipeline's report to show; may be repeated.")
]


def run(
    url: Url,
    *,
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 picks a free one.")] = PORT,
    inbox: Inboxes = [],  # noqa: B006 (typer wants a list)
    report: Reports = [],  # noqa: B006 (as above)
    open_browser: Annotated[bool, typer.Option("--open", metavar="", help="Open it in a browser.")] = False,
    json: Json = False,
) -> None:
    """Show a database in a browser."""
    try:
        from oncelog.console import local  # noqa: PLC0415  its packages are an extra
        from oncelog.console.source import Source  # noqa: PLC0415
    except ImportError as error:
        message = "the console needs packages that are not installed: pip install 'oncelog[server]'"
        raise Unsupported(message) from error

    def announce(link: str) -> None:
        if json:
            print_json({"url": link})
        else:
            say("console: ", (link, "cyan"))
            note("Ctrl-C ends it")
        if open_browser:
            import webbrowser  # noqa: PLC0415 (help does not wait for it)

            webbrowser.open(link)

    with contextlib.ExitStack() as ending:
        database = ending.enter_context(oncelog.connect(url))
        inboxes = {name: oncelog.Inbox(where) for name, where in _named("--inbox", inbox, _INBOX).items()}
        for one in inboxes.values():
            ending.callback(one.close)
        reports = _named("--report", report, _REPORT)
        local.run(Source(database, inboxes=inboxes, reports=reports), port, announce, clock=SYSTEM)


_INBOX = "NAME=URL, such as shop=sqlite:////var/lib/shop/inbox.db"
_REPORT = "NAME=FILE, such as orders=/var/lib/shop/orders.report.html"


def _named(option: str, given: Sequence[str], form: str) -> dict[str, str]:
    """Return what stands behind each name."""
    pairs = {name: where for name, _, where in (text.partition("=") for text in given)}
    if not all(name and where for name, where in pairs.items()):
        message = f"{option} is {', '.join(given)}: must be {form}"
        raise InvalidArgument(message)
    return pairs


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("console", help=paragraphs(_HELP), epilog=_EXAMPLES)(run)
