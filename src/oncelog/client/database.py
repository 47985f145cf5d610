"""A database over the wire: what ``oncelog.connect("oncelog://…")`` returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar

import msgspec

from oncelog import names
from oncelog import settings as settings_module
from oncelog.client import log as log_module
from oncelog.client import queue as queue_module
from oncelog.client.address import parse
from oncelog.client.channel import Channel
from oncelog.client.log import RemoteLog, close_all
from oncelog.client.queue import RemoteQueue
from oncelog.client.streams import RemoteStreams
from oncelog.client.writer import absent, unsupported
from oncelog.connect import Database
from oncelog.errors import InvalidArgument
from oncelog.handle import Handle, closes_anywhere
from oncelog.log.jobs.copy import Copied, Progress
from oncelog.log.log import Log
from oncelog.queue.queue import Queue
from oncelog.queue.rules import settings as queue_settings
from oncelog.queue.rules.settings import QueueSettings
from oncelog.settings import LogSettings, ProducerPolicy
from oncelog.shapes import prepare
from oncelog.streams import inner
from oncelog.streams.streams import Streams
from oncelog.wire import messages, values

_T = TypeVar("_T", bound=Handle)


def connect(url: str, options: Mapping[str, str]) -> Database:
    """Return the database of a server. Nothing is asked of the server yet."""
    return RemoteDatabase(Channel(parse(url, options)))


class _ServerSeen(TypedDict):
    """A server, as another one sees it."""

    name: str
    incarnation: int
    grpc: str
    http: str
    version: str
    started_us: int
    state: str
    beat_age_s: float
    logs: int


def servers(database: Database) -> list[dict[str, Any]]:
    """Return the servers of a database, as the one that is asked sees them."""
    assert isinstance(database, RemoteDatabase)
    return database.servers()


class RemoteDatabase(Database):
    """The logs of a server. Made by ``connect``; safe to share between threads."""

    def __init__(self, channel: Channel) -> None:
        Handle.__init__(self)
        self.url = channel.address.url
        self._channel = channel
        self._opening = threading.Lock()
        self._handles: dict[tuple[str, str], Any] = {}

    # Logs.

    def log(self, name: str, settings: LogSettings | None = None, *, create: bool = False) -> Log:
        return self._log_of(self._made(name, "log", settings, log_module.MadeLog, create=create))

    def _log_of(self, made: log_module.MadeLog) -> RemoteLog:
        return self._kept(
            ("log", made.name),
            lambda held: held.log_id == made.log_id,
            lambda: RemoteLog(self._channel, made, self.producer_policy),
        )

    def logs(self) -> list[str]:
        self._check_usable()
        return list(self._channel.ask("Database.Logs", messages.Empty()).names)

    def _listed(self) -> list[str]:
        return self.logs()

    def delete(self, name: str) -> None:
        self._check_usable()
        self._channel.ask("Database.Delete", messages.DeleteRequest(name=names.check(name), kind="log"), write=True)

    def copy(self, name: str, to: Database, *, rename: str | None = None, progress: Progress | None = None) -> Copied:
        """Refuse: a log's identity and secret do not travel. Copy it where the server's database is."""
        del name, to, rename, progress
        what = "copy"
        raise unsupported(what)

    def streams(self, name: str, settings: LogSettings | None = None, *, create: bool = False) -> Streams:
        made = self._made(name, "streams", settings, log_module.MadeLog, create=create)
        log = self._log_of(made)
        return self._kept(("streams", made.name), lambda held: inner.is_of(held, log), lambda: RemoteStreams(log))

    def servers(self) -> list[dict[str, Any]]:
        """Return the servers of the database, as the one that is asked sees them."""
        self._check_usable()
        answer = self._channel.ask("Database.Servers", messages.Empty()).json
        return [dict(one) for one in values.from_document(answer, list[_ServerSeen])]

    # Queues.

    def queue(
        self,
        name: str,
        settings: QueueSettings | None = None,
        *,
        partitions: int | None = None,
        create: bool = False,
        adopt: bool = False,
        state: str | None = None,
    ) -> Queue:
        """Open a work queue; create it only when asked to. Where its state is, is the server's to say."""
        _check_state(state)
        made = self._made(
            name, "queue", settings, queue_module.MadeQueue, create=create, adopt=adopt, partitions=partitions
        )
        return self._kept(("queue", made.name), lambda _: True, lambda: RemoteQueue(self._channel, made, self.log))

    def queues(self, *, state: str | None = None) -> list[str]:
        self._check_usable()
        _check_state(state)
        return list(self._channel.ask("Database.Queues", messages.Empty()).names)

    def delete_queue(self, name: str, *, force: bool = False, state: str | None = None) -> None:
        self._check_usable()
        _check_state(state)
        request = messages.DeleteRequest(name=names.check(name), kind="queue", force=force)
        self._channel.ask("Database.Delete", request, write=True)

    # Policies.

    def producer_policy(self, namespace: str | None = None) -> ProducerPolicy:
        return self._policy(namespace, None)

    def set_producer_policy(self, policy: ProducerPolicy, namespace: str | None = None) -> None:
        self._policy(namespace, settings_module.check_policy(policy))

    def _policy(self, namespace: str | None, policy: ProducerPolicy | None) -> ProducerPolicy:
        self._check_usable()
        request = messages.PolicyRequest(
            namespace=namespace, policy=None if policy is None else values.to_document(policy)
        )
        answer = self._channel.ask("Database.Policy", request, write=policy is not None).json
        return values.from_document(answer, ProducerPolicy)

    # Opening and leaving.

    def _made(self, name: str, kind: str, settings: object, answer: type[Any], *, create: bool, **more: Any) -> Any:
        """Have the server open or create something; return what it says of it."""
        self._check_usable()
        names.check(name)
        checked = _checked(settings)
        request = messages.CreateRequest(
            name=name,
            kind=kind,
            settings=None if checked is None else values.to_document(checked),
            create=create,
            **more,
        )
        return values.from_document(self._channel.ask("Database.Create", request, write=create).json, answer)

    def _kept(self, key: tuple[str, str], same: Callable[[Any], bool], make: Callable[[], _T]) -> _T:
        with self._opening:
            held = self._handles.get(key)
            if held is None or held.closed or not same(held):
                held = self._handles[key] = make()
            return held

    @closes_anywhere
    def close(self) -> None:
        if not self._closes_now():
            return
        try:
            close_all(self._handles.values())
        finally:
            self._channel.close()


DATABASE_ABSENT = ("_home_beside", "_lend_writers", "_log_at")
"""What the server calls of its own database: not a part of the public surface."""

absent(RemoteDatabase, DATABASE_ABSENT)


def _checked(settings: object) -> msgspec.Struct | None:
    if settings is None:
        return None
    if isinstance(settings, QueueSettings):
        return queue_settings.check(settings)
    return settings_module.check(settings)  # type: ignore[arg-type]  # which says what it is not


def _check_state(state: object) -> None:
    if state is not None:
        message = "state: a server knows where its queues' state is (--queue-state)"
        raise InvalidArgument(message)


prepare(list[_ServerSeen])
