"""A client that stands still for longer than everybody's patience, and whose connection is dead when it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from tests.server.proxy import Proxy
from tests.servers import Serving

AWAY_S = 0.8
"""Longer than the time limits of the client, and than what this server remembers of a session."""

CLIENT = """
import json, os, signal, sys
import oncelog

def outcome(pending):
    try:
        pending.result(120)
    except oncelog.Unavailable as error:
        return error.outcome
    return "acked"

with oncelog.connect(sys.argv[1]) as db, db.log("orders").writer() as writer:
    writer.append(b"first", id="first", timeout_s=120)
    pendings = {}
    for n in range(300):
        pendings[f"id-{n}"] = writer.submit(b"id-%d" % n, id=f"id-{n}", timeout_s=0.3)
        pendings[f"plain-{n}"] = writer.submit(b"plain-%d" % n, timeout_s=0.3)
        if n == 150:
            os.kill(os.getpid(), signal.SIGSTOP)
    outcomes = {name: outcome(pending) for name, pending in pendings.items()}
    for n in range(300):
        writer.append(b"id-%d" % n, id=f"id-{n}", timeout_s=120)
    print(json.dumps(outcomes))
"""


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Serving]:
    """Yield a server that forgets a session at once when its stream has ended."""
    server = Serving(tmp_path.as_uri(), environment={"ONCELOG_SERVE_SESSION_S": "0.1"})
    yield server
    server.end()


def test_a_client_that_was_away_too_long_learns_what_is_known(impatient: Serving) -> None:
    """It was stopped in the midst of its appends, and its connection was cut meanwhile. What was acknowledged is stored
    once. What was said to be not written is not there. Of the rest nobody knows, and it is there at most once; what has
    an id is sent again, and is there once.
    """
    proxy = Proxy(impatient.grpc, 1, 1 << 30)
    with oncelog.connect(f"oncelog://{impatient.grpc}") as db:
        log = db.log("orders", create=True)
        command = [sys.executable, "-c", CLIENT, f"oncelog://{proxy.address}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
            try:
                _, status = os.waitpid(client.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
                proxy.restore()  # every connection is dead, and the client does not know
                threading.Event().wait(AWAY_S)
                client.send_signal(signal.SIGCONT)
                output, _ = client.communicate(timeout=300)
            finally:
                client.kill()  # one that hangs, or stands still, would be waited for without end
        outcomes: dict[str, str] = json.loads(output)
        stored = Counter(entry.value.decode() for entry in log.read())
    proxy.close()
    assert len(outcomes) == 600
    for name, outcome in outcomes.items():
        least = 1 if outcome == "acked" or name.startswith("id") else 0
        most = 0 if outcome == "not written" and name.startswith("plain") else 1
        assert least <= stored.pop(name, 0) <= most, (name, outcome)
    assert stored == Counter(["first"])
