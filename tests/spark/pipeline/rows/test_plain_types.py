"""A schema from a file of others brings no code: neither in the footer of a data file, nor in a checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog.errors import CorruptionError, InvalidArgument
from oncelog.spark.pipeline.checks import check
from oncelog.spark.pipeline.rows import frames, plain_types, taken_files
from oncelog.spark.pipeline.spec import SourceSpec, Spec
from oncelog.spark.reading.reader import FoundParam
from tests.spark.pipeline.shop import Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("pipeline")


def spec_of(folder: Path) -> Spec:
    """Return the spec of a new shop."""
    given, _ = check.check(Shop(folder).spec)
    assert given is not None
    return given


MODULE = "module_of_a_file"


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that is made when a module is imported, which is where Python looks for modules."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return tmp_path / "marker"


def hostile_schema() -> bytes:
    """Return a schema as Spark writes it, with a type whose class is in the module."""
    kind = {"type": "udt", "pyClass": f"{MODULE}.Kind", "serializedClass": "", "sqlType": "string"}
    inner = {"type": "array", "elementType": kind, "containsNull": True}
    fields = [{"name": "id", "type": inner, "nullable": True, "metadata": {}}]
    return msgspec.json.encode({"type": "struct", "fields": fields})


@pytest.mark.parametrize(("changes", "streaming"), [("rescue", False), ("rescue", True), ("widen", False)])
def test_the_footer_of_a_file_runs_nothing(
    tmp_path: Path,
    marker: Path,
    spark: SparkSession,
    changes: Any,
    streaming: bool,  # noqa: FBT001
) -> None:
    """PySpark imports the module that the footer of a Parquet file names, as soon as it is asked for the columns."""
    folder = tmp_path / "in"
    folder.mkdir()
    rows = pa.table({"id": pa.array([["a"]])})
    rows = rows.replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": hostile_schema()})
    pq.write_table(rows, folder / "a.parquet")
    given = spec_of(tmp_path)
    source = SourceSpec(format="parquet", path=str(folder), streaming=streaming, schema_changes=changes)
    given = msgspec.structs.replace(given, source=source)
    with pytest.raises(InvalidArgument, match="names a module to run"):
        frames.source(spark, given, spark.sparkContext.accumulator({}, FoundParam()))
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"7", b'{"fields": [7]}', b"\xff", b"[" * 5000, None])
def test_a_forged_schema_of_a_checkpoint_is_damage(tmp_path: Path, marker: Path, content: bytes | None) -> None:
    """A checkpoint is a folder that others may be able to write."""
    path = tmp_path / "schema.json"
    path.write_bytes(hostile_schema() if content is None else content)
    with pytest.raises(CorruptionError, match=r"schema\.json: not the schema"):
        plain_types.kept(path)
    assert not marker.exists()


@pytest.mark.parametrize(("note", "content"), [("1x", "v1\n"), ("1", 'v1\n{"path":7}\n'), ("1", "v1\n" + "[" * 5000)])
def test_forged_notes_of_a_checkpoint_are_damage(tmp_path: Path, note: str, content: str) -> None:
    """Status reads them: one that is none is named, and is no traceback."""
    given = spec_of(tmp_path)
    notes = Path(given.checkpoint) / "into-log" / "sources" / "0"
    notes.mkdir(parents=True)
    (notes / "0").write_text('v1\n{"path":"file:///a","timestamp":1,"batchId":0}\n')
    found = taken_files.files(given)
    assert found is not None
    assert found.taken == 1
    (notes / note).write_text(content)
    with pytest.raises(CorruptionError, match="not a note"):
        taken_files.files(given)
