"""One Spark for all tests of pipelines, and a shop whose orders go through them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncelog.spark.session import session
from tests.pipeline.shop import Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER = Path("/usr/share/java/postgresql.jar")
"""PostgreSQL's driver for Java, as Debian has it (libpostgresql-jdbc-java)."""

QUICK = {
    "spark.sql.shuffle.partitions": 2,
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.streaming.numRecentProgressUpdates": 100,
    "spark.sql.streaming.pollingDelay": "10ms",
} | ({"spark.jars": str(DRIVER)} if DRIVER.exists() else {})


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a Spark session."""
    started = session.start("tests", "local[2,3]", QUICK, log_file=tmp_path_factory.mktemp("spark") / "spark.log")
    yield started
    started.stop()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Return a shop with a spec and nothing in it."""
    return Shop(tmp_path)
