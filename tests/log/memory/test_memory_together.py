"""Look-ups, building, merging and closing at the same time, and writers that come after each other."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import msgspec
import pytest

from oncelog.dedup.table import Table
from oncelog.errors import (
    WriterFenced,
)
from oncelog.log.memory import merging
from oncelog.log.memory.recall import Recall
from oncelog.log.memory.run_set import RunSet
from oncelog.log.stored.adopted_ids import Adopted
from oncelog.log.upkeep import memory_keeper as upkeep_memory
from oncelog.log.upkeep.background import Housekeeper
from oncelog.log.writer import Writer
from oncelog.settings import Window
from tests.log.memory.orders import SETTINGS, append, check, labelled, many, record, remember, retried, submit, table
from tests.log.shop import in_memory

pytestmark = pytest.mark.usefixtures("tiny")


def test_runs_are_never_read_with_the_lock_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk, or a bucket, must not stop those whose ids are in memory: no look-up is made under the lock."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = []
        for number in range(60):
            acks += append(writer, [number])
            shop.clock.advance(1)
        remember(writer)
        looked: list[str] = []
        for name in ("find_any", "find_one", "timestamps_of"):
            ask = getattr(RunSet, name)

            def noted(self: RunSet, *given: object, ask: Any = ask, name: str = name) -> object:
                assert not writer._committer.lock.locked(), name
                looked.append(name)
                return ask(self, *given)

            monkeypatch.setattr(RunSet, name, noted)
        for way in (append, many, submit, labelled):
            assert way(writer, range(60)) == retried(acks)
        writer.append_batch([record(100), record(101)])
        staged = log.stage([table(range(58, 70))])
        assert writer.ingest([staged]).duplicates == 2
        assert set(looked) == {"find_any", "find_one", "timestamps_of"}


def test_an_old_writer_that_publishes_late_changes_nothing_for_the_new_one() -> None:
    """Taken over in the midst of a build or a merge: what the old writer publishes is true, or refused."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    old = log.writer()
    acks = many(old, range(60))
    old._keeper._housekeeper.stop()
    late = shop.log()
    new = late.writer(takeover="force")
    acks += many(new, range(60, 70))
    with contextlib.suppress(WriterFenced):
        old._keeper._memory.work()
    assert many(new, range(70)) == retried(acks)
    remember(new)
    assert many(new, range(70)) == retried(acks)
    new.close()
    with contextlib.suppress(WriterFenced):
        old.close()
    check(shop.log(), 70)


@pytest.mark.parametrize("step", ["merge", "show"])
def test_a_keeper_that_is_fenced_says_so(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The writer that took the log has merged its runs, and deleted what the old one was about to read: that is no loss
    of data, and not to be reported as one.
    """
    shop = in_memory()
    old = shop.log(SETTINGS).writer()
    keeper = old._keeper._memory
    monkeypatch.setattr(old._keeper._housekeeper, "ask", lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(upkeep_memory, "to_merge", lambda _: None)
        acks = []
        for start in range(0, 48, 8):
            acks += many(old, range(start, start + 8))
            keeper.work()
    acks += many(old, range(48, 56))
    taken: list[Writer] = []
    begun = threading.Event()  # the new writer merges too, in another thread

    def late(work: Any) -> Any:
        """Have the log taken before something is done, where that needs a run which is not open yet."""

        def done(*given: Any) -> Any:
            found: Any = work(*given) if step == "show" else None
            if not begun.is_set() and (step == "merge" or len(found) > len(keeper._recall.view.runs.runs)):
                begun.set()
                taken.append(shop.log().writer(takeover="force"))
                many(taken[0], range(56, 80))
                remember(taken[0])
            return work(*given) if step == "merge" else found

        return done

    if step == "merge":
        monkeypatch.setattr(upkeep_memory, "merge_runs", late(merging.merge_runs))
    else:
        monkeypatch.setattr(keeper, "_shown", late(keeper._shown))
    with pytest.raises(WriterFenced):
        keeper.work()
    assert many(taken[0], range(56)) == retried(acks)
    taken[0].close()
    with contextlib.suppress(WriterFenced):
        old.close()


def test_a_writer_that_is_closed_does_not_wait_for_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge of many ids takes long: it ends with the slice it is at, leaves nothing, and the next writer makes it."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    monkeypatch.setattr(merging, "SLICE_IDS", 4)
    writer = log.writer()
    keeper = writer._keeper._memory
    with monkeypatch.context() as patch:
        patch.setattr(writer._keeper._housekeeper, "ask", lambda *_: None)
        acks = many(writer, range(12))
        keeper._build()
        acks += many(writer, range(12, 60))
        keeper._build()
    monkeypatch.setattr(upkeep_memory, "to_merge", lambda memory: list(memory) if len(memory) > 1 else None)
    taken: list[int] = []
    begun = threading.Event()
    take = merging._MergedEntries.take

    def closed_meanwhile(stream: Any, bound: int) -> Any:
        if not taken:
            closing.start()
            with writer._committer._changed:
                writer._committer._changed.wait_for(lambda: writer._committer.is_leaving, 60)
            begun.set()
        taken.append(bound)
        return take(stream, bound)

    closing = threading.Thread(target=writer.close)
    monkeypatch.setattr(merging._MergedEntries, "take", closed_meanwhile)
    before = log._manifest().memory
    assert len(before) > 1
    writer._keeper._ask_memory()
    assert begun.wait(60)
    closing.join()
    assert len(taken) == 1, "the merge went on"
    assert log._manifest().memory == before
    used = {key for run in before for key in run.keys()}  # noqa: SIM118
    assert {key for key in shop.home.list("sealed/") if key.endswith(".ids")} == {
        key for key in used if key.endswith(".ids")
    }
    monkeypatch.setattr(merging._MergedEntries, "take", take)
    with shop.log().writer() as writer:
        assert many(writer, range(60)) == retried(acks)
        remember(writer)
        assert len(log._manifest().memory) == 1
        assert many(writer, range(60)) == retried(acks)
    check(log, 60)


def test_an_id_that_moves_into_a_run_between_two_looks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked up in the runs before it was there, and in the table when it was there no more: looked up again."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    for way in (append, many, submit, labelled):
        with log.writer() as writer:
            writer._keeper._housekeeper.stop()
            start = writer.last_position + 1
            acks = many(writer, range(start, start + 20))
            waiting = [writer]

            def then_build(looked: object, waiting: list[Writer] = waiting) -> object:
                if waiting:
                    remember(waiting.pop())
                return looked

            with monkeypatch.context() as patch:
                for name in ("look", "look_one"):
                    asked = getattr(Recall, name)
                    patch.setattr(Recall, name, lambda self, *keys, asked=asked: then_build(asked(self, *keys)))
                assert way(writer, range(start, start + 20)) == retried(acks), way.__name__
    check(log, 80)


@pytest.mark.parametrize("bounded", [False, True])
def test_ids_that_move_into_a_run_are_known_though_that_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, *, bounded: bool
) -> None:
    """Ctrl-C in a look-up that finds newer runs, when ids have left memory: the writer goes on, and stores none of
    them again.
    """
    shop = in_memory()
    log = shop.log(
        msgspec.structs.replace(SETTINGS, window=Window(duration_s=600, max_keys=8) if bounded else Window())
    )
    monkeypatch.setattr(Housekeeper, "ask", lambda *_: None)
    kind: Any = Adopted if bounded else Table
    name = "drop" if bounded else "drop_before"
    drop = getattr(kind, name)

    def interrupted(*given: Any) -> None:
        drop(*given)
        raise KeyboardInterrupt

    with log.writer() as writer:
        if bounded:
            for first in range(0, 6, 2):
                writer.ingest([log.stage([table(range(first, first + 2))])])
        else:
            many(writer, range(60))
        with monkeypatch.context() as patched:
            patched.setattr(kind, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer._keeper._memory._build()
        assert log._manifest().memory
        assert all(ack.duplicate for ack in many(writer, range(6 if bounded else 60)))


def test_a_run_that_an_adoption_shows_is_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are adopted after the keeper's run is in the manifest, and before look-ups see that: both stay known."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        monkeypatch.setattr(writer._keeper._housekeeper, "ask", lambda *_: None)
        acks = many(writer, range(20))
        opened, left = RunSet.open, [True]

        def then_adopt(*given: Any) -> RunSet:
            found = opened(*given)
            if left:
                left.pop()
                assert writer.ingest([log.stage([table(range(20, 30))])]).records == 10
            return found

        keeper = writer._keeper._memory
        with monkeypatch.context() as patch:
            patch.setattr(RunSet, "open", then_adopt)
            assert keeper._build()
        assert not left
        assert writer.ingest([log.stage([table(range(20, 30))])]).records == 0
        assert many(writer, range(20)) == retried(acks)
        assert all(ack.duplicate for ack in many(writer, range(30)))
    check(log, 30)
