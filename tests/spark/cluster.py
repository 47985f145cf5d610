"""A real cluster on this machine: a master and two workers, on hosts of their own as far as Spark can tell."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue

from oncelog.spark.session import spark_home

ROOT = Path(__file__).parents[2]
PYTHON_PATH = os.pathsep.join([str(ROOT), str(ROOT / "src")])


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Start a master and two workers; yield the master's URL."""
    with ExitStack() as running:
        master = running.enter_context(
            _daemon("master.Master", folder / "master.log", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        )
        url = _wait(master, folder / "master.log", "Starting Spark master at ").split()[-1]
        for number in (2, 3):
            log = folder / f"worker-{number}.log"
            worker = running.enter_context(
                _daemon(
                    "worker.Worker",
                    log,
                    *("--host", f"127.0.0.{number}", "--cores", "2", "--memory", "1g", "--webui-port", "0"),
                    *("--work-dir", str(folder / f"work-{number}"), url),
                )
            )
            _wait(worker, log, "Successfully registered with master")
        yield url


@contextmanager
def _daemon(name: str, log: Path, *arguments: str) -> Iterator[SimpleQueue[str | None]]:
    """Start a process; yield the lines that it says, which are all read: a pipe that is full would stop the process."""
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
    said: SimpleQueue[str | None] = SimpleQueue()
    reading = threading.Thread(target=_read, args=(process, log, said))
    reading.start()
    try:
        yield said
    finally:
        process.terminate()
        process.wait()
        reading.join()


def _read(process: subprocess.Popen[str], log: Path, said: SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    with log.open("w") as file, process.stdout as lines:
        for line in lines:
            file.write(line)
            file.flush()
            said.put(line)
    said.put(None)


def _wait(said: SimpleQueue[str | None], log: Path, wanted: str) -> str:
    """Return the line in which a process says what is wanted."""
    while (line := said.get()) is not None:
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
