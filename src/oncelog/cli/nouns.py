"""The commands of ``oncelog``. A command is loaded when it is used: ``--help`` loads none of them."""

from __future__ import annotations

import importlib
from collections.abc import ItemsView, Iterator, ValuesView
from typing import Any, NamedTuple

import typer.main

from oncelog.cli.terminal.plain import Shell


class Noun(NamedTuple):
    """A word: the module that has it, and how the help of the word begins."""

    module: str
    summary: str
    panel: str = "Commands"


_JOBS = "Jobs"
NOUNS: dict[str, Noun] = {
    "status": Noun("status", "Show what is here."),
    "doctor": Noun("doctor", "Look for what is wrong with the set-up."),
    "log": Noun("logs.log", "Logs: make them, fill them, read them, keep them in order."),
    "stream": Noun("logs.stream", "Streams: events with versions."),
    "queue": Noun("queues.queue", "Work queues: send, consume, look, and deal with dead letters."),
    "worker": Noun("queues.worker", "Run MODULE:FUNCTION for each message of QUEUE."),
    "inbox": Noun("queues.inbox", "Effects that happen once: look at one, decide about one."),
    "producer": Noun("logs.producer", "Producers: who writes a log by sequences, and how far each got."),
    "pipeline": Noun("pipelines.pipeline", "Pipelines: records from anywhere, into a log once, and on from there."),
    "table": Noun("logs.table", "Tables: a log's history as a table of Delta or Iceberg."),
    "sql": Noun("logs.sql", "Ask with SQL: each log is a table."),
    "serve": Noun("servers.serve", "Serve a database over gRPC and HTTP."),
    "server": Noun("servers.server", "Servers: who serves a database."),
    "console": Noun("servers.console", "Show a database in a browser."),
    "top": Noun("servers.top", "Watch a server, or the logs of a plain database."),
    "token": Noun("servers.token", "Tokens: who may call a server, and what each may do there."),
    "profile": Noun("profile", "Profiles: databases by a name of your own."),
    "quorum": Noun("quorum", "Quorums: logs whose newest records are on several stores."),
    "ingest": Noun("pipelines.jobs", "Ingest files into a log with Spark.", _JOBS),
    "export": Noun("pipelines.jobs", "Export a log to files with Spark.", _JOBS),
    "audit": Noun("pipelines.jobs", "Audit a log: ids that are there more than once, gaps and checksums.", _JOBS),
    "rebuild": Noun("pipelines.jobs", "Rebuild from the log itself what tells which ids are in it.", _JOBS),
    "purge": Noun("pipelines.jobs", "Find duplicates that came in when the window had forgotten the first.", _JOBS),
}


class Commands(dict[str, Any]):
    """The commands of the shell by their words, loaded when they are looked at."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(NOUNS))

    def __getitem__(self, word: str) -> Any:
        if super().__getitem__(word) is None:
            self.update(_loaded(NOUNS[word].module, word))
        return super().__getitem__(word)

    def get(self, word: str, otherwise: Any = None) -> Any:
        """Return a command, or another value if there is none of this word."""
        return self[word] if word in self else otherwise  # noqa: SIM401 (it is what get does)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """Return all commands, loaded."""
        return dict(self._all()).values()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """Return all words with their commands, loaded."""
        return dict(self._all()).items()

    def _all(self) -> Iterator[tuple[str, Any]]:
        return ((word, self[word]) for word in self)


def _loaded(module: str, word: str) -> dict[str, Any]:
    """Return the commands that a module has: a noun with its verbs, or some words of their own."""
    found = importlib.import_module(f"oncelog.cli.commands.{module}")
    if hasattr(found, "app"):
        group = typer.main.get_group(found.app)
        group.name = word
        return {word: group}
    own = Shell()
    found.add_to(own)
    return dict(typer.main.get_group(own).commands)
