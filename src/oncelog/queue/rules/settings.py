"""A queue's settings: data, checked where they come in, stored with the queue."""

from __future__ import annotations

import msgspec

from oncelog import limits
from oncelog import settings as log_settings
from oncelog.errors import InvalidArgument
from oncelog.queue.rules import retry
from oncelog.queue.rules.message import span_us
from oncelog.queue.rules.retry import RetryPolicy
from oncelog.settings import LogSettings
from oncelog.shapes import prepare


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a queue. A message or a consumer may override some of them.

    ``log``: the settings of its partitions' logs, the dedup window among them. ``ack_timeout_s``: how long a delivery
    is its consumer's. ``gate_s``: how long the outcome of a send can be asked for. ``trim_s``: how often consumers
    remove from the logs what every group has settled; ``None``: only ``trim()`` does.
    """

    retry: RetryPolicy = RetryPolicy()
    ack_timeout_s: float = 30.0
    gate_s: float = 3600.0
    trim_s: float | None = 600.0
    log: LogSettings = LogSettings()


def check(settings: object) -> QueueSettings:
    """Return the settings, or raise ``InvalidArgument`` naming the first that is wrong."""
    if not isinstance(settings, QueueSettings):
        message = f"settings: is {type(settings).__name__}, must be QueueSettings"
        raise InvalidArgument(message)
    settings = _plain(settings)
    if span_us("ack_timeout_s", settings.ack_timeout_s) <= 0:
        message = f"settings: ack_timeout_s is {settings.ack_timeout_s}, must be more than 0"
        raise InvalidArgument(message)
    span_us("gate_s", settings.gate_s)
    if settings.trim_s is not None and span_us("trim_s", settings.trim_s) <= 0:
        message = f"settings: trim_s is {settings.trim_s}, must be more than 0, or None"
        raise InvalidArgument(message)
    if settings.log.idempotence != "explicit":
        message = (
            f"settings: log.idempotence is {settings.log.idempotence!r}, must be 'explicit': messages bring their ids"
        )
        raise InvalidArgument(message)
    if settings.log.retention_s is not None or settings.log.retention_bytes is not None:
        message = "settings: log.retention_s and log.retention_bytes would remove what was never delivered: use trim()"
        raise InvalidArgument(message)
    return settings


def _plain(settings: QueueSettings) -> QueueSettings:
    """Return the settings in the types that are stored, whatever kinds of numbers were given."""
    span_s = {
        name: span_us(name, value) / 1e6
        for name in ("ack_timeout_s", "gate_s", "trim_s")
        if (value := getattr(settings, name)) is not None or name != "trim_s"
    }
    return msgspec.structs.replace(
        settings, retry=retry.check(settings.retry), log=log_settings.check(settings.log), **span_s
    )


def check_partitions(partitions: object) -> int:
    """Return a number of partitions, or raise ``InvalidArgument``."""
    if isinstance(partitions, bool) or not isinstance(partitions, int):
        message = f"partitions: is {partitions!r}, must be a whole number"
        raise InvalidArgument(message)
    if not 1 <= partitions <= limits.QUEUE_PARTITIONS_MAX:
        message = f"partitions: is {partitions}, must be from 1 to {limits.QUEUE_PARTITIONS_MAX}"
        raise InvalidArgument(message)
    return partitions


prepare(QueueSettings)
