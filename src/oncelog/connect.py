"""``connect``: from a URL to a database, and from a database to its logs."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

import oncelog  # annotations name what is loaded later: typing.get_type_hints finds it there
from oncelog import arguments, names, profiles
from oncelog.clock import SYSTEM, Clock
from oncelog.concurrency.aside import start_aside
from oncelog.dedup import kernels
from oncelog.errors import CorruptionError, InvalidArgument, LogBusy, NotFound, OncelogError, Unsupported
from oncelog.handle import Handle, closes_anywhere
from oncelog.log import inner
from oncelog.log.jobs.copy import Copied, Copy, Progress
from oncelog.log.log import Lender, Log
from oncelog.log.memory import front_cache
from oncelog.log.open_log import open_log
from oncelog.log.stored.manifests import Manifests, version_key
from oncelog.log.stored.policies import Policies
from oncelog.log.takeover.handover import Mailbox
from oncelog.settings import LogSettings, ProducerPolicy
from oncelog.storage import urls
from oncelog.storage.base import REMOVING, LogHome, Storage

if TYPE_CHECKING:  # loaded only when used: Spark starts many processes
    from oncelog.queue.queue import Queue
    from oncelog.queue.state.database import StateDatabase
    from oncelog.streams.streams import Streams

kernels.choose(os.environ.get("ONCELOG_FAST"), start_aside)
os.register_at_fork(after_in_child=kernels.stop_loading)
front_cache.choose(os.environ.get("ONCELOG_CACHE"), os.environ)

_CLIENT = "oncelog.client.database"
"""The room above that speaks to servers. It is loaded by name: a program without a server needs no gRPC."""


class Database(Handle):
    """Logs under one URL. Made by ``connect``; safe to share between threads.

    >>> import oncelog
    >>> with oncelog.connect("memory://") as db, db.log("orders", create=True).writer() as w:
    ...     first = w.append(b"paid", id="order-42")
    ...     again = w.append(b"paid", id="order-42")
    >>> again.position == first.position, again.duplicate
    (True, True)
    """

    _what = "database"

    def __init__(self, storage: Storage, clock: Clock = SYSTEM) -> None:
        super().__init__()
        self.url = storage.url
        self._storage = storage
        self._clock = clock
        self._lock = threading.Lock()
        self._logs: dict[str, Log] = {}
        self._queues: dict[tuple[str, str | None], Queue] = {}
        self._queues_lock = threading.RLock()  # a queue opens the queue of its dead letters
        self._states: dict[str | None, StateDatabase] = {}
        self._policies = Policies(storage)
        self._mailbox = Mailbox(storage, clock)
        self._streams: dict[str, Streams] = {}
        self._lender: Lender | None = None
        self._without: Callable[[str], contextlib.AbstractContextManager[None]] = lambda _: contextlib.nullcontext()

    def _lend_writers(self, lender: Lender, without: Callable[[str], contextlib.AbstractContextManager[None]]) -> None:
        self._lender, self._without = lender, without

    def _home_beside(self, key: str) -> LogHome:
        self._check_usable()
        assert key.startswith("~"), key
        return self._storage.home(key)

    @arguments.checked
    def log(self, name: str, settings: LogSettings | None = None, *, create: bool = False) -> Log:
        """Open a log; create it only when asked to.

        Without settings it is opened as stored. Raises ``NotFound`` when it is not there, ``InvalidArgument`` for a bad
        name, and for settings that differ from the stored ones, naming the difference. The same log is the same object
        as long as it is not closed.
        """
        self._check_usable()
        home = self._storage.home(names.home_key(names.check(name)))
        opened = open_log(
            name,
            home,
            self._clock,
            settings,
            create=create,
            policies=self._policies,
            lender=self._lender,
            mailbox=self._mailbox,
        )
        with self._lock:
            log = self._logs.get(name)
            if log is None or log.closed or not inner.is_same(log, opened):
                log = self._logs[name] = opened
        return log

    def logs(self) -> list[str]:
        """Return the names of the logs there are, sorted; also of those that are damaged, or of a newer version."""
        self._check_usable()
        found = (self._log_at(key) for key in self._keys())
        return sorted(name for name in found if name is not None)

    def _log_at(self, key: str) -> str | None:
        """Return the name of the log whose home has this key; ``None`` where no log is."""
        home = self._storage.home(key)
        manifests = Manifests(home, self._clock)
        is_there = home.exists(version_key(1))
        if not is_there and not manifests.is_lost(copying=True):
            return None
        name = names.of_key(key)
        known = manifests.newest() if name is None and is_there else None
        return known.manifest.name if known is not None else name or key

    def _listed(self) -> list[str]:
        """Return the names of the logs as one listing shows them, sorted: no log is looked into, but for those with a
        very long name. A name may be among them whose log was never finished.
        """
        self._check_usable()
        found = (names.of_key(key) or self._log_at(key) for key in self._keys())
        return sorted(name for name in found if name is not None)

    def _keys(self) -> list[str]:
        """Return the keys of the homes of logs. Other homes begin with ``~``, as no log's key does."""
        return [key for key in self._storage.homes() if not key.startswith("~")]

    @arguments.checked
    def copy(self, name: str, to: Database, *, rename: str | None = None, progress: Progress | None = None) -> Copied:
        """Copy a log to another database, or under another name: its records with their positions, its ids and what
        the window knows of them, and its identity, by which content ids are made.

        A copy that was cut short goes on where it stopped when it is made again; so does one of a log that has grown,
        as long as nobody has written to the copy. ``InvalidArgument`` when something else is there. ``progress`` is
        called with the records done and those there are.
        """
        self._check_usable()
        to._check_usable()
        source = self._storage.home(names.home_key(names.check(name)))
        manifests = Manifests(source, self._clock)
        known = manifests.newest()
        if known is None:
            manifests.check_not_lost()
            message = f"there is no log {name!r} to copy"
            raise NotFound(message)
        wanted = names.check(name if rename is None else rename)
        if name.startswith(names.CONFLICTS) or wanted.startswith(names.CONFLICTS):
            message = f"{name!r} as {wanted!r}: conflicts are copied with their log, and are a part of it there too"
            raise InvalidArgument(message)
        target = to._storage.home(names.home_key(wanted))
        return Copy(source, target, self._clock, progress).run(known, wanted)

    @arguments.checked
    def queue(
        self,
        name: str,
        settings: oncelog.QueueSettings | None = None,
        *,
        partitions: int | None = None,
        create: bool = False,
        adopt: bool = False,
        state: str | None = None,
    ) -> oncelog.Queue:
        """Open a work queue; create it, of one partition or as many as asked, only when asked to.

        ``state`` is where its brokers remember what they delivered: beside the logs by default, or
        ``postgresql://…`` when brokers on several machines share it. If that is lost, ``create`` with ``adopt``
        makes a new state from the messages that are in the logs: all are delivered again. Raises ``NotFound`` when it
        is not there, ``InvalidArgument`` for settings or a number of partitions that differ from the stored ones. The
        same queue is the same object as long as it is not closed.
        """
        from oncelog.queue import inner as queue_inner  # noqa: PLC0415
        from oncelog.queue.open_queue import open_queue  # noqa: PLC0415

        self._check_usable()
        with self._queues_lock:
            queue = self._queues.get((name, state))
            if (
                queue is not None and not queue.closed and not queue_inner.is_stored(queue)
            ):  # deleted by another process
                with contextlib.suppress(OncelogError):  # what it holds is gone
                    queue.close()
            if queue is None or queue.closed or settings is not None or partitions is not None:
                opened = open_queue(
                    name,
                    self._state_of(state) if create or adopt or self._has_state(state) else None,
                    self._clock,
                    lambda log, log_settings, make: self.log(log, log_settings, create=make),
                    lambda sibling, make: self.queue(sibling, create=make, adopt=True, state=state),
                    logs_there=self.logs,
                    given=settings,
                    partitions=partitions,
                    create=create,
                    adopt=adopt,
                )
                if queue is None or queue.closed:
                    queue = self._queues[name, state] = opened
        return queue

    @arguments.checked
    def queues(self, *, state: str | None = None) -> list[str]:
        """Return the names of the queues there are, those of dead letters too, sorted."""
        from oncelog.queue.state.open_state import queue_names  # noqa: PLC0415

        self._check_usable()
        with self._queues_lock:
            return queue_names(self._state_of(state)) if self._has_state(state) else []

    @arguments.checked
    def delete_queue(self, name: str, *, force: bool = False, state: str | None = None) -> None:
        """Delete a work queue: its messages, its dead letters, and what is remembered of both.

        Raises ``NotFound`` when it is not there, and ``LogBusy`` while it is in use: another process sends and does not
        let go, or workers hold messages; ``force`` does not ask them. If it is cut short, the queue
        cannot be opened: delete it again.
        """
        from oncelog.queue.delete import delete_queue  # noqa: PLC0415

        self._check_usable()
        with self._queues_lock:
            delete_queue(
                name,
                self._state_of(state) if self._has_state(state) else None,
                lambda one: self.queue(one, state=state),
                self.log,
                self.delete,
                clock=self._clock,
                force=force,
            )

    def _has_state(self, url: str | None) -> bool:
        from oncelog.queue.state.open_state import is_made  # noqa: PLC0415

        return url in self._states or is_made(url, self._storage)

    def _state_of(self, url: str | None) -> StateDatabase:
        from oncelog.queue.state.open_state import open_state  # noqa: PLC0415

        if url not in self._states:
            self._states[url] = open_state(url, self._storage, self._clock)
        return self._states[url]

    @arguments.checked
    def streams(self, name: str, settings: LogSettings | None = None, *, create: bool = False) -> oncelog.Streams:
        """Open the event-store face of a log; create the log only when asked to.

        A new log gets ``settings``, or remembers as many event ids as ``ONCELOG_DEDUP_CAPACITY`` says (all, if that is
        not set), and in any case takes an id for one of its stream. Raises ``NotFound`` when it is not there,
        ``InvalidArgument`` for a log whose ids are of the whole log, and for settings that differ from the stored ones.
        The same streams are the same object as long as they are not closed.
        """
        from oncelog.streams import inner as streams_inner  # noqa: PLC0415
        from oncelog.streams.streams import Streams, default_settings  # noqa: PLC0415

        self._check_usable()
        wanted = None if settings is None else msgspec.structs.replace(settings, id_scope="stream")
        try:
            log = self.log(name, wanted)
        except NotFound:
            if not create:
                raise
            log = self.log(name, wanted or default_settings(), create=True)
        with self._lock:
            streams = self._streams.get(name)
            if streams is None or streams.closed or not streams_inner.is_of(streams, log):
                streams = self._streams[name] = Streams(log, self._clock)
        return streams

    @arguments.checked
    def producer_policy(self, namespace: str | None = None) -> ProducerPolicy:
        """Return what the database, or a namespace (the part of a log's name before ``/``), says of producers.

        ``None`` in it is as the next level has it; ``Log.producer_policy`` tells what holds for a log.
        """
        self._check_usable()
        return self._policies.level(namespace)

    @arguments.checked
    def set_producer_policy(self, policy: ProducerPolicy, namespace: str | None = None) -> None:
        """Store the policy of the database, or of a namespace. Writers that are open here follow it at once, those of
        other processes with their next snapshot.
        """
        self._check_usable()
        self._policies.change(policy, namespace)
        for log in list(self._logs.values()):
            if not log.closed:
                inner.follow_policy(log)

    @arguments.checked
    def delete(self, name: str) -> None:
        """Delete a log and everything in it. ``NotFound`` when it is not there, ``LogBusy`` while it has a writer.

        In a bucket that takes many requests: if it fails half way, delete the log again.
        """
        self._check_usable()
        key = names.home_key(names.check(name))
        if name.startswith(names.CONFLICTS):
            message = f"{name!r} is a part of the log it conflicts with: delete that"
            raise InvalidArgument(message)
        followed = self._logs.get(name)
        with self._without(name):
            self._delete(name, key)
        if followed is not None:
            inner.end_tails(followed)

    def _delete(self, name: str, key: str) -> None:
        home = self._storage.home(key)
        try:
            log = open_log(name, home, self._clock, None, create=False)
            held = not home.exclusive and log.info().open_segment is not None
        except (CorruptionError, NotFound):
            held = False
            if not home.exists(REMOVING):  # else it was cut short, and what is left goes now
                raise
        if held:
            message = f"log {name!r} has a writer, or had one that did not close it: take it over and close it first"
            raise LogBusy(message)
        claim = home.claim(0, force=False)
        try:
            self._storage.remove_home(key)
        finally:
            claim.release()

    @closes_anywhere
    def close(self) -> None:
        """End every reader and writer of this database; what is pending is stored first."""
        if not self._closes_now():
            return
        with contextlib.ExitStack() as ending:  # all are ended, also if one of them fails
            ending.callback(self._storage.close)
            for state in self._states.values():
                ending.callback(state.close)
            for log in list(self._logs.values()):
                ending.callback(log.close)
            for queue in list(self._queues.values()):
                ending.callback(queue.close)
            for streams in list(self._streams.values()):
                ending.callback(streams.close)


def connect(url: str | os.PathLike[str], *, options: Mapping[str, str] | None = None) -> Database:
    """Open the database at a URL: ``file:///path``, ``s3://bucket/prefix`` (``gs://``, ``az://``),
    ``quorum:`` before the URL of a quorum's store, ``memory://`` (``memory://name`` is shared within the process), or
    of a server: ``oncelog://host:7676``, with TLS ``oncelog+tls://host:7676``. A path (``./shop``, ``Path("shop")``) is
    a folder on this machine, and ``profile:prod`` what ``oncelog profile add prod`` has stored.

    ``options`` are those of the store's client, such as ``endpoint``, ``region``, ``access_key_id`` and
    ``secret_access_key``; what is not given comes from the usual environment variables. Nothing is created before the
    first log is. Raises ``InvalidArgument`` for a URL that cannot be one, ``Unsupported`` for a kind of home that this
    version does not have, or lacks the package for.
    """
    found, given = urls.spelled(url), _options(options)
    if found.startswith(profiles.SCHEME):
        profile = profiles.find(found.removeprefix(profiles.SCHEME), profiles.path())
        found, given = urls.spelled(profile.url), {**profile.options, **given}
    if found.startswith(names.SERVER_SCHEMES):
        return _remote(found, given)
    return Database(urls.open_storage(found, given))


def _remote(url: str, options: Mapping[str, str]) -> Database:
    try:
        client = importlib.import_module(_CLIENT)
    except ImportError as error:
        message = f"a server needs a package that is not installed ({error.name}): pip install 'oncelog[client]'"
        raise Unsupported(message) from error
    opened: Database = client.connect(url, options)
    return opened


def _options(options: object) -> dict[str, str]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        message = f"options is {arguments.shown(options)}, must be a mapping of str to str"
        raise InvalidArgument(message)
    for name, value in options.items():
        arguments.text("options: a name", name)
        if not isinstance(value, str):  # what was given instead may be a secret
            message = f"options: {name} must be a str, not {type(value).__name__}"
            raise InvalidArgument(message)
    return dict(options)
