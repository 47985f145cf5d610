"""Frames that a spec is made into: no id is taken that could be the id of another row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.errors import InvalidArgument
from oncelog.spark.pipeline.rows import frames
from oncelog.spark.pipeline.spec import IdentitySpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("pipeline")


@pytest.mark.parametrize("kind", ["DOUBLE", "FLOAT"])
def test_id_that_is_not_exact_is_refused(kind: str, spark: SparkSession) -> None:
    """Two ids of many digits are one DOUBLE: the second row was taken for a duplicate, and lost. Spark takes DOUBLE for
    the type of a column where one row has a point.
    """
    found = spark.createDataFrame([], f"`a b` {kind}, n LONG, d DECIMAL(20,1)")
    for identity in (IdentitySpec(column="a b"), IdentitySpec(expression="`a b` + 1")):
        given: Any = SimpleNamespace(identity=identity)
        with pytest.raises(InvalidArgument, match=r"identity\.(column|expression): `?a b.* DOUBLE or FLOAT"):
            frames._check_identity(given, found)
    for identity in (IdentitySpec(column="n"), IdentitySpec(column="d"), IdentitySpec(content=True)):
        given = SimpleNamespace(identity=identity)
        frames._check_identity(given, found)
