"""``oncelog quorum``: logs on several stores: make one, look at its nodes, replace a node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import oncelog
from oncelog.cli.terminal.options import Json
from oncelog.cli.terminal.outcome import ExitCode
from oncelog.cli.terminal.output import print_json, print_table, say
from oncelog.cli.terminal.plain import Verbs
from oncelog.cli.terminal.quantities import show_count
from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument, OncelogError

if TYPE_CHECKING:
    from oncelog.storage.base import LogHome, Unsealed
    from oncelog.storage.quorum.home import QuorumStorage

PREFIX = "quorum:"
app = Verbs(
    "quorum",
    "Quorums: logs whose newest records are on several stores, and survive the loss of one.",
    heading="Examples",
)
Store = Annotated[str, typer.Argument(metavar="STORE", help="The URL of the store.", show_default=False)]
Nodes = Annotated[
    list[str], typer.Option("--node", metavar="NAME=URL", help="A node; may be repeated.", show_default=False)
]


@app.verb("create s3://shop-regional/db --node az1=s3://shop-az1 --node az2=s3://shop-az2 --node az3=s3://shop-az3")
def create(
    store: Store,
    node: Nodes,
    *,
    ack: Annotated[int | None, typer.Option(metavar="A", help="Copies that an append waits for.")] = None,
    json: Json = False,
) -> None:
    """Make a store the store of a quorum, and format its nodes.

    The store holds manifests, snapshots and sealed files; nodes hold the blocks of segments that are not sealed. Each
    node must honour conditional creates. An append is acknowledged when A nodes hold it: a majority, by default.
    """
    _create(store, dict(_named(node)), ack, json=json)


def _create(store: str, nodes: dict[str, str], ack: int | None, *, json: bool) -> None:
    from oncelog.storage.quorum import membership  # noqa: PLC0415
    from oncelog.storage.urls import node_options, quorum_store  # noqa: PLC0415

    storage = quorum_store(_place(store))
    made = membership.create(storage, nodes, ack, node_options(os.environ), SYSTEM)
    if json:
        print_json(made)
    else:
        say((f"{PREFIX}{storage.url}", "cyan"), f": {len(made.nodes)} nodes, an append waits for {made.ack} of them")


def _place(store: str) -> str:
    """Return the URL of a store; a path is a folder, as everywhere."""
    url = store.removeprefix(PREFIX)
    return url if "://" in url else Path(url).absolute().as_uri()


def _named(given: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [(name, url) for name, _, url in (text.partition("=") for text in given)]
    if not all(name and url for name, url in pairs):
        message = f"--node is {', '.join(given)}: must be NAME=URL, such as az1=s3://shop-az1"
        raise InvalidArgument(message)
    if len({name for name, _ in pairs}) < len(pairs):
        message = f"--node is {', '.join(given)}: two nodes have one name"
        raise InvalidArgument(message)
    return pairs


@app.verb("try ./quorum")
def try_(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to make it.", show_default=False)],
    *,
    json: Json = False,
) -> None:
    """Make a store and three nodes in folders below one folder, to try a quorum on a laptop."""
    root = folder.absolute()
    _create((root / "store").as_uri(), {f"n{n}": (root / f"node-{n}").as_uri() for n in (1, 2, 3)}, 2, json=json)


@contextlib.contextmanager
def _opened(store: str) -> Iterator[QuorumStorage]:
    from oncelog.storage.quorum.home import QuorumStorage  # noqa: PLC0415
    from oncelog.storage.urls import node_options, quorum_store  # noqa: PLC0415

    storage = QuorumStorage(quorum_store(_place(store)), node_options(os.environ))
    try:
        yield storage
    finally:
        storage.close()


@app.verb("status s3://shop-regional/db")
def status(store: Store, *, json: Json = False) -> None:
    """Show the nodes: who answers, how quickly, how many blocks behind, and which segments are short of copies.

    Exit code 1 when a node is away or a segment is short: it is still safe, but one more loss may not be.
    """
    from oncelog.storage.quorum import health  # noqa: PLC0415

    with _opened(store) as storage:
        short = health.short(storage, _unsealed)
        found = health.nodes(storage, short, SYSTEM)
        membership = storage.membership
    if json:
        print_json({"membership": membership, "nodes": found, "short": short})
    else:
        say(
            (f"{PREFIX}{store.removeprefix(PREFIX)}", "cyan"),
            f": ack {membership.ack} of {len(membership.nodes)}, version {membership.version}",
        )
        rows = [
            (
                Text(node.name, "cyan"),
                Text("away", "bold red") if node.trouble else Text(f"{node.answer_ms:.1f} ms", "green"),
                f"{node.behind:,}",
                node.identity[:8],
                node.url,
                node.trouble or "",
            )
            for node in found
        ]
        columns = [("node", "left"), ("answers", "left"), ("blocks behind", "right"), ("identity", "left")]
        print_table([*columns, ("where", "fold"), ("trouble", "fold")], rows)
        for one in short:
            held = ", ".join(f"{name} {count}" for name, count in one.copies.items())
            blocks = show_count(one.blocks, "block")
            say((f"log {one.home}", "cyan"), f": segment {one.segment} has {blocks}; held by {held}")
    if short or any(node.trouble for node in found):
        raise typer.Exit(ExitCode.FINDINGS)


@app.verb("check s3://shop-regional/db")
def check(store: Store, *, json: Json = False) -> None:
    """Read every copy of every block that is not sealed, and list those that are missing or damaged.

    A block with one sound copy is safe to read; seal its segment (oncelog quorum drain). Exit code 1 when something is
    found.
    """
    from oncelog.storage.quorum import health  # noqa: PLC0415

    with _opened(store) as storage:
        found = health.check(storage, _unsealed)
    if json:
        print_json({"bad_copies": found})
    elif found:
        rows = [
            (one.home, str(one.segment), str(one.number), one.node, one.problem + (", no sound copy left" * one.lost))
            for one in found
        ]
        print_table(
            [("log", "left"), ("segment", "right"), ("block", "right"), ("node", "left"), ("problem", "fold")], rows
        )
    else:
        say("every copy of every block is sound")
    if found:
        raise typer.Exit(ExitCode.FINDINGS)


def _unsealed(home: LogHome) -> Unsealed:
    from oncelog.log.stored.unsealed import unsealed  # noqa: PLC0415

    return unsealed(home, SYSTEM)


@app.verb("replace s3://shop-regional/db az2 s3://shop-az2-new")
def replace(
    store: Store,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node.", show_default=False)],
    url: Annotated[str, typer.Argument(metavar="URL", help="Its new place.", show_default=False)],
    *,
    json: Json = False,
) -> None:
    """Put another store in the place of a node that was lost.

    New segments are written to it. Segments that name the old node keep their other copies until drain has sealed them.
    """
    from oncelog.storage.quorum import health  # noqa: PLC0415

    with _opened(store) as storage:
        made = health.replace(storage, name, url, _unsealed, SYSTEM)
    if json:
        print_json(made)
    else:
        say((name, "cyan"), f" is {url} now. Seal what names the old one: oncelog quorum drain {store}")


@app.verb("drain s3://shop-regional/db")
def drain(store: Store, *, json: Json = False) -> None:
    """Seal the closed segments of every log, so that their records are in the store and no node is needed for them."""
    sealed: dict[str, int] = {}
    failed: OncelogError | None = None
    with oncelog.connect(f"{PREFIX}{store.removeprefix(PREFIX)}") as db:
        for name in db.logs():
            try:
                sealed[name] = db.log(name).seal().records
            except OncelogError as error:
                failed = error
    if json:
        print_json({"sealed": sealed})
    else:
        print_table([("log", "left"), ("records sealed", "right")], [(name, f"{n:,}") for name, n in sealed.items()])
    if failed is not None:
        raise failed
