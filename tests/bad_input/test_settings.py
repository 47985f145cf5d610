"""Settings that are wrong, or differ from the stored ones, are refused by name."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

from oncelog import (
    Database,
    LogSettings,
    ProducerPolicy,
    Window,
    limits,
)
from oncelog.log.log import Log
from tests.bad_input.refusals import in_memory, refused

BAD_SETTINGS: list[tuple[Any, str]] = [
    (LogSettings(idempotence="sometimes"), "idempotence"),  # type: ignore[arg-type]
    (LogSettings(on_conflict="ignore"), "on_conflict"),  # type: ignore[arg-type]
    (LogSettings(window=None), "window"),  # type: ignore[arg-type]
    (LogSettings(window=5), "window"),  # type: ignore[arg-type]
    (LogSettings(window={"max_key": 5}), "window"),  # type: ignore[arg-type]
    *[
        (LogSettings(window=Window(**{name: value})), f"window.{name}")  # type: ignore[arg-type]
        for name, values in {
            "duration_s": (0, -1.0, math.nan, math.inf, limits.WINDOW_DURATION_S_MAX + 1, "600"),
            "max_keys": (0, -1, limits.WINDOW_KEYS_MAX + 1, 1.5, True, "5"),
            "refresh_on_hit": (1, "yes", None, True),  # without bounds there is nothing to refresh
        }.items()
        for value in values
    ],
    *[
        (LogSettings(**{name: value}), name)  # type: ignore[arg-type]
        for name, values in {
            "segment_bytes": (0, limits.SEGMENT_BYTES_MIN - 1, limits.SEGMENT_BYTES_MAX + 1, 1e6, "1", None),
            "segment_age_s": (0, -1, math.nan, math.inf, "1"),
            "block_bytes": (0, limits.KIB - 1, limits.BLOCK_BYTES_MAX + 1, None),
            "block_records": (0, limits.BLOCK_RECORDS_MAX + 1, 1.5),
            "commit_interval_s": (-0.1, 61, "1"),
            "snapshot_interval_s": (0, -1, math.nan, math.inf, None),
            "snapshot_records": (0, limits.WINDOW_KEYS_MAX + 1, None),
            "retention_s": (0, -1, math.nan, math.inf),
            "retention_bytes": (-1, 2**63, 1.5),
            "pending_bytes": (0, limits.PENDING_BYTES_MAX + 1, None),
            "seal": (1, "yes", None),
            "pending_records": (0, limits.PENDING_RECORDS_MAX + 1, None),
        }.items()
        for value in values
    ],
    (LogSettings(id_scope="tenant"), "id_scope"),  # type: ignore[arg-type]
    (LogSettings(seal="never"), "'auto' or 'off'"),  # type: ignore[arg-type]
    (LogSettings(idempotence=["off"]), "'explicit' or 'content' or 'off'"),  # type: ignore[arg-type]
    (LogSettings(producers=None), "producers"),  # type: ignore[arg-type]
    (LogSettings(producers={"enabled": True}), "producers"),  # type: ignore[arg-type]
    *[
        (LogSettings(producers=ProducerPolicy(**{name: value})), f"producers.{name}")  # type: ignore[arg-type]
        for name, values in {
            "enabled": (1, "yes"),
            "inactive_s": (0, -1.0, math.nan, math.inf, "600"),
            "max_producers": (0, -1, limits.PRODUCERS_MAX + 1, 1.5),
        }.items()
        for value in values
    ],
    (Window(), "LogSettings"),
    ({}, "LogSettings"),
    ({"window": {"max_keys": 5}}, "LogSettings"),
    ("explicit", "LogSettings"),
    (5, "LogSettings"),
]


@in_memory
@pytest.mark.parametrize(("settings", "word"), BAD_SETTINGS, ids=[str(n) for n in range(len(BAD_SETTINGS))])
def test_bad_settings(db: Database, log: Log, settings: Any, word: str) -> None:
    """A setting that is wrong is named, where it comes in: neither stored, nor silently replaced by another."""
    refused(lambda: db.log("new", settings, create=True), word)
    refused(lambda: db.log("orders", settings), word)
    refused(lambda: log.configure(settings), word)
    assert db.logs() == ["orders"]
    assert log.settings == LogSettings()


def test_every_setting_has_a_bad_value_here() -> None:
    """A setting that is added is tried with bad values too."""
    tried = {word.removeprefix("window.").removeprefix("producers.") for _, word in BAD_SETTINGS}
    kinds = (LogSettings, Window, ProducerPolicy)
    assert tried >= {name for kind in kinds for name in kind.__struct_fields__}


def test_opening_with_other_settings_names_the_difference(db: Database, log: Log) -> None:
    """Who opens a log with other settings than it has learns which, and that nothing was changed."""
    other = LogSettings(window=Window(max_keys=5), block_records=7)
    for create in (False, True):
        refused(
            partial(db.log, "orders", other, create=create),
            "window.max_keys: stored None, given 5",
            "block_records: stored 10000, given 7",
            "configure()",
        )
    assert log.settings == LogSettings()
    db.log("orders", LogSettings())
