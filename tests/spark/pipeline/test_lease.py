"""One run at a time for each pipeline, and a second one learns who runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument, LeaseLost, LogBusy
from oncelog.spark.pipeline import lease
from oncelog.spark.pipeline.lease import BucketLease, Holder
from oncelog.spark.pipeline.spec import IdentitySpec, RunSpec, SourceSpec, Spec, Target
from oncelog.storage.bucket.paths import bucket_of


def pipeline(checkpoint: str) -> Spec:
    """Return a pipeline with this checkpoint."""
    return Spec(
        name="orders",
        source=SourceSpec(format="rate"),
        identity=IdentitySpec(content=True),
        log=Target(url="file:///x", name="orders"),
        run=RunSpec(checkpoint=checkpoint),
    )


def test_second_run_is_told_who_runs(tmp_path: Path) -> None:
    """The second run names the process and since when; once the first has ended the lease can be had."""
    given = pipeline(str(tmp_path / "state"))
    said = f"process {os.getpid()} on .*since 20"
    with lease.held(given, SYSTEM), pytest.raises(LogBusy, match=said) as caught, lease.held(given, SYSTEM):
        pass
    assert caught.value.pid == os.getpid()
    with lease.held(given, SYSTEM):
        pass


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    """The holder's name is written into the lock: through a link that emptied somebody's file."""
    state, precious = tmp_path / "state", tmp_path / "precious"
    with lease.held(pipeline(str(state)), SYSTEM):
        (lock,) = state.iterdir()
    assert state.stat().st_mode & 0o777 == 0o700
    assert lock.stat().st_mode & 0o777 == 0o600
    precious.write_text("mine")
    lock.unlink()
    lock.symlink_to(precious)
    with pytest.raises(InvalidArgument, match="symbolic link"), lease.held(pipeline(str(state)), SYSTEM):
        pass
    assert precious.read_text() == "mine"


def test_second_run_may_wait(tmp_path: Path) -> None:
    """With time to wait, the second run begins when the first has ended."""
    given = pipeline(str(tmp_path / "state"))
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        waiting.set()
        with lease.held(given, SYSTEM, wait_s=600):
            order.append("second")

    with lease.held(given, SYSTEM):
        thread = threading.Thread(target=second)
        thread.start()
        waiting.wait()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_lease_of_a_killed_run_is_free(tmp_path: Path) -> None:
    """The operating system ends the lock with its holder: nothing has to be removed by hand."""
    code = (
        "import sys; from tests.spark.pipeline.test_lease import lease, pipeline, SYSTEM\n"
        "with lease.held(pipeline(sys.argv[1]), SYSTEM):\n    print('held', flush=True); sys.stdin.read()"
    )
    state = str(tmp_path / "state")
    process = subprocess.Popen(
        [sys.executable, "-c", code, state],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(LogBusy, match=f"process {process.pid} "), lease.held(pipeline(state), SYSTEM):
        pass
    process.kill()
    process.communicate()
    with lease.held(pipeline(state), SYSTEM):
        pass


def bucket_lease(url: str, pid: int, lease_s: float) -> BucketLease:
    """Return a run's lease in a bucket, not taken yet."""
    found = bucket_of(url)
    assert found is not None
    return BucketLease(found[0], f"{found[1]}/lease/", Holder("host", pid, pid), SYSTEM, lease_s)


def test_lease_in_a_bucket(bucket_url: str) -> None:
    """Two runs, on any machines: the one that renews is named to the other; ended, the lease is free at once."""
    first, second = bucket_lease(bucket_url, 1, 0.6), bucket_lease(bucket_url, 2, 600)
    first.take("orders")
    with pytest.raises(LogBusy, match="process 1 on host"):
        second.take("orders")
    first.check()
    first.end()
    second.take("orders")
    second.end()


def test_lease_in_a_bucket_whose_holder_is_gone(bucket_url: str) -> None:
    """A holder that renews no more is replaced; when it wakes up it is told, before it publishes more."""
    sleeper, heir = bucket_lease(bucket_url, 1, 600), bucket_lease(bucket_url, 2, 0.05)
    sleeper.take("orders")
    heir.take("orders")
    heir.check()
    with pytest.raises(LeaseLost, match="paused"):
        sleeper.check()
    heir.end()
    sleeper.end()


def test_what_the_lock_file_says_may_be_anything(tmp_path: Path) -> None:
    """A lock file that was cut short still locks: only the name of the holder is missing."""
    (tmp_path / "run.lock").write_bytes(b'{"host"')
    with lease.held(pipeline(str(tmp_path)), SYSTEM):
        assert msgspec.json.decode((tmp_path / "run.lock").read_bytes(), type=Holder).pid == os.getpid()
        (tmp_path / "run.lock").write_bytes(b"?")
        with pytest.raises(LogBusy, match="another run"), lease.held(pipeline(str(tmp_path)), SYSTEM):
            pass
