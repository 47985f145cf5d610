"""One Spark session for all tests here: it takes seconds to start, and a test's own job a fraction of one."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncelog.connect import connect
from oncelog.settings import LogSettings
from tests.spark.jobs import CONF, Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a session on two cores whose tasks are tried three times."""
    from oncelog.spark.session import session

    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    logging.getLogger("py4j").setLevel(logging.ERROR)
    found = session.start("tests", "local[2,3]", CONF, log_file=log_file)
    yield found
    found.stop()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Let PySpark's own warnings be: sockets that it leaves to the garbage collector, and words it deprecates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    """Return a database on a disk, with an empty log of orders, and Spark beside it."""
    made = Shop(spark, tmp_path)
    with connect(made.url) as db:
        db.log("orders", LogSettings(), create=True)
    return made
