"""What the parts of one writer share, from the moment the log is taken over until the writer leaves."""

from __future__ import annotations

from dataclasses import dataclass

from oncelog.clock import Clock
from oncelog.dedup.identity import Hasher
from oncelog.log.append.committer import Committer
from oncelog.log.append.core import Core
from oncelog.log.append.open_segment import SegmentRun
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.recall import Recall
from oncelog.log.stored.manifests import Manifests
from oncelog.settings import LogSettings
from oncelog.storage.base import LogHome


@dataclass(frozen=True)
class WriterSession:
    """One writer's time with a log. Made by ``open_writer``; its parts are never replaced.

    ``core`` decides, ``committer`` drives it and has the lock, ``run`` asks storage, ``recall`` searches the runs.
    """

    home: LogHome
    manifests: Manifests
    clock: Clock
    settings: LogSettings
    hasher: Hasher
    core: Core
    committer: Committer
    run: SegmentRun
    recall: Recall
    objects: RunObjects

    @property
    def uptime_us(self) -> int:
        """The log's up-time now."""
        return self.core.uptime.at(self.clock.elapsed_us())
