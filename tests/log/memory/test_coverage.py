"""How runs come into the manifest: what no longer fits is refused, and leaves nothing behind."""

from __future__ import annotations

import contextlib

import msgspec
import pytest

from oncelog.dedup.runs.entries import Entries
from oncelog.errors import OncelogError
from oncelog.log.memory import coverage
from oncelog.log.memory.building import store_run
from oncelog.log.memory.coverage import Stretch
from oncelog.log.writer import Writer
from tests.log.memory.orders import SETTINGS, check, many, remember, retried
from tests.log.shop import in_memory

pytestmark = pytest.mark.usefixtures("tiny")


def quiet(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a writer build and merge nothing by itself."""
    monkeypatch.setattr(writer._keeper, "_ask_memory", lambda: None)
    monkeypatch.setattr(writer._keeper._memory, "ask", lambda: None)
    writer._keeper._housekeeper.stop()


def frozen(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a writer go by the manifest that it knows now, as if it slept until later."""
    memory = writer._keeper._memory
    known = memory._newest()
    monkeypatch.setattr(memory, "_newest", lambda: known)


@pytest.mark.parametrize("what", ["build", "merge"])
def test_a_run_that_comes_late_is_refused_and_deleted(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """An old writer wakes in the midst of a build or a merge, after the new one did the same: its run is not taken."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    old = log.writer()
    quiet(old, monkeypatch)
    acks = many(old, range(40))
    if what == "merge":
        with monkeypatch.context() as patch:
            patch.setattr("oncelog.log.upkeep.memory_keeper.to_merge", lambda _: None)
            for start in range(40, 72, 8):
                old._keeper._memory.work()
                acks += many(old, range(start, start + 8))
    frozen(old, monkeypatch)
    new = shop.log().writer(takeover="force")
    remember(new)
    before = log._manifest().memory
    assert before
    with contextlib.suppress(OncelogError):
        old._keeper._memory.work()
    assert log._manifest().memory == before
    stored = {key for key in shop.home.list("sealed/") if ".ids" in key or ".times" in key}
    assert stored == {key for run in before for key in run.keys()}, "nothing is left over"  # noqa: SIM118
    assert many(new, range(len(acks))) == retried(acks)
    new.close()
    with contextlib.suppress(OncelogError):
        old.close()
    check(shop.log(), len(acks))


def test_what_no_longer_fits_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that differ, a range that is covered, inputs that are gone, a name below the staging floor."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        quiet(writer, monkeypatch)
        many(writer, range(24))
        manifest, manifests = log._manifest(), log._manifests
        (stretch,) = coverage.stretches(manifests, manifest, ())
        ends = (stretch.first_position, stretch.next_position)
        run = store_run(shop.home, manifest.log_id, "sealed/00000000000000000009-00ff", Entries.none(), *ends)
        taken = coverage.built(manifests, run, stretch)(manifest)
        assert taken.memory == (run,)
        assert coverage.built(manifests, run, stretch)(taken).memory == (run,), "a second time changes nothing"
        other = msgspec.structs.replace(run, key="sealed/00000000000000000009-00aa")
        assert coverage.built(manifests, other, stretch)(taken) is taken, "the range is covered"
        assert coverage.merged(other, [run])(manifest) is manifest, "its input is not there"
        assert coverage.merged(other, [run])(taken).memory == (other,)
        assert set(run.keys()) <= set(coverage.merged(other, [run])(taken).doomed)
        late = msgspec.structs.replace(manifest, staging_floor_us=10)
        assert coverage.built(manifests, run, stretch)(late) is late, "it may be swept"
        moved = msgspec.structs.replace(stretch.segments[0], epoch=99)
        wrong = Stretch(stretch.first_position, (moved, *stretch.segments[1:]))
        assert coverage.built(manifests, run, wrong)(manifest) is manifest, "a segment is another's"
        more = Stretch(stretch.first_position, (*stretch.segments, moved))
        assert coverage.built(manifests, run, more)(manifest) is manifest, "a segment is not there"


def test_only_neighbours_are_merged_and_gaps_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merged run over a gap would claim to hold ids that only the table has."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        quiet(writer, monkeypatch)
        many(writer, range(40))
        manifest, manifests = log._manifest(), log._manifests
        segments = coverage.stretches(manifests, manifest, ())[0].segments
        ranges = [(each.first_position, each.next_position) for each in segments]
        made = [store_run(shop.home, manifest.log_id, f"sealed/{9:020d}-{n}", Entries.none(), *ends)
                for n, ends in enumerate(ranges)]  # fmt: skip
        held = [made[0], made[1], made[3]]
        assert coverage.neighbours(held) == [[made[0], made[1]], [made[3]]]
        found = [(each.first_position, each.next_position) for each in coverage.stretches(manifests, manifest, held)]
        assert found == [ranges[2], *([] if len(ranges) == 4 else [(ranges[4][0], ranges[-1][1])])]
