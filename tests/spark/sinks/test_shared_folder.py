"""Tasks of a cluster that do not see the folder of a sink would write their rows into the void: a run sees that."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.errors import Unsupported
from oncelog.spark.sinks import shared_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Cluster:
    """A context of a cluster."""

    master = "spark://elsewhere:7077"


def test_tasks_that_do_not_see_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to do; nothing is left in the folder; a Spark on this machine is not asked."""
    context: Any = Cluster()
    for blind in (0, 1):
        monkeypatch.setattr(shared_folder, "unseen", lambda _, path, blind=blind: blind * Path(path).exists())
        if blind:
            with pytest.raises(Unsupported, match=r"do not see .*s3a://.*local"):
                shared_folder.check(context, tmp_path / "made")
        else:
            shared_folder.check(context, tmp_path / "made")
    assert list((tmp_path / "made").iterdir()) == []
    context.master = "local[2,3]"
    shared_folder.check(context, tmp_path / "made")


@pytest.mark.soak
@pytest.mark.xdist_group("spark")
def test_tasks_look_for_themselves(tmp_path: Path, spark: SparkSession) -> None:
    """A file that is there is seen by every task, one that is not there by none."""
    (tmp_path / "here").touch()
    assert shared_folder.unseen(spark.sparkContext, str(tmp_path / "here")) == 0
    assert shared_folder.unseen(spark.sparkContext, str(tmp_path / "not")) == 2 * spark.sparkContext.defaultParallelism


def test_where_files_are_staged(tmp_path: Path) -> None:
    """Beside a table on a disk; in a bucket by way of the folder for temporary files, unless Spark writes itself."""
    assert shared_folder.folder_of("out", tmp_path / "out", {}) == tmp_path
    assert shared_folder.folder_of("s3://b/t", None, {}) == Path(tempfile.gettempdir())
    assert shared_folder.folder_of("s3a://b/t", None, {}) is None
    assert shared_folder.folder_of(None, None, {"warehouse": "s3://b/w"}) == Path(tempfile.gettempdir())
    assert shared_folder.folder_of(None, None, {"warehouse": "file:///w"}) == Path("/w")
    assert shared_folder.folder_of(None, None, {}) is None
