"""``oncelog token``: who may call a server, and what each may do there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from oncelog import names
from oncelog.cli.terminal import asking
from oncelog.cli.terminal.options import Json, SourceUrl, Yes, paragraphs, show_help
from oncelog.cli.terminal.output import note, print_json, print_table, say
from oncelog.cli.terminal.plain import Shell
from oncelog.cli.terminal.quantities import duration_s, show_duration
from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument

if TYPE_CHECKING:
    from oncelog.server.security.tokens import Place

app = Shell(
    help="Tokens: who may call a server, and what each may do there.", callback=show_help, invoke_without_command=True
)
_Command = TypeVar("_Command", bound=Callable[..., Any])

Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is: shown in the audit log.")]
TokensPath = Annotated[
    Path | None,
    typer.Option(
        "--tokens",
        "-t",
        envvar="ONCELOG_TOKENS",
        metavar="PATH",
        help="A file of tokens, instead of the database.",
        show_default=False,
    ),
]


@contextlib.contextmanager
def _place(path: Path | None, url: str | None) -> Iterator[Place]:
    """Yield where the tokens are: a file, or the database."""
    if path is not None:
        yield path
        return
    if url is None:
        message = "say where the tokens are: --url, the database that the servers serve, or --tokens, a file"
        raise InvalidArgument(message)
    import oncelog  # noqa: PLC0415  (help does not wait for Arrow)
    from oncelog import inner  # noqa: PLC0415
    from oncelog.server.security import token_object  # noqa: PLC0415

    if url.startswith(names.SERVER_SCHEMES):
        message = f"{url} is a server: make tokens where its database is, with the URL of that"
        raise InvalidArgument(message)
    with oncelog.connect(url) as database:
        yield token_object.TokenObject(inner.home(database, token_object.HOME))


def _command(*examples: str, name: str | None = None) -> Callable[[_Command], _Command]:
    """Make a command, with examples below its help."""
    lines = "\n".join(f"  [cyan]oncelog token {example}[/]" for example in examples)

    def made(command: _Command) -> _Command:
        text = paragraphs(command.__doc__ or "")
        epilog = f"Examples, with ONCELOG_URL or ONCELOG_TOKENS set:\n\n{lines}"
        return app.command(name, help=text, epilog=epilog)(command)

    return made


@_command(
    "create importer --allow append:shop/orders",
    "create dashboard --allow 'look,read:shop/*' --expires 30d",
    "create operator --allow 'look,read,append,consume,admin:*'",
)
def create(
    name: Name,
    tokens: TokensPath = None,
    url: SourceUrl = None,
    *,
    allow: Annotated[
        list[str],
        typer.Option(
            metavar="VERBS:NAMES",
            help="Verbs of look, read, append, consume, admin; a name, a namespace/* or *. May be repeated.",
            show_default=False,
        ),
    ],
    expires: Annotated[
        float | None, typer.Option(parser=duration_s, metavar="DURATION", help="When it ends.", show_default="never")
    ] = None,
    json: Json = False,
) -> None:
    """Make a token, and print it: this once.

    Only its SHA-256 is stored: in the database, for all its servers, or in a file that nobody else can read. Servers
    that are running take it within five seconds.
    """
    from oncelog.server.security import tokens as stored  # noqa: PLC0415  (help does not wait for Arrow)

    with _place(tokens, url) as place:
        secret = stored.create(place, name, allow, SYSTEM, expires_s=expires)
    if json:
        print_json({"name": name, "token": secret, "allow": allow})
    else:
        say(secret)
        note("Keep it: it is shown this once. Programs read it from ONCELOG_TOKEN.")


@_command("list", "list --json | jq .name", name="list")
def list_tokens(tokens: TokensPath = None, url: SourceUrl = None, *, json: Json = False) -> None:
    """List the tokens: their names and what they allow, never the tokens themselves.

    With --json: one object a line.
    """
    from oncelog.server.security import tokens as stored  # noqa: PLC0415

    with _place(tokens, url) as place:
        found, where = stored.stored(place), str(place)
    now_us = SYSTEM.now_us()
    for token in found if json else ():
        print_json(
            {"name": token.name, "allow": token.allow, "created_us": token.created_us, "expires_us": token.expires_us}
        )
    if not json and found:
        columns = [("name", "left"), ("allows", "fold"), ("made", "right"), ("ends", "right")]
        print_table(
            columns,
            [
                (
                    token.name,
                    " ".join(token.allow),
                    f"{show_duration((now_us - token.created_us) / 1e6)} ago",
                    _ends(token.expires_us, now_us),
                )
                for token in found
            ],
        )
    elif not json:
        say("there are no tokens in ", (where, "cyan"))


def _ends(expires_us: int | None, now_us: int) -> str:
    if expires_us is None:
        return "never"
    return f"in {show_duration((expires_us - now_us) / 1e6)}" if expires_us > now_us else "has ended"


@_command("revoke importer", "revoke importer --yes")
def revoke(
    name: Name, tokens: TokensPath = None, url: SourceUrl = None, *, yes: Yes = False, json: Json = False
) -> None:
    """Revoke a token. Servers that are running refuse it within five seconds, and end its streams within 30 s."""
    from oncelog.server.security import tokens as stored  # noqa: PLC0415

    if not yes:
        asking.confirm(f"Revoke the token {name}? Programs that use it are refused from now on.")
    with _place(tokens, url) as place:
        stored.revoke(place, name)
    if json:
        print_json({"name": name, "revoked": True})
    else:
        say((name, "cyan"), " is revoked")
