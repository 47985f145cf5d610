"""A log that remembers without bounds never stores an id twice, whatever is done to it, in whatever order."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from oncelog import limits
from oncelog.dedup.table import Table
from oncelog.limits import KIB
from oncelog.log.memory.recall import Looked, LookedOne, Recall
from oncelog.log.takeover import recovery
from oncelog.log.takeover.recovery import Recovered
from oncelog.settings import LogSettings, Window
from oncelog.types import Record
from tests.log.worlds import BucketWorld, DiskWorld, MemoryWorld, World
from tests.models.control import assert_noticed
from tests.models.history import Request
from tests.models.test_log import LogMachine, without_id

TINY = {
    "MEMORY_RUN_IDS": 6,
    "MEMORY_MERGED_RUNS": 4,
    "MEMORY_RUN_IDS_MIN": 4,
    "MEMORY_RUN_RECORDS_MIN": 12,
    "MEMORY_TABLE_IDS_MAX": 1 << 20,
}
"""Runs of a few ids, so that ids go from table to run to merged run within a few steps."""

with_id = st.builds(
    lambda number, variant: Record(f"{number} says {variant}".encode(), id=f"i{number}"),
    st.integers(0, 60),
    st.sampled_from([0, 0, 0, 0, 0, 1]),
)
record = st.one_of(with_id, with_id, with_id, with_id, without_id)


def _distinct(records: list[Record]) -> tuple[Record, ...]:
    return tuple({record.id or record.value: record for record in records}.values())


requests = st.one_of(
    st.builds(lambda r: Request("one", (r,)), record),
    st.builds(lambda r: Request("many", tuple(r)), st.lists(record, min_size=1, max_size=12)),
    st.builds(lambda r: Request("arrow", tuple(r)), st.lists(record, min_size=1, max_size=12)),
    st.builds(lambda r: Request("batch", _distinct(r)), st.lists(with_id, min_size=1, max_size=3)),
    st.builds(lambda r: Request("submit", _distinct(r)), st.lists(record, min_size=1, max_size=6)),
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs tiny."""
    for name, number in TINY.items():
        monkeypatch.setattr(limits, name, number)


class MemoryMachine(LogMachine):
    """One log without bounds, its writer and its machine, beside the model."""

    settings: ClassVar[LogSettings] = LogSettings(segment_bytes=64 * KIB, segment_age_s=25.0, snapshot_interval_s=15.0)

    @rule(request=requests)
    def append(self, request: Request) -> None:
        """Send something: it is answered as the dictionary says."""
        super().append.__wrapped__(self, request)  # type: ignore[attr-defined]

    @rule(bounded=st.booleans())
    def switch(self, *, bounded: bool) -> None:
        """Bound the memory, or let it be without bounds again: then all that is in the log is known."""
        self.writer.close(timeout_s=None)
        window = Window(duration_s=10.0, max_keys=5) if bounded else Window()
        self.model.settings = msgspec.structs.replace(self.model.settings, window=window)
        self.log.configure(self.model.settings)
        self.open()
        self.model.reopen(self.uptime_us)

    @rule(which=st.integers(0, 100), damage=st.integers(0, 1_000_000), gone=st.booleans())
    def lose_a_run(self, which: int, damage: int, *, gone: bool) -> None:
        """Delete an object of a run: the next writer makes up for it from the log. Or change a byte of it: a rebuild
        does, because a page is looked at only when an id needs it. So are timestamps, also whether they are there. A
        log that keeps no ids now is not rebuilt, and loses no timestamps.
        """
        self.writer.close(timeout_s=None)
        home, manifest = self.log._home, self.log._manifest()
        keys = [key for run in manifest.memory for key in run.keys() if home.exists(key)]  # noqa: SIM118
        if keys:
            key = keys[which % len(keys)]
            of_times = key.endswith(".times")
            content = bytearray(home.read(key).to_pybytes())
            home.delete(key)
            if manifest.settings.idempotence == "off":
                assert not of_times or home.create(key, [content])
            elif not gone or of_times:
                content[damage % len(content)] ^= 1 + damage % 255
                assert gone or home.create(key, [content])
                self.log.rebuild()  # what the error says that an id in a damaged page gets
        self.open()
        self.model.reopen(self.uptime_us)


class OnDisk(MemoryMachine):
    """On a simulated disk."""

    make_world: ClassVar[Callable[[], World]] = staticmethod(lambda: DiskWorld(auto_advance=False))


class InMemory(MemoryMachine):
    """In memory, with several blocks in flight."""

    make_world: ClassVar[Callable[[], World]] = staticmethod(lambda: MemoryWorld(auto_advance=False, in_flight_max=3))


class InBucket(MemoryMachine):
    """In a bucket."""

    make_world: ClassVar[Callable[[], World]] = staticmethod(lambda: BucketWorld(auto_advance=False))


@pytest.mark.parametrize("machine", [OnDisk, InMemory, InBucket])
def test_no_id_is_stored_twice(machine: type[MemoryMachine]) -> None:
    """A retry is the original's duplicate for ever: from table, run and merged run, after crashes and lost runs."""
    examples = settings().max_examples // 2  # three machines, each with a life of forty steps
    looking = settings(max_examples=examples, stateful_step_count=40, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=looking)


def test_a_tail_that_is_not_recovered_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: a writer that opens with an empty table does not say what the dictionary says."""

    def forget(*arguments: object, **options: object) -> Recovered:
        found = recover(*arguments, **options)
        return found._replace(window=Table()) if isinstance(found.window, Table) else found

    recover: Callable[..., Recovered] = recovery.recover
    monkeypatch.setattr(recovery, "recover", forget)
    assert_noticed(InMemory)


def test_runs_that_are_not_searched_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: a writer that does not look into the runs does not say what the dictionary says."""
    monkeypatch.setattr(Recall, "look", lambda self, _: Looked(self.view.built, None))
    monkeypatch.setattr(Recall, "look_one", lambda self, *_: LookedOne(self.view.built, None))
    assert_noticed(InMemory)
