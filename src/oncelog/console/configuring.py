"""Settings that a person changes from a page: of a log, and of a queue."""

from __future__ import annotations

from typing import Any

import msgspec

from oncelog.console import render
from oncelog.console.forms import Form, whole
from oncelog.console.source import Source
from oncelog.errors import InvalidArgument
from oncelog.queue.rules import settings as queue_settings
from oncelog.queue.rules.settings import QueueSettings
from oncelog.settings import LogSettings, Window, check


def configure_log(source: Source, name: str, form: Form) -> str:
    """Store the settings of a log as a form changes them."""
    source.configure(name, _changed_log(source, name, form))
    return f"{name} has other settings now. Its next writer keeps to them."


def log_changes(source: Source, name: str, form: Form) -> str:
    """Return what a form would change in the settings of a log, and what that takes away."""
    before, after = source.log(name).settings, _changed_log(source, name, form)
    return "\n".join([_changes(_flat_log(before), _flat_log(after)), *_losses(before, after)])


def _losses(before: LogSettings, after: LogSettings) -> list[str]:
    """Return a sentence for each change that removes records, or lets retries be stored again."""
    found = []
    if any(_is_tighter(getattr(before, part), getattr(after, part)) for part in ("retention_s", "retention_bytes")):
        found.append("Older records are removed for good, and their ids with them.")
    if after.idempotence == "off" != before.idempotence:
        found.append("From then on appends with an id are refused, and a retry without one is stored again.")
    elif any(
        _is_tighter(getattr(before.window, part), getattr(after.window, part)) for part in ("duration_s", "max_keys")
    ):
        found.append("Ids beyond these bounds are forgotten: a retry that comes later is stored again.")
    return found


def _is_tighter(before: float | None, after: float | None) -> bool:
    """Tell whether a bound is smaller than before. ``None`` is no bound.

    >>> _is_tighter(None, 5), _is_tighter(5, 4), _is_tighter(5, 6), _is_tighter(5, None), _is_tighter(None, None)
    (True, True, False, False, False)
    """
    return after is not None and (before is None or after < before)


def configure_queue(source: Source, name: str, form: Form) -> str:
    """Store the settings of a queue as a form changes them."""
    source.queue(name).configure(_changed_queue(source, name, form))
    return f"{name} has other settings now. Deliveries that begin from now on keep to them."


def queue_changes(source: Source, name: str, form: Form) -> str:
    """Return what a form would change in the settings of a queue."""
    return _changes(_flat_queue(source.queue(name).settings), _flat_queue(_changed_queue(source, name, form)))


def _changes(before: dict[str, object], after: dict[str, object]) -> str:
    """Return a line for each setting that differs."""
    changed = [part for part in before if before[part] != after[part]]
    return "\n".join(f"{part}: {_words(before[part])} → {_words(after[part])}" for part in changed)


def _words(value: object) -> str:
    """Return a setting as a form shows it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value)
    return render.figure(value)


def _flat_log(settings: LogSettings) -> dict[str, object]:
    window = {f"window.{part}": value for part, value in msgspec.structs.asdict(settings.window).items()}
    return {**msgspec.structs.asdict(settings), **window, "window": None}


def _flat_queue(settings: QueueSettings) -> dict[str, object]:
    own = {part: getattr(settings, part) for part in ("ack_timeout_s", "gate_s", "trim_s")}
    return {**msgspec.structs.asdict(settings.retry), **own}


def _changed_log(source: Source, name: str, form: Form) -> LogSettings:
    stored = source.log(name).settings
    _check_tag(name, form, stored)
    span_s, keys_max = _number(form, "duration_s"), _whole(form, "max_keys")
    refreshes = stored.window.refresh_on_hit and (span_s is not None or keys_max is not None)
    given: dict[str, Any] = {
        "window": Window(duration_s=span_s, max_keys=keys_max, refresh_on_hit=refreshes),
        "retention_s": _number(form, "retention_s"),
        "retention_bytes": _whole(form, "retention_bytes"),
        "segment_bytes": _whole(form, "segment_bytes") or stored.segment_bytes,
        **{part: form[part] for part in ("idempotence", "on_conflict", "seal") if form.get(part)},
    }
    changed = check(msgspec.structs.replace(stored, **given))
    _check_change(name, differs=changed != stored)
    return changed


def _changed_queue(source: Source, name: str, form: Form) -> QueueSettings:
    stored = source.queue(name).settings
    _check_tag(name, form, stored)
    retry = msgspec.structs.replace(
        stored.retry,
        max_attempts=_whole(form, "max_attempts"),
        backoff_s=_needed(form, "backoff_s"),
        max_backoff_s=_needed(form, "max_backoff_s"),
        jitter=_needed(form, "jitter"),
    )
    given = {"ack_timeout_s": _needed(form, "ack_timeout_s"), "gate_s": _needed(form, "gate_s")}
    changed = queue_settings.check(
        msgspec.structs.replace(stored, retry=retry, trim_s=_number(form, "trim_s"), **given)
    )
    _check_change(name, differs=changed != stored)
    return changed


def _check_tag(name: str, form: Form, stored: msgspec.Struct) -> None:
    """Raise ``InvalidArgument`` for a form that is older than the settings."""
    if form.get("tag") != render.tag(stored):
        message = f"the settings of {name} have changed since this page was loaded: look at them again"
        raise InvalidArgument(message)


def _check_change(name: str, *, differs: bool) -> None:
    if not differs:
        message = f"nothing would change in the settings of {name}"
        raise InvalidArgument(message)


def duration_s(text: str) -> float:
    """Return a number of seconds that a person typed, or raise ``InvalidArgument``."""
    try:
        return float(text)
    except ValueError as error:
        message = f"{text!r} is not a number of seconds"
        raise InvalidArgument(message) from error


def _number(form: Form, part: str) -> float | None:
    text = form.get(part, "").replace(",", "").strip()
    return duration_s(text) if text else None


def _needed(form: Form, part: str) -> float:
    found = _number(form, part)
    if found is None:
        message = f"{part} is empty, must be a number"
        raise InvalidArgument(message)
    return found


def _whole(form: Form, part: str) -> int | None:
    text = form.get(part, "").strip()
    return whole(part, text) if text else None
