"""Logs by their names: opened as they are stored, or created."""

from __future__ import annotations

from oncelog import settings as settings_module
from oncelog.clock import Clock
from oncelog.errors import CorruptionError, InvalidArgument, NotFound, Unavailable
from oncelog.format.manifest import Manifest
from oncelog.log.ingest.conflicts import ConflictManifests
from oncelog.log.log import Lender, Log
from oncelog.log.stored import secrets
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.stored.policies import Policies
from oncelog.log.takeover.handover import Mailbox
from oncelog.names import CONFLICTS
from oncelog.settings import LogSettings
from oncelog.storage.base import REMOVING, LogHome


def open_log(
    name: str,
    home: LogHome,
    clock: Clock,
    settings: LogSettings | None,
    *,
    create: bool,
    policies: Policies | None = None,
    lender: Lender | None = None,
    mailbox: Mailbox | None = None,
) -> Log:
    """Open a log that exists, or create it when asked to; ``NotFound``, or ``InvalidArgument`` naming what differs."""
    if name.startswith(CONFLICTS):
        return _open_conflicts(name, home, clock, create=create)
    manifests = Manifests(home, clock)
    wanted = settings_module.check(settings) if settings is not None else None
    known = manifests.newest()
    if known is None:
        manifests.check_not_lost()
    if known is None and create:
        _refuse_while_removed(name, home)
        home.probe()
        known = _create(name, home, manifests, clock, wanted or LogSettings())
    if known is None:
        message = f"there is no log {name!r}: create=True makes it"
        raise NotFound(message)
    _check_same(name, known.manifest, wanted)
    return Log(name, home, manifests, known, clock, policies=policies, lender=lender, mailbox=mailbox)


def _create(name: str, home: LogHome, manifests: Manifests, clock: Clock, settings: LogSettings) -> Known | None:
    """Make a log, its secret first; return its manifest, or that of who was sooner."""
    log_id = clock.token(16).hex()
    secrets.create(home, log_id, clock)
    created = manifests.create(
        Manifest(name=name, log_id=log_id, settings=settings, created_us=clock.now_us(), labels=0)
    )
    if created is None:
        home.delete(secrets.key_of(log_id))
    return created or manifests.newest()


def _refuse_while_removed(name: str, home: LogHome) -> None:
    if home.exists(REMOVING):
        message = f"log {name!r} is being deleted; if nobody is at it any more, delete it again, then create it"
        raise Unavailable(message)


def _open_conflicts(name: str, home: LogHome, clock: Clock, *, create: bool) -> Log:
    """Open the rows that were put aside by who ingested into the log whose home this is, as a log to be read."""
    manifests = ConflictManifests(home, clock)
    known = manifests.newest()
    if known is None:
        manifests.check_not_lost()
    if create or known is None:
        of = name.removeprefix(CONFLICTS)
        message = f"{name!r} holds what conflicts with log {of!r}, " + (
            "and is there with that log: open it without create" if create else "and there is no such log"
        )
        raise InvalidArgument(message) if create else NotFound(message)
    return Log(name, home, manifests, known, clock)


def _check_same(name: str, manifest: Manifest, wanted: LogSettings | None) -> None:
    if manifest.name != name:
        message = (
            f"the home of log {name!r} holds log {manifest.name!r}: it was copied or renamed by hand; "
            f"give it its name back, or copy the log with `oncelog log copy`"
        )
        raise CorruptionError(message)
    if wanted is None:
        return
    kept = settings_module.keeping_window(manifest.settings, wanted)
    different = settings_module.differences(manifest.settings, kept)
    if different:
        message = (
            f"log {name!r} exists with other settings ({'; '.join(different)}): "
            "open it without settings, or configure() it"
        )
        raise InvalidArgument(message)
