"""What a server says of its database is checked before it is believed: another program may listen at the address."""

from __future__ import annotations

from typing import Any

import pytest

import oncelog
from oncelog.cli import run
from oncelog.client.channel import Channel
from oncelog.client.database import servers
from oncelog.errors import InvalidArgument
from oncelog.wire import messages

URL = "oncelog://127.0.0.1:1"


@pytest.mark.parametrize("answer", [b"", b"{}", b"[7]", b'[{"name": "a"}]', b"[" * 5000, b'["\xff"]'])
def test_servers_that_make_no_sense_are_an_error(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is no list of servers ended a client, and ``oncelog server list``, in a traceback."""

    def ask(*_: Any) -> Any:
        return messages.Document(json=answer)

    monkeypatch.setattr(Channel, "ask", ask)
    with oncelog.connect(URL) as db, pytest.raises(InvalidArgument):
        servers(db)
    assert run(["server", "list", "--url", URL]) == 2
