"""Tokens in the database: all servers see them, and nothing that goes wrong opens a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import oncelog
from oncelog.clock import SYSTEM
from oncelog.errors import CorruptionError, InvalidArgument, NotAuthenticated, NotFound, Unavailable
from oncelog.server.security import token_object, tokens
from oncelog.server.security.authorize import Authorizer, Credentials
from oncelog.server.security.token_object import TokenObject
from oncelog.storage.base import LogHome
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.testing.bucket import FaultyBucket
from tests.cli.shell import shell
from tests.servers import Serving


@pytest.fixture
def home(memory_bucket: Bucket) -> LogHome:
    """Return the home of the tokens."""
    return ObjectStorage(memory_bucket).home(token_object.HOME)


def _call(authorizer: Authorizer, secret: str | None) -> str:
    header = None if secret is None else f"Bearer {secret}"
    return authorizer.principal(Credentials(header, (), "127.0.0.1:1")).name


def test_a_token_of_the_database_is_taken_and_revoked_everywhere(home: LogHome) -> None:
    """Two servers: what one operator makes or revokes holds at both, after their next look."""
    servers = [TokenObject(home), TokenObject(home)]
    authorizers = [Authorizer(SYSTEM, server) for server in servers]
    for server in servers:
        server.look()
    assert all(authorizer.is_open for authorizer in authorizers)
    secret = tokens.create(TokenObject(home), "importer", ["append:orders"], SYSTEM)
    for server, authorizer in zip(servers, authorizers, strict=True):
        server.look()
        assert not authorizer.is_open
        assert _call(authorizer, secret) == "importer"
        with pytest.raises(NotAuthenticated):
            _call(authorizer, None)
    tokens.revoke(TokenObject(home), "importer")
    for server, authorizer in zip(servers, authorizers, strict=True):
        server.look()
        with pytest.raises(NotAuthenticated):
            _call(authorizer, secret)
        assert not authorizer.is_open, "a database without its last token is not open again"
    with pytest.raises(NotFound):
        tokens.revoke(TokenObject(home), "importer")


def test_operators_at_once_lose_nothing(home: LogHome) -> None:
    """Of two versions at one number one wins, and the other is made on top of it."""
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: tokens.create(TokenObject(home), f"t{n}", ["look:*"], SYSTEM), range(16)))
    assert {token.sha256 for token in TokenObject(home).stored()} == set(map(tokens.digest, made))
    with pytest.raises(InvalidArgument, match="already"):
        tokens.create(TokenObject(home), "t3", ["look:*"], SYSTEM)


def test_a_damaged_version_leaves_the_tokens_as_they_were(home: LogHome) -> None:
    """Nobody is locked out, nobody is let in; a server does not start with it."""
    secret = tokens.create(TokenObject(home), "importer", ["append:orders"], SYSTEM)
    server = TokenObject(home)
    server.look()
    home.create("tokens/00000000000000000002", [b"garbage"])
    server.look()
    assert server.damaged is not None
    assert server.find(tokens.digest(secret)) is not None
    with pytest.raises(CorruptionError):
        TokenObject(home).look()


def test_a_bucket_that_is_away_does_not_open_a_server(memory_bucket: Bucket) -> None:
    """Not being able to look is no answer: at the start it is an error, later the tokens stay."""
    cut = FaultyBucket(memory_bucket)
    home = ObjectStorage(cut).home(token_object.HOME)
    server = TokenObject(home)
    cut.cut_off()
    with pytest.raises(Unavailable):
        server.look()
    cut.faults.heal()
    secret = tokens.create(server, "importer", ["append:orders"], SYSTEM)
    server.look()
    cut.cut_off()
    server.look()
    assert server.damaged is not None
    assert server.required
    assert server.find(tokens.digest(secret)) is not None


def _ask_on(log: oncelog.Log) -> None:
    """Ask for longer than a server takes to look at the tokens again."""
    pause = threading.Event()
    for _ in range(6_000):
        log.info()
        pause.wait(0.01)


def test_a_server_asks_for_the_tokens_of_its_database(serve: Callable[..., Serving], tmp_path: Path) -> None:
    """Made in a shell, used by a client; without one, nothing."""
    url = (tmp_path / "shop").as_uri()
    made = shell("token", "create", "importer", "--allow", "admin,append,read,look:*", "--url", url)
    secret = made.out.decode().strip()
    assert shell("token", "list", "--url", url, "--json").lines[0]["name"] == "importer"
    server = serve(url)
    with oncelog.connect(f"oncelog://{server.grpc}") as db, pytest.raises(NotAuthenticated):
        db.log("orders", create=True)
    with oncelog.connect(f"oncelog://{server.grpc}", options={"token": secret}) as db:
        log = db.log("orders", create=True)
        assert shell("token", "revoke", "importer", "--yes", "--url", url).code == 0
        with pytest.raises(NotAuthenticated):
            _ask_on(log)
    assert shell("token", "list", "--url", f"oncelog://{server.grpc}").code == 2
