"""Workers have their effects where inboxes are."""

from tests.inbox.conftest import database, kind

__all__ = ["database", "kind"]
