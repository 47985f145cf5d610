"""What a worker asks of an inbox, and no user: the inner half of ``Inbox``."""

from __future__ import annotations

from oncelog.inbox.inbox import Inbox


def final(inbox: Inbox) -> tuple[type[BaseException], ...]:
    """Return the errors of a handler after which the handler is not tried again."""
    return inbox._rules.final


def is_single(inbox: Inbox) -> bool:
    """Tell whether all effects share one connection, and so cannot run at the same time."""
    return not inbox._home.several


def in_transaction(inbox: Inbox) -> bool:
    """Tell whether the connection that the inbox was given is in a transaction, which effects would join."""
    return inbox._home.in_transaction()
