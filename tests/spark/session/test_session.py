"""Spark starts and ends whole, and says nothing to a terminal that is not meant for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession as Session

from oncelog.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def _python_handles_sigint() -> Iterator[None]:
    """Let SIGINT raise, as in a terminal: a worker of the tests may have been started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler  # it is left as it was


@pytest.mark.usefixtures("_python_handles_sigint")
def test_ctrl_c_during_a_start_leaves_no_java_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark was interrupted while it waited for its JVM, which then waited for ever. The start goes on to its end,
    and what has started is stopped. A second Ctrl-C ends the start at once: it may be one that hangs.
    """
    steps: list[str] = []

    class Started:
        def stop(self) -> None:
            steps.append("stopped")

    def starting(*_: Any) -> Started:
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("started")
        return Started()

    def hanging(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("hangs")
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("goes on")

    for start in (starting, hanging):
        monkeypatch.setattr(Session.Builder, "getOrCreate", start)
        with pytest.raises(KeyboardInterrupt):
            session.start("orders", log_file=tmp_path / "spark.log")
    assert steps == ["started", "stopped", "hangs"]


def test_ctrl_c_that_is_ignored_does_not_stop_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell starts jobs in the background so: who starts Spark there gets one that runs."""
    steps: list[str] = []

    class Started:
        def stop(self) -> None:
            steps.append("stopped")

    def starting(*_: Any) -> Started:
        os.kill(os.getpid(), signal.SIGINT)
        return Started()

    monkeypatch.setattr(Session.Builder, "getOrCreate", starting)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        session.start("orders", log_file=tmp_path / "spark.log")
    finally:
        signal.signal(signal.SIGINT, before)
    assert not steps


@pytest.mark.xdist_group("spark")
def test_an_error_is_raised_and_not_printed_too(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """PySpark printed it as a line of JSON of ten thousand characters, with the stack of the JVM."""
    again = session.start("orders")
    with pytest.raises(AnalysisException):
        again.range(1).select("nothing")
    assert again is spark
    assert "nothing" not in capfd.readouterr().err
