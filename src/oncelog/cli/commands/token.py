"""``oncelog token``: who may call a server, and what each may do there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from oncelog.cli.terminal import asking
from oncelog.cli.terminal.options import Json, Yes, paragraphs, show_help
from oncelog.cli.terminal.output import note, print_json, print_table, say
from oncelog.cli.terminal.plain import Shell
from oncelog.cli.terminal.quantities import duration_s, show_duration
from oncelog.clock import SYSTEM

app = Shell(
    help="Tokens: who may call a server, and what each may do there.", callback=show_help, invoke_without_command=True
)
_Command = TypeVar("_Command", bound=Callable[..., Any])

Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is: shown in the audit log.")]
TokensPath = Annotated[
    Path,
    typer.Option(
        "--tokens",
        "-t",
        envvar="ONCELOG_TOKENS",
        metavar="PATH",
        help="The file of tokens that the server is started with.",
        show_default=False,
    ),
]


def _command(*examples: str, name: str | None = None) -> Callable[[_Command], _Command]:
    """Make a command, with examples below its help."""
    lines = "\n".join(f"  [cyan]oncelog token {example}[/]" for example in examples)

    def made(command: _Command) -> _Command:
        text = paragraphs(command.__doc__ or "")
        return app.command(name, help=text, epilog=f"Examples, with ONCELOG_TOKENS set:\n\n{lines}")(command)

    return made


@_command(
    "create importer --allow append:shop/orders",
    "create dashboard --allow 'look,read:shop/*' --expires 30d",
    "create operator --allow 'look,read,append,consume,admin:*'",
)
def create(
    name: Name,
    tokens: TokensPath,
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

    Only its SHA-256 is stored, in a file that nobody else can read. A server that is running takes it at once.
    """
    from oncelog.server.security import tokens as stored  # noqa: PLC0415  (help does not wait for Arrow)

    secret = stored.create(tokens, name, allow, SYSTEM, expires_s=expires)
    if json:
        print_json({"name": name, "token": secret, "allow": allow})
    else:
        say(secret)
        note("Keep it: it is shown this once. Programs read it from ONCELOG_TOKEN.")


@_command("list", "list --json | jq .name", name="list")
def list_tokens(tokens: TokensPath, *, json: Json = False) -> None:
    """List the tokens: their names and what they allow, never the tokens themselves.

    With --json: one object a line.
    """
    from oncelog.server.security import tokens as stored  # noqa: PLC0415

    found = stored.stored(tokens)
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
        say("there are no tokens in ", (str(tokens), "cyan"))


def _ends(expires_us: int | None, now_us: int) -> str:
    if expires_us is None:
        return "never"
    return f"in {show_duration((expires_us - now_us) / 1e6)}" if expires_us > now_us else "has ended"


@_command("revoke importer", "revoke importer --yes")
def revoke(name: Name, tokens: TokensPath, *, yes: Yes = False, json: Json = False) -> None:
    """Revoke a token. A server that is running refuses it at once, and ends its streams within 30 s."""
    from oncelog.server.security import tokens as stored  # noqa: PLC0415

    if not yes:
        asking.confirm(f"Revoke the token {name}? Programs that use it are refused from now on.")
    stored.revoke(tokens, name)
    if json:
        print_json({"name": name, "revoked": True})
    else:
        say((name, "cyan"), " is revoked")
