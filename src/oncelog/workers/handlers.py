"""Handlers as workers find them: whether they can be called, and how; and what people call their messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from oncelog.errors import InvalidArgument
from oncelog.inbox.decorator import check_runs_at_once
from oncelog.queue.deliver.consumer import Delivery

_SHOWN_MAX = 100


def described(delivery: Delivery) -> str:
    """Return what people call a message by: its queue, and the key that ``oncelog inbox show`` takes."""
    key = delivery.inbox_key
    shown = key if len(key) <= _SHOWN_MAX else key[:_SHOWN_MAX] + "…"
    return f"{delivery.topic} {shown} (attempt {delivery.attempts})"


def is_async(handler: Callable[..., Any]) -> bool:
    """Tell whether what a handler returns is to be awaited; an object may be called as a coroutine function is."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def takes_effect(handler: Callable[..., Any], *, with_inbox: bool) -> bool:
    """Tell whether a handler wants the effect. Raise ``InvalidArgument`` for one that cannot be called: it would spend
    the attempts of every message.
    """
    check_runs_at_once(handler)
    try:
        signature = inspect.signature(handler)
    except ValueError:  # something built in does not tell
        return False
    takes = with_inbox and "effect" in signature.parameters
    try:
        signature.bind(None, **({"effect": None} if takes else {}))
    except TypeError as error:
        wanted = " (an effect comes with an inbox: give one)" if "effect" in signature.parameters and not takes else ""
        message = f"the handler cannot be called with a delivery: {error}{wanted}"
        raise InvalidArgument(message) from error
    return takes
