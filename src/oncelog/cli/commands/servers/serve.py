"""``oncelog serve``: one process that holds the writers of a database, for any number of clients."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from oncelog.cli.terminal.options import Json, MaybeUrl
from oncelog.cli.terminal.output import print_json, say
from oncelog.cli.terminal.plain import paragraphs
from oncelog.cli.terminal.quantities import duration_s
from oncelog.errors import Unsupported
from oncelog.redaction import redacted

_HELP = """Serve a database over gRPC and HTTP, until SIGTERM or Ctrl-C: then what has arrived is stored first.

When the server is ready it prints the addresses it listens on. Every setting can also be given as an environment
variable (ONCELOG_SERVE_GRPC, say), or in a TOML file; a flag wins over a variable, a variable over the file."""
_EXAMPLES = """Examples:

  [cyan]oncelog serve --url file:///var/lib/shop[/]
  [cyan]oncelog serve --url file:///var/lib/shop --grpc 127.0.0.1:0 --http 127.0.0.1:0 --json[/]
  [cyan]oncelog serve --config /etc/oncelog.toml[/]
  [cyan]oncelog serve --url s3://shop --http 0.0.0.0:7677 --tls-cert c.pem --tls-key k.pem --tokens tokens.json[/]"""


Grpc = Annotated[
    str | None, typer.Option("--grpc", metavar="HOST:PORT", help="Where gRPC listens.", show_default="127.0.0.1:7676")
]
Http = Annotated[
    str | None, typer.Option("--http", metavar="HOST:PORT", help="Where HTTP listens.", show_default="127.0.0.1:7677")
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Its name among the servers of the database.")]
Advertise = Annotated[
    str | None, typer.Option("--advertise", metavar="HOST:PORT", help="Where the other servers reach its gRPC.")
]
AdvertiseHttp = Annotated[
    str | None, typer.Option("--advertise-http", metavar="HOST:PORT", help="Where the other servers reach its HTTP.")
]
QueueState = Annotated[
    str | None,
    typer.Option(
        "--state",
        "--queue-state",
        envvar="ONCELOG_QUEUE_STATE",
        metavar="URL",
        help="Where queues remember: postgresql://…",
    ),
]
Drain = Annotated[
    float | None,
    typer.Option(
        "--drain", parser=duration_s, metavar="DURATION", help="How long closing may take.", show_default="30 s"
    ),
]
Tokens = Annotated[
    str | None, typer.Option("--tokens", "-t", envvar="ONCELOG_TOKENS", metavar="PATH", help="The file of tokens.")
]
TlsCert = Annotated[
    str | None, typer.Option("--tls-cert", metavar="PATH", help="The server's certificate and its chain, in PEM.")
]
TlsKey = Annotated[str | None, typer.Option("--tls-key", metavar="PATH", help="Its key, in PEM.")]
TlsClientCa = Annotated[
    str | None, typer.Option("--tls-client-ca", metavar="PATH", help="Who signs the certificates of clients.")
]
Insecure = Annotated[bool, typer.Option("--insecure", metavar="", help="Listen on any address without TLS and tokens.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", envvar="ONCELOG_SERVE_CONFIG", metavar="FILE", help="A TOML file with settings."),
]


def run(
    *,
    url: MaybeUrl = None,
    grpc: Grpc = None,
    http: Http = None,
    name: Name = None,
    advertise: Advertise = None,
    advertise_http: AdvertiseHttp = None,
    queue_state: QueueState = None,
    drain_s: Drain = None,
    tokens: Tokens = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    insecure: Insecure = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Serve a database over gRPC and HTTP."""
    try:
        from oncelog.server import process  # noqa: PLC0415  its packages are an extra
        from oncelog.server import settings as settings_module  # noqa: PLC0415
        from oncelog.server.fleet.starting import Addresses  # noqa: PLC0415
        from oncelog.server.watch import log_lines  # noqa: PLC0415
    except ModuleNotFoundError as error:
        message = f'a server needs a package that is not installed ({error.name}): pip install "oncelog[server]"'
        raise Unsupported(message) from error

    given = {"url": url, "grpc": grpc, "http": http, "name": name, "queue_state": queue_state, "drain_s": drain_s}
    given |= {"tokens": tokens, "tls_cert": tls_cert, "tls_key": tls_key, "tls_client_ca": tls_client_ca}
    given |= {"advertise": advertise, "advertise_http": advertise_http}
    given |= {"insecure": True if insecure else None}
    environment = {key: text for key, text in os.environ.items() if key != "ONCELOG_SERVE_CONFIG"}
    settings = settings_module.load(given, environment, config)
    log_lines.set_up(as_json=json)

    def announce(addresses: Addresses) -> None:
        if json:
            print_json(addresses._asdict())
        else:
            where = " on gRPC ", (addresses.grpc, "cyan"), " and HTTP ", (addresses.http, "cyan")
            say("serving ", (redacted(settings.url), "cyan"), *where)
        sys.stdout.flush()

    process.run(settings, announce)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve", help=paragraphs(_HELP), epilog=_EXAMPLES)(run)
