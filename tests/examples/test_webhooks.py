"""The web service of the examples: several processes, one log, each event once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.servers import Serving

ROOT = Path(__file__).parents[2]


@contextmanager
def service(url: str, workers: int) -> Iterator[str]:
    """Yield the address of the service, in so many processes, on a free port."""
    command = [sys.executable, "-m", "uvicorn", "--workers", str(workers), "--port", "0", "examples.webhooks:app"]
    environment = {**os.environ, "ONCELOG_URL": url, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said: list[str] = []
        port = ""
        ready = 0
        while ready < workers or not port:
            line = process.stderr.readline()
            assert line, f"uvicorn ended: {said}"
            said.append(line)
            found = re.search(r"running on http://127\.0\.0\.1:(\d+)", line)
            port = found.group(1) if found else port
            ready += "Application startup complete" in line
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


@pytest.mark.parametrize("workers", [1, 2])
def test_each_event_is_stored_once(tmp_path: Path, serve: Callable[..., Serving], workers: int) -> None:
    """Senders that repeat everything, to whichever process answers: one record an id, one position for all."""
    url = f"oncelog://{serve().grpc}" if workers > 1 else str(tmp_path / "shop")
    with service(url, workers) as address, httpx.Client(base_url=address, timeout=60) as client:

        def send(number: int) -> dict[str, int]:
            with httpx.Client(base_url=address, timeout=60) as own:  # a connection each: any process may take it
                answer = own.post(
                    "/events", content=b"%d" % (number % 25), headers={"Idempotency-Key": str(number % 25)}
                )
            assert answer.status_code == 201, answer.text
            found: dict[str, int] = answer.json()
            return found

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(send, range(100)))
        assert client.get("/events").json() == {"events": 25}
        for number in range(25):
            assert len({answer["position"] for answer in answers[number::25]}) == 1
        assert sum(not answer["duplicate"] for answer in answers) == 25
        conflict = client.post("/events", content=b"other", headers={"Idempotency-Key": "0"})
        assert conflict.status_code == 422
        if workers > 1:
            assert len({answer["process"] for answer in answers}) > 1
