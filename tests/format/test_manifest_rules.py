"""What a manifest names is what code takes it for, no matter who wrote the manifest."""

from __future__ import annotations

import msgspec
import pytest

from oncelog import LogSettings
from oncelog.errors import CorruptionError
from oncelog.format import manifest
from oncelog.format.manifest_rules import check_runs
from oncelog.format.runs.run import Digest, Run, RunPart

PART = RunPart(10, 4096, 8192, 1)


def run_of(first: int, end: int, parts: int = 1) -> Run:
    """Return a run of a range, with so many parts of ten ids."""
    return Run("sealed/1-a", (PART,) * parts, first, end, 10 * parts, 8192, Digest(1, 2))


@pytest.mark.parametrize(
    "runs",
    [
        [run_of(0, 10, parts=0)],
        [run_of(0, 10, parts=3)],
        [run_of(10, 0)],
        [run_of(0, 10), run_of(9, 20)],
        [run_of(10, 20), run_of(0, 10)],
        [msgspec.structs.replace(run_of(0, 10), ids=11)],
    ],
)
def test_runs_that_contradict_each_other_are_refused(runs: list[Run]) -> None:
    """No parts, three parts, a range that ends before it begins, ranges that overlap, ids that do not add up."""
    with pytest.raises(CorruptionError, match="does not make sense"):
        check_runs(runs, "manifest")
    check_runs([run_of(0, 10), run_of(10, 20, parts=4), run_of(25, 25)], "manifest")


@pytest.mark.parametrize(
    "change",
    [
        {"key": "../elsewhere"},
        {"first_position": -1},
        {"ids": -1},
        {"kind": -1},
        {"parts": (RunPart(-1, 0, 0, 0),)},
        {"digest": Digest(-1, 0)},
    ],
)
def test_numbers_and_names_are_checked_while_a_run_is_decoded(change: dict[str, object]) -> None:
    """A negative size would read backwards, a path would leave the log's folder."""
    forged = msgspec.msgpack.encode(msgspec.structs.replace(run_of(0, 10), **change))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(forged, type=Run)


SEGMENT = manifest.Segment(1, 10, 10, 1, 64, 1, 64, 1, 2, 3, 4)
SOUND = manifest.Manifest(
    name="orders", log_id="6f1d0c52a3e94d0bb0f3a7f2c8d5e611", secret=bytes(32), settings=LogSettings(), created_us=1,
    segments=(SEGMENT,), next_segment=2, next_position=20,
)  # fmt: skip


@pytest.mark.parametrize("change", [{"next_segment": 1}, {"next_segment": 0}, {"log_id": "x" * 300}])
def test_a_body_whose_numbers_or_names_lead_nowhere_is_damage(change: dict[str, object]) -> None:
    """A next segment that is there already kept a writer trying for ever; a long id is no name of a folder."""
    manifest.decode_body(manifest.encode_body(SOUND), "manifest")
    with pytest.raises(CorruptionError):
        manifest.decode_body(manifest.encode_body(msgspec.structs.replace(SOUND, **change)), "manifest")
