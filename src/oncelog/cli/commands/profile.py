"""``oncelog profile``: databases by a name of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from oncelog import names, profiles
from oncelog.cli.terminal.options import Json
from oncelog.cli.terminal.output import print_json, print_list, say
from oncelog.cli.terminal.plain import Verbs
from oncelog.redaction import redacted

app = Verbs("", "Profiles: databases by a name of your own, for --profile.", heading="Examples")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The profile's name.", show_default=False)]


@app.verb(
    "profile add prod oncelog://logs.example.com:7676 --tls --token-file ~/.config/oncelog/prod.token",
    "profile add test ./shop",
    "--profile prod log list",
)
def add(
    name: Name,
    url: Annotated[str, typer.Argument(metavar="URL", help="The database: a server, a bucket, a folder.")],
    *,
    token_file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A file with the token; nobody else may read it.")
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", metavar="", help="Speak TLS, and trust what the system trusts.")
    ] = False,
    tls_ca: Annotated[Path | None, typer.Option(metavar="PATH", help="The certificates to trust instead.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="PATH", help="Your own certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="PATH", help="Its key; nobody else may read it.")] = None,
    tls_name: Annotated[str | None, typer.Option(metavar="NAME", help="The name in the server's certificate.")] = None,
    json: Json = False,
) -> None:
    """Store a database under a name; a profile of that name is replaced.

    No secret is stored in a profile: it says which file the token is in. That file is refused if others may read it.
    """
    given = {
        "token_file": token_file,
        "tls": "true" if tls else None,
        "tls_ca": tls_ca,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_name": tls_name,
    }
    options = {key: str(value) for key, value in given.items() if value is not None}
    if url.startswith(names.SERVER_SCHEMES):
        from oncelog.client.address import parse  # noqa: PLC0415  (help does not wait for it)

        parse(url, options)  # a URL with a secret in it, or a file that is not there, is refused now
    replaced = profiles.add(name, profiles.Profile(url, options), profiles.path())
    if json:
        print_json({"name": name, "url": url, "replaced": replaced})
    else:
        say((name, "cyan"), " is replaced" if replaced else " is stored", ": use it by --profile or ONCELOG_PROFILE")


@app.verb("profile list", "profile list --json | jq .name", name="list")
def list_profiles(*, json: Json = False) -> None:
    """List the profiles. With --json: one object a line."""
    file = profiles.path()
    shown = [
        {"name": name, "url": redacted(profile.url), "options": dict(profile.options)}
        for name, profile in profiles.load(file).items()
    ]
    columns = [("name", "left"), ("url", "fold"), ("options", "fold")]
    print_list(shown, columns, _row, "there are no profiles in ", (str(file), "cyan"), json=json)


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    return one["name"], one["url"], " ".join(f"{key}={value}" for key, value in one["options"].items())


@app.verb("profile remove test")
def remove(name: Name, *, json: Json = False) -> None:
    """Forget a profile; the files that it names stay."""
    profiles.remove(name, profiles.path())
    if json:
        print_json({"name": name, "removed": True})
    else:
        say((name, "cyan"), " is removed")
