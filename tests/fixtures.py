"""The servers that the tests of several rooms share. Each is real, and starts when the first test asks for it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from pyspark.sql import SparkSession

    from benchmarks.seaweedfs import SeaweedFS
    from oncelog.storage.bucket.bucket import Bucket
    from tests.servers import Serving

_PAGE_MS = 300_000
"""How long a page may take to show something: Playwright's 30 seconds are too few on a busy machine."""
_schemas = itertools.count()


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """Yield a real S3 server. Tests share it; each test has a prefix of its own."""
    from benchmarks.seaweedfs import SeaweedFS

    server = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    yield server
    server.end()


@pytest.fixture
def bucket_url(seaweedfs: SeaweedFS, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty prefix on the S3 server. Credentials are in the environment."""
    from benchmarks.seaweedfs import BUCKET

    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{abs(hash(request.node.nodeid)):x}"


@pytest.fixture
def bucket(bucket_url: str) -> Bucket:
    """Return a bucket on the S3 server."""
    from oncelog.storage.bucket.bucket import Bucket

    return Bucket.connect(bucket_url, {})


@pytest.fixture
def memory_bucket() -> Bucket:
    """Return a bucket in memory, as obstore itself has it."""
    from obstore.store import MemoryStore

    from oncelog.storage.bucket.bucket import Bucket

    return Bucket(MemoryStore(), "s3://memory")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Yield the URL of a real PostgreSQL server."""
    from tests.servers import postgresql

    with postgresql() as url:
        yield url


@pytest.fixture
def postgres_schema(postgres_server: str) -> str:
    """Return the name of a new, empty schema on the PostgreSQL server."""
    import psycopg

    schema = f"test_{next(_schemas)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return schema


@pytest.fixture
def postgres_url(postgres_server: str, postgres_schema: str) -> str:
    """Return the URL of a new, empty schema on the PostgreSQL server."""
    return f"{postgres_server}&options=-csearch_path%3D{postgres_schema}"


@pytest.fixture(scope="session")
def redis_socket() -> Iterator[Path]:
    """Yield the socket of a real Redis server."""
    from tests.inbox.places import redis_server

    with redis_server() as socket:
        yield socket


_JAVA_ENDS_S = 120.0


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a Spark session on two cores whose tasks are tried three times. Its Java ends with it."""
    from pyspark import SparkContext

    from oncelog.spark.session import session
    from tests.spark.jobs import CONF

    logging.getLogger("py4j").setLevel(logging.ERROR)
    started = session.start("tests", "local[2,3]", CONF, log_file=tmp_path_factory.mktemp("spark") / "spark.log")
    yield started
    started.stop()
    java: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    if java is not None:
        java.shutdown()
        java.proc.stdin.close()
        java.proc.wait(_JAVA_ENDS_S)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """End Spark with the last group of a worker: a hundred threads go with it, which simulated time looks at for work.

    Tests without a group run after all groups, and start no Spark.
    """
    done = yield
    is_last, follows = nextitem is None, nextitem and nextitem.get_closest_marker("xdist_group")
    if item.get_closest_marker("xdist_group") and not (is_last or follows):
        for fixture in item.session._fixturemanager.getfixturedefs("spark", item) or ():
            fixture.finish(item._request)  # type: ignore[attr-defined]
    return done


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """Yield a function that starts a real ``oncelog serve`` on free ports, by default on a disk; all are ended."""
    from tests.servers import Serving

    started: list[Serving] = []

    def start(url: str | None = None, *options: str, **environment: str) -> Serving:
        server = Serving(url or (tmp_path / "served").as_uri(), options, environment)
        started.append(server)
        return server

    yield start
    for server in started:
        server.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield Chromium, for the tests of one module: while Playwright runs, its thread has an event loop of its own."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
        started.on("context", lambda context: context.set_default_timeout(_PAGE_MS))
        yield started
        started.close()
