"""Frames that a spec is made into: no id is taken that could be the id of another row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.spark.pipeline.rows import frames
from oncelog.spark.pipeline.spec import IdentitySpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("pipeline")


@pytest.mark.parametrize(
    ("kind", "id", "expected"),
    [
        ("DOUBLE", 2.0**53, False),
        ("DOUBLE", -(2.0**60), False),
        ("DOUBLE", float("nan"), False),
        ("DOUBLE", 2.0**53 - 1, True),
        ("DOUBLE", 12.5, True),
        ("FLOAT", 2.0**24, False),
        ("FLOAT", 7.0, True),
        ("LONG", 2**62 + 1, True),
    ],
)
def test_id_that_may_be_another_one_too_is_rejected(
    kind: str, id: float, *, expected: bool, spark: SparkSession
) -> None:
    """Two large ids are one DOUBLE: the second row was taken for a duplicate, and lost. Spark takes DOUBLE for the type
    of a column where one row has a point.
    """
    found = spark.createDataFrame([(id,)], f"`a b` {kind}")
    columns = SimpleNamespace(stream=None, type=None, tenant=None)
    for identity in (IdentitySpec(column="a b"), IdentitySpec(expression="`a b` -- the same")):
        given: Any = SimpleNamespace(
            identity=identity,
            log=SimpleNamespace(value="json", columns=columns),
            source=SimpleNamespace(lineage=False),
        )
        [row] = frames.records(given, found, 2).collect()
        assert (row["reason"] is None) is expected, row["reason"]
