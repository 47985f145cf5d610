"""How hard hypothesis looks, and how long one test may take.

Hypothesis tries the same few examples every time, or under ``make soak`` many new ones. Hypothesis also draws constants
from the source of the modules that are loaded: the examples would then depend on the tests that ran before in the same
worker. ``make test`` goes without these constants. A test that runs out of its time fails alone: its worker, and with
it the run, goes on.
"""

import faulthandler
import gc
import mmap
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests import ending

pytest_plugins = ["tests.fixtures"]

ending.install()

# What is counted must not depend on how many tests came before: numba has tests of its own.
os.environ.setdefault("ONCELOG_FAST", "0")
os.environ.setdefault("ONCELOG_CACHE", "0")

settings.register_profile("ci", derandomize=True, max_examples=50, deadline=None)
settings.register_profile("soak", max_examples=5_000, deadline=None, print_blob=True)
LIMIT_S = float(os.environ.get("ONCELOG_TEST_LIMIT_S", "1200"))
"""How long the setup, the call or the teardown of one test may take."""

NAMED_MAX = 300
"""Up to which length an argument of a test is its own name."""

STATM = Path("/proc/self/statm")
COLLECT_BYTES = 6 << 30
_asked_bytes = 0

if os.environ.get("ONCELOG_SOAK") == "1":
    settings.load_profile("soak")
else:
    settings.load_profile("ci")
    assert not len(providers._local_constants), "the plugin of hypothesis collects no constants before a test runs"
    providers._get_local_constants = lambda: providers._local_constants


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # A shell lets what it starts in the background ignore Ctrl-C, and so would the commands that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _fail(_: int, __: FrameType | None) -> None:
    """Show where every thread stands, and fail the test that runs."""
    faulthandler.dump_traceback(sys.__stderr__ or sys.stderr, all_threads=True)
    pytest.fail("the test ran out of its time (ONCELOG_TEST_LIMIT_S)")


def _limited() -> Generator[None, object, object]:
    """Let one phase of a test fail in its main thread when the time is over.

    The timer repeats: an error that the test itself catches does not buy the test more than one more period.
    """
    if threading.current_thread() is not threading.main_thread():
        return (yield)
    before = signal.signal(signal.SIGALRM, _fail)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S, LIMIT_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a long argument by its length: the name of a test goes from worker to worker, and into the environment."""
    if isinstance(val, str | bytes) and len(val) > NAMED_MAX:
        return f"{type(val).__name__} of {len(val)}"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Limit the setup."""
    return (yield from _limited())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Limit the test itself."""
    return (yield from _limited())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Limit the teardown, and let go of what tests have left behind."""
    try:
        return (yield from _limited())
    finally:
        _collect()


def _collect() -> None:
    """Collect garbage once much memory was asked for since the last time.

    Simulated disks read whole segments, and are garbage in cycles, of whose size Python knows nothing. Linux refuses to
    fork a process that has asked for more memory than the machine has, used or not.
    """
    global _asked_bytes  # noqa: PLW0603
    if _asked() > _asked_bytes + COLLECT_BYTES:
        gc.collect()
        _asked_bytes = _asked()


def _asked() -> int:
    """Return how much memory this process has asked for; 0 where the system does not say."""
    try:
        return int(STATM.read_text().split()[0]) * mmap.PAGESIZE
    except OSError:
        return 0
