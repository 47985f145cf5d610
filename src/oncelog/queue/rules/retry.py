"""When a message that was not acknowledged is tried again, and when it no longer is."""

from __future__ import annotations

import msgspec

from oncelog.errors import InvalidArgument
from oncelog.limits import QUEUE_ATTEMPTS_MAX, QUEUE_DELAY_S_MAX

_DOUBLINGS_MAX = 64
"""Beyond this a backoff is as long as it may be, whatever it began with."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often a message is delivered at most, and how long it rests in between.

    The rest after the ``n``-th delivery is ``backoff_s`` doubled ``n - 1`` times, at most ``max_backoff_s``; ``jitter``
    takes a random part of up to that share away, so the longest rest is never passed. ``max_attempts=None``: for ever.

    >>> policy = RetryPolicy(max_attempts=5, backoff_s=1, max_backoff_s=3, jitter=0)
    >>> [rest_us(policy, attempts, chance=0.5) / 1e6 for attempts in (1, 2, 3, 4)]
    [1.0, 2.0, 3.0, 3.0]
    """

    max_attempts: int | None = 10
    backoff_s: float = 1.0
    max_backoff_s: float = 300.0
    jitter: float = 0.1


def check(policy: object) -> RetryPolicy:
    """Return the policy, or raise ``InvalidArgument`` naming what is wrong with it."""
    if not isinstance(policy, RetryPolicy):
        message = f"retry: is {type(policy).__name__}, must be RetryPolicy"
        raise InvalidArgument(message)
    try:
        checked = msgspec.convert(msgspec.to_builtins(policy), RetryPolicy, strict=True)
    except (msgspec.ValidationError, TypeError) as error:
        message = f"retry: {error}"
        raise InvalidArgument(message) from error
    if checked.max_attempts is not None and not 1 <= checked.max_attempts <= QUEUE_ATTEMPTS_MAX:
        message = f"retry: max_attempts is {checked.max_attempts}, must be from 1 to {QUEUE_ATTEMPTS_MAX}, or None"
        raise InvalidArgument(message)
    if not 0 <= checked.backoff_s <= checked.max_backoff_s <= QUEUE_DELAY_S_MAX:
        message = (
            f"retry: backoff_s is {checked.backoff_s} and max_backoff_s {checked.max_backoff_s}: must be 0 or more, "
            f"the second no less than the first, and at most {QUEUE_DELAY_S_MAX}"
        )
        raise InvalidArgument(message)
    if not 0 <= checked.jitter <= 1:
        message = f"retry: jitter is {checked.jitter}, must be from 0 to 1"
        raise InvalidArgument(message)
    return checked


def rest_us(policy: RetryPolicy, attempts: int, chance: float) -> int:
    """Return how long a message rests after so many deliveries; ``chance`` is in [0, 1)."""
    doublings = min(max(attempts - 1, 0), _DOUBLINGS_MAX)
    rest_s = min(policy.backoff_s * 2.0**doublings, policy.max_backoff_s)
    return round(rest_s * (1 - policy.jitter * chance) * 1_000_000)


def exhausted(policy: RetryPolicy, attempts: int) -> bool:
    """Tell whether a message that was delivered so often is not to be delivered again."""
    return policy.max_attempts is not None and attempts >= policy.max_attempts
