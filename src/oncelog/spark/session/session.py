"""A Spark session for a job: quiet, on this machine by default, on any master by its URL."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from oncelog.spark.session import spark_home
from oncelog.storage.local import links

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS = 3
"""How often a task of a Spark on this machine is tried."""

_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Thousands of small files: the driver lists them itself, and many of them make one task.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    "spark.sql.files.openCostInBytes": "65536",
}
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",  # what is written as text, and so a record's content, must not depend on where
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.stopTimeout": "60s",
}


def start(
    name: str,
    master: str = "local[*]",
    conf: Mapping[str, Any] | None = None,
    packages: Sequence[str] = (),
    *,
    log_file: Path | None = None,
) -> SparkSession:
    """Start Spark, or use the session there is in this process. What Spark itself says goes to ``log_file``.

    Ctrl-C ends a start when Spark is there to be stopped; a second one ends it at once.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 (seconds, which who asks for help should not wait)

    # Workers must be this very Python: with another one, streaming dies without saying why.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        spark_home.use()
    _quiet()
    with as_file(files("oncelog.spark") / "log4j2.properties") as config, _stderr_to(log_file), _held() as interrupts:
        builder = SparkSession.builder.appName(name).master(retrying(master))
        for key, value in _settings(master, conf or {}, packages, config).items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
    if interrupts:
        spark.stop()
        signal.raise_signal(signal.SIGINT)
    return spark


@contextmanager
def _held() -> Iterator[list[int]]:
    """Hold the first SIGINT back. PySpark that is interrupted while its JVM starts leaves it behind, for ever.

    One that is ignored, as with ``nohup``, stays ignored.
    """
    got: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in {None, signal.SIG_IGN}:
        yield got
        return

    def hold(number: int, _: FrameType | None) -> None:
        got.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, hold)
    try:
        yield got
    finally:
        signal.signal(signal.SIGINT, before)


def _quiet() -> None:
    """Let PySpark raise its errors only: it would also print each, with the stack of the JVM, as one line of JSON."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 (as in start)

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def retrying(master: str) -> str:
    """Return a master that tries a task three times, as clusters do: on a busy machine a worker fails to connect.

    >>> retrying("local[*]"), retrying("local"), retrying("local[2,1]"), retrying("spark://host:7077")
    ('local[*,3]', 'local[1,3]', 'local[2,1]', 'spark://host:7077')
    """
    found = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return master if found is None else f"local[{found[1] or 1},{ATTEMPTS}]"


def _settings(master: str, conf: Mapping[str, Any], packages: Sequence[str], config: Path) -> dict[str, str]:
    given = _ALWAYS | (_LOCAL if master.startswith("local") else {}) | {key: _text(conf[key]) for key in conf}
    options = given.get("spark.driver.extraJavaOptions", "")
    given["spark.driver.extraJavaOptions"] = f"{options} -Dlog4j2.configurationFile=file:{config}".strip()
    if packages:
        given["spark.jars.packages"] = ",".join(packages)
    return given


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Send the standard error of Spark's JVM, which is started inside the ``with`` block, to a file."""
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = os.dup(2)
    with links.append_to(path) as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
