"""A real cluster on this machine: a master and two workers, on hosts of their own as far as Spark can tell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from oncelog.spark.session import spark_home

ROOT = Path(__file__).parents[2]
PYTHON_PATH = os.pathsep.join([str(ROOT), str(ROOT / "src")])


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Start a master and two workers; yield the master's URL."""
    with ExitStack() as running:
        master, said = running.enter_context(
            _daemon("master.Master", folder / "master.log", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        )
        url = _wait(master, said, "Starting Spark master at ").split()[-1]
        for number in (2, 3):
            worker, said = running.enter_context(
                _daemon(
                    "worker.Worker",
                    folder / f"worker-{number}.log",
                    *("--host", f"127.0.0.{number}", "--cores", "2", "--memory", "1g", "--webui-port", "0"),
                    *("--work-dir", str(folder / f"work-{number}"), url),
                )
            )
            _wait(worker, said, "Successfully registered with master")
        yield url


@contextmanager
def _daemon(name: str, log: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    spark = spark_home.made()
    environment = os.environ | {
        "SPARK_HOME": str(spark),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYTHONPATH": PYTHON_PATH,
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [str(spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process, log
    finally:
        process.terminate()
        rest, _ = process.communicate()
        with log.open("a") as file:
            file.write(rest)


def _wait(process: subprocess.Popen[str], log: Path, wanted: str) -> str:
    """Read what a process says until it says what is wanted; return that line."""
    assert process.stdout is not None
    with log.open("a") as file:
        for line in process.stdout:
            file.write(line)
            if wanted in line:
                return line
    message = f"it ended without saying {wanted!r}: {log.read_text()}"
    raise AssertionError(message)


def run(url: str, folder: Path, database: str | None = None) -> None:
    """Run the jobs of ``cluster_driver`` on a cluster; with the logs of a database, those that a server can do."""
    environment = os.environ | {"PYTHONPATH": PYTHON_PATH, "SPARK_HOME": str(spark_home.made())}
    command = [sys.executable, "-m", "tests.spark.cluster_driver", url, str(folder)]
    command += [database] if database is not None else []
    with (folder / "driver.log").open("wb") as output:
        done = subprocess.run(command, env=environment, stdout=output, stderr=output, cwd=ROOT, check=False)
    assert done.returncode == 0, (folder / "driver.log").read_text()[-5000:]
