"""A schema widens by what leaves earlier records as they are, each time with a version; all else is rescued."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from oncelog.spark.pipeline.checks import check
from oncelog.spark.pipeline.rows import frames, widening
from tests.spark.pipeline.shop import Shop, orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("pipeline")


def schema(**kinds: str | dict[str, str]) -> StructType:
    """Return a schema of columns, each with the name of its type, or with the fields of a struct."""

    def fields(given: dict[str, str | dict[str, str]]) -> list[dict[str, object]]:
        return [
            {
                "name": name,
                "type": kind if isinstance(kind, str) else {"type": "struct", "fields": fields(dict(kind))},
                "nullable": True,
                "metadata": {},
            }
            for name, kind in given.items()
        ]

    return StructType.fromJson({"type": "struct", "fields": fields(kinds)})


def test_what_widens_and_what_does_not() -> None:
    """New columns at any depth, and larger integers; a fraction or a text in place of a number would change retries."""
    known = schema(id="string", n="integer", m="long", x="long", s={"a": "short"})
    found = schema(x="double", n="long", m="integer", s={"a": "integer", "b": "string"}, note="string", id="long")
    whole, changes = widening.merged(known, found)
    assert whole.simpleString() == "struct<id:string,n:bigint,m:bigint,x:bigint,s:struct<a:int,b:string>,note:string>"
    assert changes == ["n int becomes bigint", "s.a smallint becomes int", "s.b string is new", "note string is new"]
    assert widening.merged(whole, found)[1] == []


def test_versions_are_kept(tmp_path: Path) -> None:
    """Each change is a version with the whole schema; what is no change is none."""
    first, second = schema(id="string"), schema(id="string", n="long")
    assert widening.keep(tmp_path, None, first, 1) == []
    assert widening.keep(tmp_path, first, first, 2) == []
    assert widening.keep(tmp_path, first, second, 3) == ["n bigint is new"]
    noted = [
        msgspec.json.decode(line, type=widening.SchemaVersion)
        for line in (tmp_path / "schemas.jsonl").read_bytes().splitlines()
    ]
    assert [(one.version, one.at_us, one.changes) for one in noted] == [(1, 1, ()), (2, 3, ("n bigint is new",))]
    kept = StructType.fromJson(msgspec.json.decode((tmp_path / frames.SCHEMA_FILE).read_bytes()))
    assert kept == second == StructType.fromJson(noted[1].schema)


def test_columns_of_parquet_and_csv_files(shop: Shop) -> None:
    """Footers and headers of the files that wait; a file that cannot be read adds nothing, and stops nothing."""
    folder = shop.folder / "incoming"
    pq.write_table(pa.table({"id": ["a"], "n": pa.array([1], pa.int32())}), folder / "a.parquet")
    pq.write_table(pa.table({"n": [1], "note": ["x"]}), folder / "b.parquet")
    (folder / "c.parquet").write_bytes(b"no parquet")
    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    assert widening._footers(files).simpleString() == "struct<id:string,n:bigint,note:string>"
    (folder / "a.csv").write_bytes(b'\xef\xbb\xbfid;"a;b"\r\n1;2\r\n')
    (folder / "b.csv").write_bytes(b"id;new \n1;2\n")
    (folder / "c.csv").write_bytes(b"\xff\xfe\n")
    shop.change(
        ('format = "json"', 'format = "csv"'),
        ("options = { maxFilesPerTrigger = 1 }", 'options = { header = true, sep = ";" }'),
    )
    given, _ = check.check(shop.spec)
    assert given is not None
    found = widening._headers(given, [str(path) for path in sorted(folder.glob("*.csv"))])
    assert found.fieldNames() == ["id", "a;b", "new"]
    (folder / "d.csv").write_bytes("id;größe\n".encode("latin-1"))
    shop.change(("header = true", 'header = true, encoding = "latin-1"'))
    given, _ = check.check(shop.spec)
    assert given is not None
    assert widening._headers(given, [str(folder / "d.csv")]).fieldNames() == ["id", "größe"]


@pytest.mark.soak
def test_new_columns_come_with_the_next_run(shop: Shop, spark: SparkSession) -> None:
    """A field that later files add is a column from the run that finds it on; retries of earlier rows are the same."""
    shop.change(
        ('path = "incoming"', 'path = "incoming"\nschema_changes = "widen"'),
        ('schema = "order_id STRING, amount LONG, attempt LONG"\n', ""),
        ("SELECT order_id, amount FROM source", "SELECT * FROM source"),
    )
    shop.send(*orders(0, 2))
    first = shop.run(spark)
    assert (first.stored, first.widened) == (2, ())
    shop.send(*orders(0, 2))
    more = shop.folder / "incoming" / "more.json"
    more.write_text('{"order_id":"o2","amount":20,"note":"x"}\n{"order_id":"o3","amount":"12 EUR"}\n')
    second = shop.run(spark)
    assert second.widened == ("note string is new",)
    assert (second.stored, second.duplicates, second.rescued) == (4, 2, 1)
    stored = dict(shop.stored())
    assert stored["o2"]["note"] == "x"
    assert stored["o3"]["_rescued"] == '{"amount":"12 EUR"}'
    assert [row.get("note") for row in shop.sent_on() if row["order_id"] == "o2"] == ["x"]
    noted = next(shop.folder.rglob(widening.VERSIONS_FILE)).read_bytes().splitlines()
    assert [msgspec.json.decode(line)["version"] for line in noted] == [1, 2]
    assert shop.run(spark).widened == ()
