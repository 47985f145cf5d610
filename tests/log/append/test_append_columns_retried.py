"""Retries that come among many: answered as columns, each with the answer its original got."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

import oncelog
from oncelog import LogSettings, Record, Window
from oncelog.errors import AppendErrors, IdConflict
from oncelog.types import Ack

SMALL = LogSettings(segment_bytes=65536, seal="off")


def records(first: int, last: int) -> list[Record]:
    """Return records by their numbers."""
    return [Record(b"%01000d" % number, id=f"id-{number}") for number in range(first, last)]


def original(ack: Ack) -> tuple[object, ...]:
    """Return what an ack has in common with the ack of a retry."""
    return ack.position, ack.segment, ack.entry, ack.timestamp


@pytest.fixture(params=["numpy", "numba"])
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the loops of one kind do the work: the compiled ones decide new ids in one walk."""
    if request.param == "numba":
        pytest.importorskip("numba")
        from tests.dedup.test_compiled import Chosen

        Chosen(monkeypatch).by("numba")


@pytest.mark.parametrize("unbounded", [False, True])
@pytest.mark.usefixtures("chosen")
def test_columns_are_answered_alike_whoever_decides(*, unbounded: bool) -> None:
    """New, repeated within a call, known, in conflict, without an id: in turns."""
    window = Window() if unbounded else Window(max_keys=100_000)
    settings = LogSettings(window=window, on_conflict="original", segment_bytes=65536, seal="off")

    def rows(ids: Sequence[str | None], mark: str = "") -> pa.Table:
        return pa.table({"id": pa.array(ids, pa.string()), "value": [f"{id}{mark}" for id in ids]})

    names = [f"id-{number}" for number in range(3000)]
    with oncelog.connect("memory://") as db, db.log("orders", settings, create=True).writer() as writer:
        assert writer.append_arrow(rows(names[:1000])).positions.tolist() == list(range(1000))
        again = writer.append_arrow(rows([*names[1000:2000], *names[900:1100]]))
        assert again.positions.tolist() == [*range(1000, 2000), *range(900, 1100)]
        assert again.duplicates.tolist() == [False] * 1000 + [True] * 200
        other = writer.append_arrow(rows([names[2000], names[0]], "!"))
        assert (other.positions.tolist(), other.conflicts.tolist()) == ([2000, 0], [False, True])
        some = writer.append_arrow(rows([None, *names[2001:2010], None]))
        assert some.positions.tolist() == list(range(2001, 2012))
        assert writer.append_arrow(rows(names[2001:2010])).positions.tolist() == list(range(2002, 2011))
        assert not writer.append_arrow(rows(names[2010:])).duplicates.any()
        assert writer.append_arrow(rows(names)).duplicates.all()
        assert writer.last_position == 3001


@pytest.mark.parametrize("way", ["append_many", "submit"])
def test_a_retry_has_its_original_s_answer_whatever_segment_that_is_in(way: str) -> None:
    """Old and new, of segments long closed and of the one that is open, in one call: places and times stay."""
    with oncelog.connect("memory://") as db, db.log("orders", SMALL, create=True).writer() as writer:
        first = [ack for low in range(0, 400, 40) for ack in writer.append_many(records(low, low + 40))]
        assert len({ack.segment for ack in first}) > 3
        again = records(0, 500)
        if way == "submit":
            acks = [future.result() for future in [writer.submit(each.value, id=each.id) for each in again]]
        else:
            acks = writer.append_many(again)
    assert [original(ack) for ack in acks[:400]] == [original(ack) for ack in first]
    assert [ack.duplicate for ack in acks] == [True] * 400 + [False] * 100
    assert [ack.position for ack in acks[400:]] == list(range(400, 500))


def test_a_conflict_among_many_is_the_only_one_refused() -> None:
    """One bad row gets its own error; its neighbours, old and new, have their acks."""
    with oncelog.connect("memory://") as db, db.log("orders", create=True).writer() as writer:
        writer.append_many(records(0, 40))
        mixed = [*records(20, 60), Record(b"other", id="id-7")]
        with pytest.raises(AppendErrors) as caught:
            writer.append_many(mixed)
        futures = [writer.submit(each.value, id=each.id) for each in mixed]
        errors: list[Ack | BaseException] = [future.exception() or future.result() for future in futures]
    for results in (caught.value.results, errors):
        assert isinstance(results[40], IdConflict)
        assert results[40].position == 7
        assert [ack.position for ack in results[:40] if isinstance(ack, Ack)] == list(range(20, 60))
