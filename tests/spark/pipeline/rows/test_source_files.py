"""Every row of a nasty file is stored, rescued or rejected, with its place; none is lost, altered or invented."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq
import pytest

import oncelog
from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument, OncelogError
from oncelog.spark.pipeline import rejects
from oncelog.spark.pipeline.checks import check, check_with_spark
from oncelog.spark.pipeline.pipeline import Outcome, Pipeline
from oncelog.spark.pipeline.rows import frames, source_files
from oncelog.spark.pipeline.spec import SourceSpec
from oncelog.spark.reading import bytes_of
from oncelog.spark.reading.reader import FoundParam
from tests.spark.jobs import event_log
from tests.spark.pipeline import corpus
from tests.spark.pipeline.corpus import Case
from tests.spark.pipeline.shop import Shop

SECRET = "hunter2-marked"

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncelog.spark.pipeline.spec import Spec

pytestmark = pytest.mark.xdist_group("pipeline")
SPEC = """\
name = "nasty"
[source]
format = "{kind}"
path = "in"
schema = "{schema}"
{more}
[identity]
column = "id"
[log]
url = "data"
name = "rows"
"""
SCHEMAS = {"json": corpus.JSON_SCHEMA, "csv": corpus.CSV_SCHEMA, "parquet": corpus.PARQUET_SCHEMA}


def made(folder: Path, kind: str, more: str = "") -> Spec:
    """Return a pipeline over the files in a folder."""
    (folder / "in").mkdir(exist_ok=True)
    header = "options = { header = true }" if kind == "csv" else ""
    (folder / "spec.toml").write_text(SPEC.format(kind=kind, schema=SCHEMAS[kind], more=more + "\n" + header))
    given, found = check.check(folder / "spec.toml")
    assert given is not None, found
    assert [one for one in found if one.severity == "error"] == []
    return given


def run(given: Spec, folder: Path, spark: SparkSession) -> Outcome:
    """Run a pipeline until all there is has gone through."""
    outcome = Pipeline(given, folder, SYSTEM).run(lambda _: None, spark=spark)
    sums = outcome.stored + outcome.duplicates + outcome.conflicts + outcome.rejected + outcome.left_out
    assert (outcome.attempts, outcome.missing) == (sums, 0), "the account is not even"
    return outcome


def stored(given: Spec) -> dict[str, dict[str, Any]]:
    """Return the records of the log by their ids."""
    with oncelog.connect(given.log.url) as db:
        return {entry.id or "": msgspec.json.decode(entry.value) for entry in db.log(given.log.name).read()}


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_corpus(kind: str, tmp_path: Path, spark: SparkSession) -> None:
    """All nasty files of a format in one folder: what is stored, rescued and rejected of each is as the page says.

    Each record has its file, line and batch. The same rows in another file are duplicates.
    """
    given = made(tmp_path, kind, "lineage = true")
    for case in corpus.ALL[kind]:
        (tmp_path / "in" / case.name).write_bytes(case.content)
    outcome = run(given, tmp_path, spark)
    found = stored(given)
    aside = list(rejects.rejected(given))
    assert outcome.stored == len(found)
    assert outcome.rejected == len(aside)
    wrong = [problem for case in corpus.ALL[kind] for problem in _compared(case, found, aside)]
    assert wrong == []
    known = {id for case in corpus.ALL[kind] for id in case.stored}
    assert [id for id in found if id not in known and not id.startswith("cutmany-")] == []
    assert _misplaced(given, {case.name: case for case in corpus.ALL[kind]}) == []
    (tmp_path / "in" / f"copy.{kind}").write_bytes(corpus.ALL[kind][0].content)
    again = run(given, tmp_path, spark)
    assert (again.rows, again.duplicates) == (2, outcome.duplicates + 2)
    assert (again.stored, again.conflicts, again.rejected) == (outcome.stored, outcome.conflicts, outcome.rejected)


def _misplaced(given: Spec, cases: dict[str, Case]) -> list[str]:
    """Return the records whose headers do not say the file and the line, or row, that they are from."""
    texts: dict[str, list[str]] = {}
    problems = []
    with oncelog.connect(given.log.url) as db:
        for entry in db.log(given.log.name).read():
            assert entry.headers is not None
            assert entry.headers["oncelog.batch"] == b"0"
            name, line = Path(entry.headers["oncelog.file"].decode()).name, int(entry.headers["oncelog.line"])
            if name not in texts:
                texts[name] = _rows_of(cases[name])
            if not any(str(entry.id) in text for text in texts[name][line : line + 2]):
                problems.append(f"{entry.id} is not in {name}, line {line}")
    return problems


def _rows_of(case: Case) -> list[str]:
    """Return the texts of a file by their numbers: lines count from 1, rows of Parquet from 0."""
    if case.name.endswith(".parquet"):
        return [str(row) for row in pq.read_table(io.BytesIO(case.content)).to_pylist()]
    stream = bytes_of.opened(io.BytesIO(case.content))
    content = bytearray()
    with contextlib.suppress(*bytes_of.DAMAGED):
        while more := stream.read(1000):
            content += more
    encoding, mark = bytes_of.encoding_of(bytes(content[:4]), None)
    return ["", *_unescaped(content[mark:].decode(encoding, errors="replace")).split("\n")]


def _unescaped(text: str) -> str:
    return re.sub(r"(\\u[0-9a-f]{4})+", lambda found: str(json.loads(f'"{found[0]}"')), text)


def _compared(case: Case, found: dict[str, dict[str, Any]], aside: list[rejects.RejectedRow]) -> list[str]:
    problems = []
    for id, record in case.stored.items():
        wanted = {"id": id, **record}
        if found.get(id) != wanted:
            problems.append(f"{case.name}: {id} is {found.get(id)}, and must be {wanted}")
    mine = sorted((one for one in aside if Path(one.file).name == case.name), key=lambda one: one.line)
    if len(mine) != len(case.rejected):
        problems.append(f"{case.name}: rejected are {mine}, and must be {case.rejected}")
    else:
        for one, (line, reason) in zip(mine, case.rejected, strict=True):
            if reason not in one.reason or line not in {one.line, -1}:
                problems.append(f"{case.name}: {one} must be {line}, {reason}")
    return problems


def test_corpus_is_large_enough_and_on_its_page() -> None:
    """At least sixty files; the documentation says of each what comes of it."""
    assert sum(map(len, corpus.ALL.values())) >= 60
    page = Path(__file__).parents[4] / "docs" / "pipeline-corpus.md"
    assert page.read_text() == corpus.page()


def test_rejected_rows_are_sent_again_after_mending(tmp_path: Path, spark: SparkSession) -> None:
    """Texts are saved, mended and put into the folder: they go through; with no line lost on the way."""
    given = made(tmp_path, "json")
    (tmp_path / "in" / "a.json").write_bytes(b'{"id":"a"}\n{"id":"b",}\n{"n":3}\n')
    assert (run(given, tmp_path, spark).rejected, sorted(stored(given))) == (2, ["a"])
    assert rejects.save(given, -1, tmp_path / "mended") == 2
    text = (tmp_path / "mended").read_bytes()
    assert sorted(text.splitlines()) == [b'{"id":"b",}', b'{"n":3}']
    (tmp_path / "in" / "mended.json").write_bytes(text.replace(b",}", b"}").replace(b'{"n"', b'{"id":"c","n"'))
    outcome = run(given, tmp_path, spark)
    assert (outcome.rejected, sorted(stored(given))) == (2, ["a", "b", "c"])


def test_late_file_with_an_old_time_is_read(tmp_path: Path, spark: SparkSession) -> None:
    """A file that is nine days older than the newest (rsync -a) goes through, also on an old checkpoint; a folder that
    is empty at first is no mistake.
    """
    given = made(tmp_path, "json")
    assert run(given, tmp_path, spark).attempts == 0
    (tmp_path / "in" / "new.json").write_bytes(b'{"id":"new"}\n')
    run(given, tmp_path, spark)
    late = tmp_path / "in" / "late.json"
    late.write_bytes(b'{"id":"late"}\n')
    os.utime(late, (time.time() - 9 * 86400,) * 2)
    run(given, tmp_path, spark)
    assert sorted(stored(given)) == ["late", "new"]


@pytest.mark.parametrize("noted", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_file_that_grows_before_its_batch_comes_again(tmp_path: Path, spark: SparkSession, *, noted: bool) -> None:
    """Killed when a batch was stored, before Spark, or the history, noted that; its file has more rows by then. The
    pipeline stood still for ever, for the batch was another one. Now what is new is stored, and the account is even.
    """
    given = made(tmp_path, "json")
    (tmp_path / "in" / "a.json").write_bytes(b'{"id":"a"}\n{"id":"b","n":1}\nbroken\n')
    run(given, tmp_path, spark)
    state = tmp_path / ".oncelog" / "nasty"
    for path in (state / "into-log" / "commits").iterdir():
        path.unlink()
    if not noted:
        (state / "history.jsonl").unlink()
    (tmp_path / "in" / "a.json").write_bytes(b'{"id":"a"}\n{"id":"b","n":2}\nbroken\n{"id":"c"}\n')
    outcome = run(given, tmp_path, spark)
    assert sorted(stored(given)) == ["a", "b", "c"]
    assert (outcome.stored, outcome.duplicates, outcome.conflicts) == (3, 1, 1)
    assert (run(given, tmp_path, spark).attempts, len(list(rejects.rejected(given)))) == (outcome.attempts, 1)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT id, n FROM source",
        "SELECT id, sum(n) AS n FROM source GROUP BY id",
        "SELECT id, n FROM source UNION ALL SELECT 'x' AS id, 1 AS n FROM source",
        "SELECT a.id, b.n FROM source a JOIN source b ON a.id = b.id",
        "SELECT id, n FROM (SELECT id, n FROM source)",
        "SELECT id, explode(array(1, 2)) AS n FROM source LATERAL VIEW explode(array(1)) t AS x",
    ],
)
def test_lineage_is_refused_where_rows_have_no_one_place(sql: str, tmp_path: Path, spark: SparkSession) -> None:
    """Rows that SQL puts together are of no one line: the run says so before a row is read, and so does the check."""
    given = made(tmp_path, "json", f'lineage = true\n[transform]\nsql = "{sql}"\n[x]'.removesuffix("\n[x]"))
    (tmp_path / "in" / "a.json").write_bytes(b'{"id":"a","n":1}\n')
    _, wrong = check_with_spark.check(tmp_path / "spec.toml", given, spark)
    assert [one.key for one in wrong] == ["source.lineage"]
    if "GROUP" in sql:
        with pytest.raises(OncelogError, match="have no one file and line"):
            run(given, tmp_path, spark)
        assert stored(given) == {}


@pytest.mark.parametrize(
    ("more", "line", "said"),
    [
        ('on_bad_row = "fail"', b"not json\n", r"bad\.json, line 2: is not JSON.*not json"),
        ('on_bad_row = "fail"', b'{"n":1}\n', r"bad\.json, line 2: the id is missing"),
        (
            'schema_changes = "fail"',
            b'{"id":"b","n":"x"}\n',
            r'bad\.json, line 2: the schema has no place for .*"n":"x"',
        ),
    ],
)
def test_bad_row_may_stop_the_pipeline(more: str, line: bytes, said: str, tmp_path: Path, spark: SparkSession) -> None:
    """Asked to fail, a pipeline names file and line, stores nothing of the batch, and goes on once it is mended."""
    given = made(tmp_path, "json", more)
    bad = tmp_path / "in" / "bad.json"
    bad.write_bytes(b'{"id":"a"}\n' + line)
    with pytest.raises(OncelogError, match=said):
        run(given, tmp_path, spark)
    assert list(rejects.rejected(given)) == []
    bad.write_bytes(b'{"id":"a"}\n{"id":"b"}\n')
    run(given, tmp_path, spark)
    assert sorted(stored(given)) == ["a", "b"]


def test_large_file_is_read_in_parts(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """By several tasks; each row has its line, what is rejected has its own, and the account is even."""
    monkeypatch.setattr(source_files, "PART_BYTES", 500)
    given = made(tmp_path, "json", "lineage = true")
    lines = [f'{{"id":"{number}"}}' if number != 150 else "broken" for number in range(1, 201)]
    (tmp_path / "in" / "a.json").write_text("\n".join(lines) + "\n")
    (tmp_path / "in" / "b.json").write_text('{"id":"b"}\n')
    outcome = run(given, tmp_path, spark)
    assert (outcome.stored, outcome.rejected) == (200, 1)
    assert [(Path(one.file).name, one.line) for one in rejects.rejected(given)] == [("a.json", 150)]
    with oncelog.connect(given.log.url) as db:
        places = {entry.id: (entry.headers or {})["oncelog.line"] for entry in db.log(given.log.name).read()}
    assert places.pop("b") == b"1"
    assert [id for id, line in places.items() if line.decode() != id] == []


def test_large_file_that_changes_after_it_was_divided(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line is added when the parts of a file are known and before they are read: parts of two files do not fit
    together. Spark keeps the parts, so that every attempt had those of the old file, and the run failed. Now the batch
    is tried again with the file as a whole; each row is stored, and the account is even.
    """
    monkeypatch.setattr(source_files, "PART_BYTES", 500)
    given = made(tmp_path, "json")
    file, once = tmp_path / "in" / "a.json", tmp_path / "once"
    ids = [str(number) for number in range(100)]
    file.write_text("".join(f'{{"id":"{id}"}}\n' for id in ids) + '{"n":1}\nbroken\n')

    def changing(batches: Any) -> Any:
        for batch in batches:
            if not once.exists():
                once.touch()
                with file.open("a") as output:
                    output.write('{"id":"more"}\n')
            yield batch

    divided = source_files._divided

    def divided_then_changed(files: Any) -> Any:
        found = divided(files)
        return found.mapInArrow(changing, found.schema)

    monkeypatch.setattr(source_files, "_divided", divided_then_changed)
    outcome = run(given, tmp_path, spark)
    assert once.exists()
    assert (outcome.stored, outcome.duplicates, outcome.rejected) == (101, 0, 2)
    assert sorted(stored(given)) == sorted([*ids, "more"])
    assert sorted(one.line for one in rejects.rejected(given)) == [101, 102]
    assert spark.sparkContext.getLocalProperty(bytes_of.UNDIVIDED) is None


def test_chosen_files_of_a_bucket_are_read_alone(tmp_path: Path, spark: SparkSession) -> None:
    """Asked for some files, the reader lists no bucket, and reads no other file."""
    given = made(tmp_path, "json", "streaming = false")
    given = msgspec.structs.replace(given, source=msgspec.structs.replace(given.source, path="s3://nowhere/in"))
    found = source_files._in_bucket(spark, given, ["s3://nowhere/in/a.json"])
    assert found is not None
    assert [row.path for row in found.collect()] == ["s3://nowhere/in/a.json"]


def test_link_to_nothing_is_no_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark lists no such link, nor a file that was removed meanwhile: the look for large files does not fail."""
    monkeypatch.setattr(source_files, "PART_BYTES", 3)
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    given: Any = SimpleNamespace(source=SourceSpec(format="json", path=str(tmp_path)))
    assert not source_files._has_large(given)
    (tmp_path / "large.json").write_bytes(b"{}\n\n")
    assert source_files._has_large(given)


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/in", "/in"),
        ("file:///in/sub/", "/in/sub"),
        ("/in/day=*/a.json", "/in"),
        ("/in/{a,b}/c", "/in"),
        ("/in/[ab]/c", "/in"),
        ("/in/a?/c", "/in"),
        ("in", str(Path("in").absolute())),
        ("s3://shop/in", ""),
    ],
)
def test_root_of_a_source_has_no_pattern(path: str, root: str) -> None:
    """Files are looked for below it: where it is not there, the source cannot be reached."""
    given: Any = SimpleNamespace(source=SourceSpec(format="json", path=path))
    assert source_files.root(given) == root


@pytest.mark.parametrize(("value", "is_set"), [(True, True), ("True", True), ("TRUE", True), ("yes", False)])
def test_options_are_true_as_spark_says(value: str | bool, *, is_set: bool) -> None:  # noqa: FBT001 (of TOML)
    """In upper or lower case: the header of a file was read as a row."""
    given: Any = SimpleNamespace(source=SourceSpec(format="csv", options={"header": value}))
    assert source_files.dialect(given).header is is_set
    assert not source_files.is_set(given, "recursiveFileLookup")


def test_dropped_rows_are_counted(tmp_path: Path, spark: SparkSession) -> None:
    """What is dropped is in no log, and still a part of the account; so is what SQL leaves out."""
    given = made(
        tmp_path,
        "json",
        'on_bad_row = "drop"\n[transform]\nsql = "SELECT id, n FROM source WHERE n > 0"\n[x]'.replace("\n[x]", ""),
    )
    (tmp_path / "in" / "a.json").write_bytes(b'{"id":"a","n":1}\nnot json\n{"n":3}\n{"id":"z","n":0}\n')
    outcome = run(given, tmp_path, spark)
    assert (outcome.attempts, outcome.stored, outcome.rejected, outcome.left_out) == (4, 1, 2, 1)
    assert list(rejects.rejected(given)) == []


def test_row_that_is_not_accounted_for_is_told(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a row lost between the reader and the log, the sums would not be even, and the run would say so."""
    given = made(tmp_path, "json")
    (tmp_path / "in" / "a.json").write_bytes(b'{"id":"a"}\n{"id":"b"}\n')
    records = frames.records
    monkeypatch.setattr(frames, "records", lambda *given: records(*given).where("id <> 'b'"))
    assert Pipeline(given, tmp_path, SYSTEM).run(lambda _: None, spark=spark).missing == 1


def test_schema_is_taken_from_rows_that_can_be_read(tmp_path: Path, spark: SparkSession) -> None:
    """Without a schema, broken lines are no part of it, and lists over lines are."""
    given = made(tmp_path, "json")
    given = msgspec.structs.replace(given, source=msgspec.structs.replace(given.source, schema=None))
    (tmp_path / "in" / "a.json").write_bytes(b'[\n{"id":"a","n":1},\n{"id":"b","x":0.5}\n]\n')
    (tmp_path / "in" / "b.json").write_bytes(b'{"id":"c"}\nnot json\n')
    outcome = run(given, tmp_path, spark)
    assert (outcome.stored, outcome.rejected) == (3, 1)
    assert stored(given)["b"] == {"id": "b", "x": 0.5}


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["json", "csv"])
def test_file_that_grows_while_it_is_read(kind: str, tmp_path: Path, spark: SparkSession) -> None:
    """A writer appends until it has seen the reader fail: the batch is read again, and no half of a row is stored."""
    given = made(tmp_path, kind)
    file = tmp_path / "in" / f"a.{kind}"
    row = '{{"id":"{0}","n":{0}}}\n' if kind == "json" else "{0},{0}\n"
    file.write_text(("" if kind == "json" else "id,n\n") + "".join(row.format(number) for number in range(100_000)))
    ended = threading.Event()

    def append() -> None:
        number = 100_000
        while not ended.wait(0.001) and number < 110_000:
            with file.open("a") as output:
                output.write(row.format(number))
            number += 1

    writer = threading.Thread(target=append)
    stopping = threading.Timer(4, ended.set)
    writer.start()
    stopping.start()
    try:
        run(given, tmp_path, spark)
    finally:
        ended.set()
        writer.join()
    found = stored(given)
    assert len(found) > 100_000
    assert [id for id, record in found.items() if record != {"id": id, "n": int(id)}] == []


@pytest.mark.soak
def test_values_of_clean_lines_are_those_of_sparks_parser(tmp_path: Path, spark: SparkSession) -> None:
    """The reader hands values of plain types on itself; Spark's parser, given the same lines, finds the same bits."""
    numbers = ["-0", "0", "-0.0", "1", "9007199254740993", "123456789012345678901234567890", "0.1e1", "1E5", "4.9e-324"]
    numbers += ["2.2250738585072011e-308", "1.7976931348623157e308", "0.30000000000000004", "5e-1", "null", "1e23"]
    texts = ["", "\\u0000", "\\ud83d\\ude00", "\u00e4\u2028", "\\/", '\\"', "a\x7fb"]
    lines = [f'{{"d":{number}}}' for number in numbers] + [f'{{"s":"{text}"}}' for text in texts]
    lines += [
        '{"l":9223372036854775807,"b":true}',
        '{"l":-9223372036854775808,"b":false}',
        '{"l":-0}',
        '{"i":-2147483648}',
    ]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("\n".join(lines) + "\n")
    schema = "d DOUBLE, s STRING, l BIGINT, b BOOLEAN, i INT"
    given = msgspec.structs.replace(
        made(tmp_path, "json"),
        source=SourceSpec(format="json", path=str(tmp_path / "in"), streaming=False, schema=schema),
    )
    counted: Any = spark.sparkContext.accumulator({}, FoundParam())
    parsed = frames.source(spark, given, counted).drop(*source_files.HIDDEN, source_files.RESCUED)
    wanted = spark.read.schema(schema).json(str(tmp_path / "in"))
    bits = ["*", "CAST(d AS STRING) AS text"]
    assert parsed.selectExpr(*bits).collect() == wanted.selectExpr(*bits).collect()


def test_no_password_is_in_the_event_log(tmp_path: Path, spark: SparkSession) -> None:
    """Options of the storage went on to from_json, and a plan spells them out: so did Spark's event log, for ever."""
    shop = Shop(tmp_path)
    options = f'maxFilesPerTrigger = 1, password = "{SECRET}", "fs.s3a.secret.key" = "{SECRET}"'
    shop.change(("maxFilesPerTrigger = 1", options))
    shop.send(("1", 10))
    folder = tmp_path / "events"
    with event_log(spark, folder):
        shop.run(spark)
    shop.spec.unlink()  # the one place where the password is
    found = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(b"from_json" in content for path, content in found.items() if folder in path.parents)
    assert [str(path) for path, content in found.items() if SECRET.encode() in content] == []


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_local_times_in_a_format_of_their_own(kind: str, tmp_path: Path, spark: SparkSession) -> None:
    """``timestampNTZFormat``: of CSV it was not used, and each cell was rescued. Other texts are rescued, and a time
    that a clock left out in some zone stays as it is.
    """
    times = {
        "a": "02.01.2026 03:04",
        "gap": "29.03.2026 02:30",
        "other": "2026-01-02 03:04",
        "more": "02.01.2026 03:04:05",
    }
    lines = {
        "json": [json.dumps({"id": id, "t": time}) for id, time in times.items()],
        "csv": ["id,t", *map(",".join, times.items())],
    }
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"a.{kind}").write_text("\n".join(lines[kind]))
    header = "header = true, " if kind == "csv" else ""
    options = f'options = {{ {header}timestampNTZFormat = "dd.MM.yyyy HH:mm" }}'
    (tmp_path / "spec.toml").write_text(SPEC.format(kind=kind, schema="id STRING, t TIMESTAMP_NTZ", more=options))
    given, wrong = check.check(tmp_path / "spec.toml")
    assert given is not None
    assert wrong == []
    run(given, tmp_path, spark)
    found = stored(given)
    assert {id: row.get("t") for id, row in found.items()} == {
        "a": "2026-01-02T03:04:00.000000",
        "gap": "2026-03-29T02:30:00.000000",
        "other": None,
        "more": None,
    }
    assert json.loads(found["other"]["_rescued"]) == {"t": times["other"]}


SKIPPED = {
    "json": [
        '{"id":"a","t":"2026-03-29 01:59:59","s":{"t":"2026-03-29T03:00:00"}}',
        '{"id":"gap","t":"2026-03-29 02:30:00"}',
        '{"id":"in","t":"2026-03-29T00:30:00Z","s":{"t":"2026-03-29 02:30"}}',
        '{"id":"named","t":"2026-03-08 02:30:00 America/New_York"}',
    ],
    "csv": ["id,t", "a,2026-03-29 01:59:59", "gap,2026-03-29 02:30:00", "named,2026-03-08 02:30 America/New_York"],
    "formatted": ["id,t", "a,29.03.2026 01:59", "gap,29.03.2026 02:30", "twice,25.10.2026 02:30"],
}


@pytest.mark.parametrize("case", SKIPPED)
def test_a_time_that_clocks_skipped_is_rescued(case: str, tmp_path: Path, spark: SparkSession) -> None:
    """At the beginning of summer time there is no 02:30. Spark reads it as 03:30, without a word."""
    kind = "json" if case == "json" else "csv"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"a.{kind}").write_text("\n".join(SKIPPED[case]))
    format = ', timestampFormat = "dd.MM.yyyy HH:mm"' if case == "formatted" else ""
    options = f"options = {{ header = true{format} }}" if kind == "csv" else ""
    nested = ", s STRUCT<t: TIMESTAMP>" if kind == "json" else ""
    text = SPEC.format(kind=kind, schema=f"id STRING, t TIMESTAMP{nested}", more=options)
    (tmp_path / "spec.toml").write_text(text)
    given, _ = check.check(tmp_path / "spec.toml")
    assert given is not None
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        run(given, tmp_path, spark)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = stored(given)
    assert found["a"]["t"] == f"2026-03-29T00:59:{'00' if format else '59'}.000000Z"
    assert ("t" in found["gap"], json.loads(found["gap"]["_rescued"]).keys()) == (False, {"t"})
    assert {id for id, row in found.items() if "_rescued" in row} == found.keys() - {"a", "twice"}


@pytest.mark.parametrize("name", ["_rescued", "_Rescued", "_oncelog_line"])
def test_a_column_of_oncelogs_own_is_refused_by_name(name: str, tmp_path: Path, spark: SparkSession) -> None:
    """As in a table that another pipeline wrote. Spark said that a reference was ambiguous."""
    given = made(tmp_path, "json")
    given = msgspec.structs.replace(
        given, source=msgspec.structs.replace(given.source, schema=f"id STRING, {name} STRING")
    )
    with pytest.raises(OncelogError, match=f"{name} is a column that Oncelog makes"):
        run(given, tmp_path, spark)
    _, found = check_with_spark.check(tmp_path / "spec.toml", given, spark)
    assert [(one.key, one.what[:20]) for one in found] == [("source.schema", f"{name} is a column that"[:20])]


@pytest.mark.parametrize("kind", ["json", "csv"])
@pytest.mark.parametrize(("name", "format"), [("dateFormat", "dd.MM.YYYY"), ("timestampNTZFormat", "qqqqq bbb")])
def test_a_wrong_format_of_times_is_refused(
    kind: str, name: str, format: str, tmp_path: Path, spark: SparkSession
) -> None:
    """YYYY is no year of Spark's. Of CSV a task failed, as if another run could help; of JSON each time was rescued."""
    given = made(tmp_path, kind)
    source = msgspec.structs.replace(given.source, options={**given.source.options, name: format})
    with pytest.raises(InvalidArgument, match=rf"source\.options\.{name}: '{format}' is no format"):
        run(msgspec.structs.replace(given, source=source), tmp_path, spark)
