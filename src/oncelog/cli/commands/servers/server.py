"""``oncelog server``: the servers of a database."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from oncelog import names
from oncelog.cli.terminal.options import Json, Url
from oncelog.cli.terminal.output import print_list
from oncelog.cli.terminal.plain import Verbs
from oncelog.cli.terminal.quantities import show_duration
from oncelog.clock import SYSTEM

if TYPE_CHECKING:
    from oncelog.connect import Database

app = Verbs("server", "Servers: who serves a database.", heading="Examples")


@app.verb("list --url s3://shop", "list --url oncelog://127.0.0.1:7676 --json", name="list")
def list_servers(url: Url, *, json: Json = False) -> None:
    """List the servers of a database: name, incarnation, state, age of the last beat, logs held, version.

    On a bucket it takes a few seconds to see who still beats: a server that does not for eight seconds is dead.
    Where servers have another beat_s, ask through one of them. Through a server the answer is there at
    once. With --json: one object a line.
    """
    import oncelog  # noqa: PLC0415  (help does not wait for Arrow)

    with oncelog.connect(url) as database:
        found = servers(database)
    columns = [("name", "left"), ("incarnation", "right"), ("state", "left"), ("beat", "right"), ("logs", "right")]
    columns += [("gRPC", "left"), ("version", "left")]
    print_list(found, columns, _row, "no server serves ", (database.url, "cyan"), json=json)


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    beat = f"{show_duration(one['beat_age_s'])} ago" if one["state"] == "living" else ""  # else: of how long we look
    return one["name"], str(one["incarnation"]), one["state"], beat, str(one["logs"]), one["grpc"], one["version"]


def servers(database: Database, beat_s: float = 2.0) -> list[dict[str, Any]]:
    """Return the servers, as a server sees them, or as the bucket shows them, by beats every ``beat_s``."""
    import msgspec  # noqa: PLC0415

    if database.url.startswith(names.SERVER_SCHEMES):
        from oncelog.client import database as client  # noqa: PLC0415

        return client.servers(database)
    from oncelog import inner  # noqa: PLC0415
    from oncelog.server.fleet import listing, members  # noqa: PLC0415  (needs oncelog[server])

    seen = members.Members(inner.home(database, members.HOME), SYSTEM, beat_s)
    seen.look()
    pause = threading.Event()
    until_us = SYSTEM.elapsed_us() + int(seen.dead_s * 1e6)
    while SYSTEM.elapsed_us() < until_us and any(one.beats_seen < 2 for one in seen.living()):  # noqa: PLR2004
        pause.wait(seen.beat_s / 4)
        seen.look()
    return [msgspec.to_builtins(one) for one in listing.shown(seen, SYSTEM)]
