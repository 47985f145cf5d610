"""A table that is full lets go of ids that are in runs, whoever put them there: else appends would wait for ever."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog import limits
from oncelog.errors import Unavailable
from oncelog.log.stored.manifests import Manifests
from oncelog.log.upkeep.background import Housekeeper
from oncelog.log.writer import Writer
from tests.log.memory.conftest import shop, tiny
from tests.log.memory.orders import SETTINGS, check, many, record, remember, retried, runs
from tests.log.shop import Shop

__all__ = ["shop", "tiny"]

pytestmark = pytest.mark.usefixtures("tiny", "_quiet")


@pytest.fixture
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs be built only when a test says so, and have little room in the table."""
    monkeypatch.setattr(Housekeeper, "ask", lambda *_: None)
    monkeypatch.setattr(limits, "MEMORY_TABLE_IDS_MAX", 16)


def is_behind(writer: Writer) -> bool:
    """Tell whether appends wait for ids to get into runs."""
    return writer._committer.core.behind


def test_appends_go_on_when_another_process_put_the_ids_into_runs(shop: Shop) -> None:
    """``oncelog rebuild`` beside a writer whose table is full leaves nothing to build: what is covered must go."""
    with shop.log(SETTINGS).writer() as writer:
        acks = many(writer, range(20))
        assert is_behind(writer)
        shop.log().rebuild()
        assert runs(shop.log()) == [(0, 16)]
        remember(writer)
        assert not is_behind(writer)
        assert many(writer, range(20)) == retried(acks)
        acks += many(writer, range(20, 24))
    check(shop.log(), 24)


def test_appends_go_on_when_the_answer_to_a_run_was_lost(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest names the run, and the next look shows it: the table must not keep its ids for that."""
    update = Manifests.update

    def lost(*given: Any) -> None:
        update(*given)
        message = "the answer was lost"
        raise Unavailable(message)

    with shop.log(SETTINGS).writer() as writer:
        acks = many(writer, range(20))
        assert is_behind(writer)
        with monkeypatch.context() as patch:
            patch.setattr(Manifests, "update", lost)
            with pytest.raises(Unavailable):
                remember(writer)
        remember(writer)
        assert not is_behind(writer)
        assert many(writer, range(20)) == retried(acks)
        acks += many(writer, range(20, 24))
    check(shop.log(), 24)


def test_appends_go_on_when_the_open_segment_is_larger_than_the_table_should_be(shop: Shop) -> None:
    """It is closed by the next append. If that waited until its ids were in a run, both would wait for ever."""
    with shop.log(SETTINGS).writer() as writer:
        acks = writer.append_many([record(number) for number in range(40)])
        remember(writer)
        assert not runs(shop.log())
        acks += many(writer, range(40, 44))
        remember(writer)
        assert runs(shop.log()) == [(0, 40)]
        assert many(writer, range(44)) == retried(acks)
    check(shop.log(), 44)
