"""What all calls of a server share."""

from __future__ import annotations

import pytest

from oncelog.errors import Outcome, Unavailable, WriterFenced
from oncelog.server.server import Server
from tests.server.inside import serving


@pytest.mark.parametrize("outcome", ["not written", "unknown"])
def test_a_log_that_was_taken_meanwhile_is_a_call_to_be_made_again(outcome: Outcome) -> None:
    """A client of a fleet cannot help that another server took the log: it asks again, and reaches that one. A stream
    append that was told ``WriterFenced`` gave up instead.
    """

    def fenced() -> None:
        message = "log 'a': another writer took it"
        raise WriterFenced(message, outcome=outcome)

    async def work(server: Server) -> None:
        with pytest.raises(Unavailable) as found:
            await server.write(fenced, "a")
        assert found.value.outcome == outcome

    serving(work)
