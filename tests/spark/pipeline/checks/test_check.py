"""Every mistake in a spec is found before anything runs, on its line, with what was probably meant."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import oncelog
from oncelog import LogSettings, Window
from oncelog.errors import InvalidArgument
from oncelog.spark.pipeline import mistakes
from oncelog.spark.pipeline.checks import check as checking
from oncelog.spark.pipeline.checks import explain, ownership
from oncelog.spark.pipeline.template import template

GOOD = """\
name = "orders"

[source]
format = "json"
path = "incoming"
options = { maxFilesPerTrigger = 10 }

[transform]
sql = "SELECT order_id, amount FROM source"

[identity]
column = "order_id"

[log]
url = "data"
name = "orders"

[sink]
format = "parquet"
path = "out"

[run]
master = "local[2]"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the input that the spec names."""
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "a.json").write_text('{"order_id": "1", "amount": 2}\n')
    return tmp_path


def check(folder: Path, text: str) -> list[mistakes.Mistake]:
    """Return the mistakes of a spec with this text."""
    (folder / "spec.toml").write_text(text)
    return checking.check(folder / "spec.toml")[1]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ('path = "hdfs://b/t"', "a folder of a disk, or to a bucket"),
        ("", "no path of the Delta table"),
        ('path = "s3://b/t"', None),
        ('path = "out"', None),
    ],
)
def test_places_of_a_delta_table(folder: Path, path: str, said: str | None) -> None:
    """A disk, or a bucket."""
    text = GOOD.replace('format = "parquet"\npath = "out"', f'format = "delta"\n{path}')
    found = [one.what for one in check(folder, text) if one.key == "sink.path"]
    assert len(found) == (said is not None)
    assert (said or "") in "".join(found)


def test_lineage_is_for_files_that_are_read_here(folder: Path) -> None:
    """Of other formats nobody knows the line."""
    text = GOOD.replace('format = "json"', 'format = "text"\nlineage = true')
    assert "source.lineage" in [one.key for one in check(folder, text)]


def test_good_spec_has_no_mistakes(folder: Path) -> None:
    """What is right is not complained about."""
    assert check(folder, GOOD) == []


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("csv", r'SEP = "\\t", Header = "TRUE", quote = "", escape = "", charset = "Latin1", mode = "PERMISSIVE"'),
        ("csv", 'nullValue = "NA", timestampNTZFormat = "dd.MM.yyyy", inferSchema = true, multiLine = true'),
        ("json", '"fs.s3a.endpoint" = "x", timeZone = "CET", prefersDecimal = true, encoding = "utf-16"'),
        ("parquet", "mergeSchema = true, recursiveFileLookup = true"),
    ],
)
def test_options_that_do_something_are_taken(folder: Path, format: str, options: str) -> None:
    """Whatever the case of their names, and those of the storage, too."""
    text = GOOD.replace('format = "json"', f'format = "{format}"').replace("maxFilesPerTrigger = 10", options)
    assert check(folder, text) == []


# What is replaced in the good spec, by what; the key that is found, on which line, and words of what is said.
WRONG = [
    ('format = "json"', "format = json", "", 4, "put text into quotes"),
    ('format = "json"', 'format: "json"', "", 4, "not key: value"),
    ("[source]", "[source", "", 3, "not TOML"),
    ('column = "order_id"', "content = True", "", 12, "content = true"),
    ('name = "orders"\n\n[source]', 'nmae = "orders"\n\n[source]', "nmae", 1, "did you mean name"),
    ('name = "orders"\n\n[source]', "[source]", "name", None, "lacks name"),
    ("[identity]\n", "[identty]\n", "identty", 11, "did you mean identity"),
    ('[identity]\ncolumn = "order_id"\n', "", "identity", None, "add [identity]"),
    ('path = "incoming"', 'paht = "incoming"', "source.paht", 5, "did you mean path"),
    ('path = "incoming"', 'path = "incoming"\nmaster = "local"', "source.master", 6, "belongs into [run]"),
    ('path = "incoming"', 'path = "incoming"\nheader = true', "source.header", 6, "goes into options"),
    ('format = "json"', "format = 3", "source.format", 4, "expected text"),
    ('format = "json"', 'format = "jsonl"', "source.format", 4, 'format = "json"'),
    ('format = "json"', 'format = "paruqet"', "source.format", 4, 'format = "parquet"'),
    ('format = "json"', 'format = "kafka"', "source.format", 4, "spark-sql-kafka"),
    ('format = "json"', 'format = "kafka"', "source.path", 5, "has no path"),
    ('format = "json"', 'format = "kafka"', "source.options", 6, "kafka.bootstrap.servers"),
    ('format = "json"', 'format = "kafka"', "source.options", 6, "subscribe"),
    ('format = "json"', 'format = "jdbc"\nstreaming = true', "source.streaming", 5, "cannot follow"),
    ('path = "incoming"', "", "source.path", 3, "no path is given"),
    ('path = "incoming"', 'path = ""', "source.path", 5, "is empty"),
    ('path = "incoming"', 'path = ["incoming"]', "source.path", 5, 'got a list write path = "incoming"'),
    ('path = "incoming"', 'path = "data"', "source.path", 5, "shares a folder with the log"),
    ('path = "incoming"', 'path = "in\\coming"', "", 5, "write / for"),
    ('path = "incoming"', 'path = "incoming', "", 5, 'close the quotes: path = "incoming"'),
    ('path = "incoming"', "path = \u201cincoming\u201d", "", 5, 'straight quotes: path = "incoming"'),
    ('path = "incoming"', 'path = "incoming"\npath = "x"', "", 6, "path is there already"),
    ("[sink]", "[source]\n[sink]", "", 18, "[source] is there already"),
    ("[source]", "[[source]]", "source", 3, "one pair of brackets"),
    ("maxFilesPerTrigger = 10", "a.b = 1", "source.options", 6, 'write "a.b" = 1'),
    ("{ maxFilesPerTrigger = 10 }", '"x"', "source.options", 6, "got text write options = {"),
    ('[identity]\ncolumn = "order_id"', 'identity = "order_id"', "transform.identity", 11, "write [identity]"),
    ('format = "json"', 'format = ""', "source.format", 4, "is empty"),
    ('format = "json"', 'format = "zorg"', "source.format", 4, "packages"),
    ('format = "json"', 'format = "jdbc"', "source.options", 6, 'add dbtable = "orders"'),
    (
        'format = "json"\npath = "incoming"\noptions = { maxFilesPerTrigger = 10 }',
        'format = "jdbc"\noptions = { url = "jdbc:postgresql://x/y", query = "SELECT 1" }',
        "source.options",
        5,
        "org.postgresql.Driver",
    ),
    (
        'format = "json"\npath = "incoming"\noptions = { maxFilesPerTrigger = 10 }',
        'format = "jdbc"\noptions = { url = "postgres://x/y", dbtable = "orders" }',
        "source.options",
        5,
        'url = "jdbc:postgresql://x/y"',
    ),
    (
        'format = "json"',
        'format = "oncelog"\noptions = { URL = "data", log = "orders" }\n[source.x]',
        "source.x",
        6,
        "has no x",
    ),
    ("SELECT order_id, amount", "SELECT order_id, uuid() AS amount", "transform.sql", 9, "uuid() is another each time"),
    ('path = "incoming"', 'path = "incomming"', "source.path", 5, "did you mean"),
    ('path = "incoming"', 'path = "nowhere/*.json"', "source.path", 5, "nothing matches"),
    ('path = "incoming"', 'path = "incoming/a.json"', "source.path", 5, "pathGlobFilter"),
    ('path = "incoming"', 'path = "empty"', "source.schema", 3, "give the schema"),
    ("maxFilesPerTrigger = 10", "maxFilePerTrigger = 10", "source.options.maxFilePerTrigger", 6, "maxFilesPerTrigger?"),
    ("maxFilesPerTrigger = 10", "maxFilesPerTrigger = 0", "source.options.maxFilesPerTrigger", 6, "number of files"),
    (
        'format = "json"\npath = "incoming"\noptions = { maxFilesPerTrigger = 10 }',
        'format = "csv"\npath = "incoming"\noptions = { sep = "||" }',
        "source.options.sep",
        6,
        "name one character",
    ),
    *(
        (
            'format = "json"\npath = "incoming"\noptions = { maxFilesPerTrigger = 10 }',
            f'format = "{format}"\npath = "incoming"\noptions = {{ {option} = {value} }}',
            f"source.options.{option}",
            6,
            said,
        )
        for format, option, value, said in (
            ("csv", "comment", '"#"', "would do nothing"),
            ("csv", "emptyValue", '"x"', "an empty cell is null"),
            ("csv", "ignoreLeadingWhiteSpace", "true", "trim(…) in transform.sql"),
            ("csv", "ignoreTrailingWhiteSpace", "true", "trim(…) in transform.sql"),
            ("csv", "lineSep", '";"', "a line feed ends a line"),
            ("csv", "mode", '"FAILFAST"', "on_bad_row, beside path"),
            ("csv", "timeZone", '"CET"', "would do nothing"),
            ("csv", "positiveInf", '"x"', "remove it"),
            ("csv", "heder", "true", "did you mean header?"),
            ("csv", "header", '"yes"', "write header = true"),
            ("csv", "sep", '""', "cannot separate cells"),
            ("csv", "sep", '"\\n"', "cannot separate cells"),
            ("csv", "encoding", '"utf-99"', "no encoding is called 'utf-99'"),
            ("json", "charset", '"hex"', "no encoding is called 'hex'"),
            ("json", "allowSingleQuotes", "true", "would do nothing"),
            ("parquet", "encoding", '"utf-8"', "would do nothing"),
            ("text", "heder", "true", "Spark would ignore heder"),
        )
    ),
    ("FROM source", "FROM orders", "transform.sql", 9, "FROM source"),
    ("SELECT order_id, amount FROM source", "DROP TABLE source", "transform.sql", 9, "is not a SELECT"),
    ('column = "order_id"', "", "identity", 11, "nothing says what makes"),
    ('column = "order_id"', 'column = "order_id"\nexpression = "x"', "identity.expression", 13, "keep column"),
    ('column = "order_id"', "column = \"concat(a, 'x')\"", "identity.column", 12, "write expression"),
    ('column = "order_id"', 'column = ""', "identity.column", 12, "is empty"),
    ('url = "data"', 'url = ""', "log.url", 15, "is empty"),
    ('url = "data"', 'url = "memory://x"', "log.url", 15, "use a folder"),
    ('url = "data"', 'url = "fle:///x"', "log.url", 15, 'url = "file:///x"'),
    ('url = "data"', 'url = "file://var/lib"', "log.url", 15, "file:///var/lib"),
    ('url = "data"', 'url = "s3:/bucket/x"', "log.url", 15, 'url = "s3://bucket/x"'),
    ('url = "data"', 'url = "https://x/y"', "log.url", 15, "name a folder"),
    ('url = "data"', 'url = "incoming/data"', "log.url", 15, "read what it wrote"),
    ('url = "data"\nname = "orders"', 'url = "data"\nname = ""', "log.name", 16, ""),
    ('url = "data"\nname = "orders"', 'url = "data"\nname = "conflicts.x"', "log.name", 16, 'name = "x"'),
    ('url = "data"', 'url = "data"\non_conflict = "quarentine"', "log.on_conflict", 16, 'on_conflict = "quarantine"'),
    ("[sink]", "[log.settings]\nsegment_bytes = 1\n[sink]", "log.settings.segment_bytes", 19, "range"),
    ("[sink]", '[log.settings]\nidempotence = "off"\n[sink]', "log.settings.idempotence", 19, "explicit"),
    ("[sink]", '[log.settings]\nidempotence = "content"\n[sink]', "log.settings", None, None),
    ("[sink]", "[log.settings]\nwindow = { max_key = 3 }\n[sink]", "log.settings.window.max_key", 19, "max_keys"),
    ('format = "parquet"', 'format = "parket"', "sink.format", 19, 'format = "parquet"'),
    ('path = "out"', "", "sink.path", 18, "no path is given"),
    ('path = "out"', 'path = "spec.toml"', "sink.path", 20, "is a file"),
    ('path = "out"', 'path = "data/out"', "sink.path", 20, "shares a folder with the log"),
    ('path = "out"', 'path = ".oncelog"', "sink.path", 20, "shares a folder with the pipeline's progress"),
    ('path = "out"', 'path = "."', "sink.path", 20, "contains the source's path"),
    ('path = "out"', 'path = "incoming/out"', "sink.path", 20, "read what it wrote"),
    ('format = "parquet"\npath = "out"', 'format = "console"\npartition_by = ["a"]', "sink.partition_by", 20, "remove"),
    ('path = "out"', 'path = "out"\npartition_by = "day"', "sink.partition_by", 21, 'partition_by = ["day"]'),
    ('path = "out"', 'path = "out"\nsql = "SELECT 1"', "sink.sql", 21, "FROM log"),
    ('format = "parquet"\npath = "out"', 'format = "console"', "sink.format", 19, "at least once"),
    ('master = "local[2]"', 'master = "locl[2]"', "run.master", 23, "not a Spark master"),
    ('master = "local[2]"', "every_s = -1", "run.every_s", 23, "not a time"),
    ('master = "local[2]"', 'every_s = "2"', "run.every_s", 23, "without quotes"),
    ('master = "local[2]"', "every_s = nan", "run.every_s", 23, "not a time"),
    ('master = "local[2]"', "conf = { spark.x = 2 }", "run.conf", 23, 'write "spark.x" = 2'),
    ('master = "local[2]"', '[report]\npath = "incoming/r.html"', "report.path", 24, "read what it wrote"),
    ('master = "local[2]"', '[report]\npath = "empty"', "report.path", 24, "where a file should be"),
    ('master = "local[2]"', 'conf = { "sql.x" = 1 }', 'run.conf."sql.x"', 23, "spark.sql.x"),
    ('master = "local[2]"', 'packages = ["delta"]', "run.packages", 23, "Maven"),
    ('master = "local[2]"', 'checkpoint = "incoming/state"', "run.checkpoint", 23, "inside"),
    ('master = "local[2]"', 'checkpoint = "spec.toml"', "run.checkpoint", 23, "is a file"),
    ('name = "orders"\n\n[source]', 'name = "my orders"\n\n[source]', "name", 1, "my-orders"),
    ('name = "orders"\n\n[source]', 'name = ".."\n\n[source]', "name", 1, "cannot name a folder"),
]


@pytest.mark.parametrize("wrong", WRONG, ids=[f"{wrong[2]}:{wrong[1][:40]}" for wrong in WRONG])
def test_mistake_is_found_on_its_line(folder: Path, wrong: tuple[str, str, str, int | None, str | None]) -> None:
    """One thing is made wrong; the message says what, where, and what was meant."""
    good, bad, key, line, words = wrong
    (folder / "empty").mkdir()
    text = GOOD.replace(good, bad, 1)
    assert text != GOOD
    found = check(folder, text)
    if words is None:
        assert found == []
        return
    told = [one for one in found if one.key == key and words in f"{one.what} {one.suggestion}"]
    assert told, found
    assert told[0].line == line
    assert told[0].suggestion


def test_every_mistake_is_found_at_once(folder: Path) -> None:
    """Nobody has to correct one mistake to learn of the next."""
    text = GOOD.replace('"json"', '"jsonl"').replace('path = "out"', "").replace("local[2]", "x")
    assert {one.key for one in check(folder, text)} == {"source.format", "sink.path", "run.master"}


def test_log_that_is_there_with_other_settings(folder: Path) -> None:
    """A spec does not change a log in passing: what differs is named."""
    with oncelog.connect((folder / "data").as_uri()) as db:
        db.log("orders", LogSettings(window=Window(max_keys=7)), create=True)
    assert check(folder, GOOD) == []
    (found,) = check(folder, GOOD + "[log.settings]\nwindow = { max_keys = 8 }\n")
    assert found.key == "log.settings"
    assert "window.max_keys: stored 7, given 8" in found.what


def test_content_identity_wants_a_log_that_keeps_it(folder: Path) -> None:
    """Rows without an id, in a log that only knows ids, would not be recognised."""
    text = GOOD.replace('column = "order_id"', "content = true")
    assert check(folder, text) == []
    with oncelog.connect((folder / "data").as_uri()) as db:
        db.log("orders", create=True)
    assert [one.key for one in check(folder, text)] == ["identity.content"]


def test_checkpoint_of_another_pipeline(folder: Path) -> None:
    """Progress into one log says nothing about another."""
    (folder / "spec.toml").write_text(GOOD)
    spec, _ = checking.check(folder / "spec.toml")
    assert spec is not None
    with oncelog.connect(spec.log.url) as db:
        ownership.own(spec, folder / ".oncelog" / "orders", db.log("orders", create=True).log_id)
    assert check(folder, GOOD) == []
    (found,) = check(folder, GOOD.replace('url = "data"\nname = "orders"', 'url = "data"\nname = "other"'))
    assert found.key == "run.checkpoint"


def test_checkpoint_of_a_log_that_is_gone(folder: Path) -> None:
    """A log that was deleted takes its records along: progress into it would leave them out of the new one."""
    (folder / "spec.toml").write_text(GOOD)
    spec, _ = checking.check(folder / "spec.toml")
    assert spec is not None
    with oncelog.connect(spec.log.url) as db:
        ownership.own(spec, folder / ".oncelog" / "orders", db.log("orders", create=True).log_id)
        assert check(folder, GOOD) == []
        db.delete("orders")
        (gone,) = check(folder, GOOD)
        db.log("orders", create=True)
        (anew,) = check(folder, GOOD)
    assert gone.key == anew.key == "run.checkpoint"
    assert "deleted" in anew.what


def test_output_whose_progress_is_lost(folder: Path) -> None:
    """Batches are numbered again then, with other records in each: those that are there would be there twice."""
    (folder / "out" / "batch=0000000003").mkdir(parents=True)
    (found,) = check(folder, GOOD)
    assert (found.key, "twice" in found.what) == ("sink.path", True)
    (folder / ".oncelog" / "orders" / "out-of-log").mkdir(parents=True)
    assert check(folder, GOOD) == []


@pytest.mark.parametrize(("part", "table"), [("source", "read"), ("sink", "copied")])
def test_log_into_itself(folder: Path, part: str, table: str) -> None:
    """However the option's name is written, and wherever the path to the log begins."""
    itself = 'format = "oncelog"\noptions = { URL = "./data", log = "orders" }\n'
    first, second = (
        'format = "json"\npath = "incoming"\noptions = { maxFilesPerTrigger = 10 }\n',
        'format = "parquet"\npath = "out"\n',
    )
    (found,) = check(folder, GOOD.replace(first if part == "source" else second, itself))
    assert (found.key, found.what) == (f"{part}.options.log", f"the log would be {table} into itself")


def test_place_that_cannot_be_written_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to a folder, the error comes before an hour of work is done for it."""
    monkeypatch.setattr(
        "oncelog.spark.pipeline.checks.ownership.os.access", lambda path, _: Path(path).name != "locked"
    )
    (folder / "locked").mkdir()
    (found,) = check(folder, GOOD.replace('path = "out"', 'path = "locked/deep/out"'))
    assert (found.key, found.line) == ("sink.path", 20)
    assert "locked cannot be written to" in found.what


def test_file_of_another_kind(folder: Path) -> None:
    """An empty file and a folder are no specs; one that an editor marked as UTF-8 is."""
    assert "init" in (check(folder, "\n")[0].suggestion or "")
    assert [one.what for one in checking.check(folder)[1]] == ["is a folder, not a file"]
    assert check(folder, "\ufeff" + GOOD) == []


def test_not_text(folder: Path) -> None:
    """A file that is not text is no spec."""
    (folder / "spec.toml").write_bytes(b"\xff\xfe\x00")
    assert [one.what for one in checking.check(folder / "spec.toml")[1]] == ["the file is not UTF-8 text"]


def test_no_java(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing on this machine is said before Spark says it in its own way."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert [one.suggestion for one in check(folder, GOOD)] == ["install it, or set JAVA_HOME"]


def test_loading_names_every_mistake(folder: Path) -> None:
    """A program that loads a spec gets one error with all of them."""
    (folder / "spec.toml").write_text(GOOD.replace("[sink]", "[snk]").replace("[run]", "[rn]"))
    with pytest.raises(InvalidArgument, match=r"line 18.*sink.*line 22.*run"):
        mistakes.load(folder / "spec.toml")


def test_template_is_a_good_spec(folder: Path) -> None:
    """What ``init`` writes can be run as it stands."""
    assert check(folder, template(file="spec.toml")) == []


def test_template_explains_every_part_that_is_commented_out(folder: Path) -> None:
    """Its commented lines are right, too: without their #, each is a part of a spec."""
    lines = [
        line.removeprefix("# ") if "=" in line or "[" in line[:3] else line for line in template(file="x").split("\n")
    ]
    text = "\n".join(lines[6:]).replace("content = true", "").replace("expression =", "#")
    found = [one for one in check(folder, text) if one.severity == "error"]
    assert found == []


@pytest.mark.parametrize(
    ("change", "step", "words"),
    [
        (("", ""), "sink", "exactly once"),
        (('format = "parquet"', 'format = "console"'), "sink", "at least once"),
        (('column = "order_id"', "content = true"), "identity", "equal"),
        (('url = "data"', 'url = "data"\non_conflict = "error"'), "conflicts", "stops"),
    ],
)
def test_explanation_says_what_is_promised(folder: Path, change: tuple[str, str], step: str, words: str) -> None:
    """``check`` tells what each step does, and what may be relied on."""
    (folder / "spec.toml").write_text(GOOD.replace(*change, 1))
    spec, _ = checking.check(folder / "spec.toml")
    assert spec is not None
    assert words in dict(explain.explain(spec))[step]


@pytest.mark.parametrize(
    ("run", "keys"),
    [
        ('packages = ["com.example:format:1.0"]', ["run.packages"]),
        ('conf = { "spark.plugins" = "com.example.Plugin" }', ['run.conf."spark.plugins"']),
        ('conf = { "spark.jars" = "a.jar", "spark.ui.enabled" = "false" }', ['run.conf."spark.jars"']),
        ('conf = { "spark.sql.shuffle.partitions" = 4, "spark.driver.memory" = "1g" }', []),
    ],
)
def test_what_a_spec_brings_to_run_is_told(folder: Path, run: str, keys: list[str]) -> None:
    """Packages and settings are code that Spark runs as it starts: a check of a spec of somebody else runs none."""
    path = folder / "spec.toml"
    path.write_text(GOOD.replace('master = "local[2]"', f'master = "local[2]"\n{run}'))
    given, found = checking.check(path)
    assert given is not None
    assert found == []
    told = checking.code_of(path, given)
    assert [(one.key, one.line, one.severity) for one in told] == [(key, 24, "warning") for key in keys]
    assert all("--trust" in (one.suggestion or "") for one in told)
