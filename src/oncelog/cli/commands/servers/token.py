"""``oncelog token``: who may call a server, and what each may do there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncelog import names
from oncelog.cli.terminal import asking
from oncelog.cli.terminal.options import Json, SourceUrl, Yes
from oncelog.cli.terminal.output import note, print_json, print_list, say
from oncelog.cli.terminal.plain import Verbs
from oncelog.cli.terminal.quantities import duration_s, show_duration
from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument

if TYPE_CHECKING:
    from oncelog.server.security.tokens import Place

app = Verbs(
    "token",
    "Tokens: who may call a server, and what each may do there.",
    heading="Examples, with ONCELOG_URL or ONCELOG_TOKENS set",
)
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


@app.verb(
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


@app.verb("list", "list --json | jq .name", name="list")
def list_tokens(tokens: TokensPath = None, url: SourceUrl = None, *, json: Json = False) -> None:
    """List the tokens: their names and what they allow, never the tokens themselves.

    With --json: one object a line.
    """
    from oncelog.server.security import tokens as stored  # noqa: PLC0415

    with _place(tokens, url) as place:
        found, where = stored.stored(place), str(place)
    now_us = SYSTEM.now_us()

    def plain(token: stored.Token) -> dict[str, Any]:
        return {key: getattr(token, key) for key in ("name", "allow", "created_us", "expires_us")}

    def row(token: stored.Token) -> tuple[str, ...]:
        made = f"{show_duration((now_us - token.created_us) / 1e6)} ago"
        return token.name, " ".join(token.allow), made, _ends(token.expires_us, now_us)

    columns = [("name", "left"), ("allows", "fold"), ("made", "right"), ("ends", "right")]
    print_list(found, columns, row, "there are no tokens in ", (where, "cyan"), json=json, plain=plain)


def _ends(expires_us: int | None, now_us: int) -> str:
    if expires_us is None:
        return "never"
    return f"in {show_duration((expires_us - now_us) / 1e6)}" if expires_us > now_us else "has ended"


@app.verb("revoke importer", "revoke importer --yes")
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
