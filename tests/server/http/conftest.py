"""Real servers that the tests of HTTP share: one that is open, one that wants tokens. Each test has logs of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from oncelog.clock import SYSTEM
from oncelog.server.security import tokens
from tests.servers import Serving

HOOKS = """
[hooks.stripe]
log = "hooks/stripe"
id = "json:/id"
signature = "stripe"
secret_file = "{secret}"

[hooks.github]
log = "hooks/github"
id = "header:X-GitHub-Delivery"
signature = "github"
secret_file = "{secret}"
type = "push"

[hooks.strict]
log = "hooks/strict"
id = "json:/data/0/key"
signature = "hmac-sha256"
secret_file = "{secret}"
on_conflict = "error"

[hooks.left]
log = "hooks/shared"
id = "json:/id"
id_prefix = ""

[hooks.right]
log = "hooks/shared"
id = "json:/id"
id_prefix = "right:"
"""
SECRET = b"whsec_5up3r-s3cr3t"
EVIL = "zz<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7 * 7 }}"
"""Text that would run on a page that takes it for a part of the page."""
_names = itertools.count()


@pytest.fixture(scope="session")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Yield a server without tokens, with webhooks."""
    folder = tmp_path_factory.mktemp("open")
    (folder / "secret").write_bytes(SECRET + b"\n")
    (folder / "secret").chmod(0o600)
    (folder / "serve.toml").write_text(HOOKS.format(secret=folder / "secret"))
    server = Serving(f"file://{folder}/db", ["--config", str(folder / "serve.toml")])
    yield server
    server.end()


@pytest.fixture
def http(open_server: Serving) -> Iterator[httpx.Client]:
    """Yield a client of the open server."""
    with httpx.Client(base_url=f"http://{open_server.http}", timeout=60) as client:
        yield client


@pytest.fixture
def log(http: httpx.Client) -> str:
    """Return the name of a new log."""
    name = f"log-{next(_names)}"
    assert http.post("/v1/logs", json={"name": name}).status_code == 201
    return name


@pytest.fixture
def queue(http: httpx.Client) -> str:
    """Return the name of a new queue."""
    name = f"queue-{next(_names)}"
    settings = {"retry": {"max_attempts": 1, "backoff_s": 0, "max_backoff_s": 0, "jitter": 0}}
    assert http.post("/v1/queues", json={"name": name, "settings": settings}).status_code == 201
    return name


class Guarded:
    """A server that wants tokens."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tokens.json"
        self.operator = self.token("operator", "look,read,append,consume,admin:*")
        self.inbox = folder / "inbox.db"
        self.report = folder / "orders.report.html"
        (folder / "serve.toml").write_text(
            f'[inboxes]\nshop = "sqlite:///{self.inbox}"\n{json.dumps(EVIL)} = "sqlite:///{self.inbox}"\n'
            f'[reports]\norders = "{self.report}"\n{json.dumps(EVIL)} = "{self.report}"\n'
            f"[hooks.{json.dumps(EVIL)}]\nlog = 'hooks/evil'\nid = 'json:/id'\ntype = {json.dumps(EVIL)}\n"
        )
        options = ["--config", str(folder / "serve.toml")]
        self.server = Serving(f"file://{folder}/db", options, {"ONCELOG_SERVE_TOKENS": str(self.path)})

    def token(self, name: str, *allow: str) -> str:
        """Make a token."""
        return tokens.create(self.path, name, allow, SYSTEM)

    def client(self, token: str | None) -> httpx.Client:
        """Return a client with a token."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"http://{self.server.http}", timeout=60, headers=headers)


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Yield a server that wants tokens."""
    found = Guarded(tmp_path_factory.mktemp("guarded"))
    yield found
    found.server.end()
