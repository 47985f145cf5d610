"""A database that Spark works on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncelog.connect import connect
from oncelog.settings import LogSettings
from tests.spark.jobs import Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
