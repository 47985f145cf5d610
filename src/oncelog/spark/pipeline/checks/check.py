"""Checking a spec before anything runs: everything that can be seen without Spark."""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

import oncelog
from oncelog import names
from oncelog import settings as log_settings
from oncelog.errors import InvalidArgument, NotFound, OncelogError
from oncelog.settings import LogSettings
from oncelog.spark.pipeline import lines, mistakes, spec
from oncelog.spark.pipeline.checks import file_options, ownership
from oncelog.spark.pipeline.mistakes import Mistake, dotted, nearest
from oncelog.spark.pipeline.rows import frames, source_files
from oncelog.spark.pipeline.spec import FILE_FORMATS, STREAMING_FORMATS, IdentitySpec, SinkSpec, SourceSpec, Spec
from oncelog.storage.bucket.paths import bucket_of

_FORMATS = (*STREAMING_FORMATS, "avro", "iceberg", "jdbc", "console", "memory", "noop", "xml")
_ALIASES = {"jsonl": "json", "ndjson": "json", "jsonlines": "json", "tsv": "csv", "txt": "text", "postgres": "jdbc"}
_LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg"}
"""What writes a sink's table, without a jar of Spark's."""

_PACKAGES = {"kafka": "spark-sql-kafka-0-10", "delta": "delta-spark", "avro": "spark-avro", "iceberg": "iceberg-spark"}
_EXAMPLES = {
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
    "delta": "io.delta:delta-spark_2.13:4.0.0",
    "avro": "org.apache.spark:spark-avro_2.13:{spark}",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0",
}
_NEEDED = {"kafka": ("kafka.bootstrap.servers",), "jdbc": ("url",), "oncelog": ("url", "log")}
_KAFKA_TOPICS = ("subscribe", "subscribePattern", "assign")
_DRIVERS = {"postgresql": "org.postgresql.Driver", "mysql": "com.mysql.cj.jdbc.Driver",
            "mariadb": "org.mariadb.jdbc.Driver", "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
            "oracle": "oracle.jdbc.OracleDriver", "sqlite": "org.sqlite.JDBC"}  # fmt: skip
_MASTER = re.compile(r"local(\[(\*|\d+)(,\s*\d+)?\])?|local-cluster\[[\d,]+\]|(spark|k8s|mesos)://.+|yarn")
_COORDINATE = re.compile(r"[^:\s]+:[^:\s]+:[^:\s]+")
_CHANCE = re.compile(
    r"\b(rand|randn|random|uuid|current_timestamp|current_date|now|monotonically_increasing_id)\s*\(", re.IGNORECASE
)

Check = Callable[[Spec], Iterator[Mistake]]


_SIZING = re.compile(
    r"spark\.(ui\.(enabled|showConsoleProgress)|app\.name|default\.parallelism|(driver|executor)\.(memory|cores)"
    r"|sql\.(shuffle\.partitions|session\.timeZone|ansi\.enabled|adaptive\.[\w.]+))"
)
"""Settings of Spark that load no code and name no place."""


def check(path: Path) -> tuple[Spec | None, list[Mistake]]:
    """Return the spec in a file, its paths made absolute, and its mistakes; no spec if its form is wrong."""
    found = mistakes.read(path)
    if found.spec is None:
        return None, found.mistakes
    placed = spec.placed(found.spec, path.parent)
    wrong = [
        msgspec.structs.replace(mistake, line=lines.line_of(found.places, lines.parts(mistake.key)))
        for one in _CHECKS
        for mistake in one(placed)
    ]
    return placed, sorted(wrong, key=lambda mistake: (mistake.line or 0, mistake.key))


def code_of(path: Path, given: Spec) -> list[Mistake]:
    """Return a warning for each part of a spec that is code, which Spark would run as soon as it starts: packages, and
    settings but for a few that only size things.
    """
    places = mistakes.read(path).places
    keys = ["run.packages"] if given.run.packages else []
    keys += [f'run.conf."{name}"' for name in given.run.conf if not _SIZING.fullmatch(name)]
    what = "is code that Spark runs when it starts: Spark was not started, and only the form of the spec was checked"
    return [
        Mistake(key, what, "say --trust if you trust who wrote it", lines.line_of(places, lines.parts(key)), "warning")
        for key in keys
    ]


def _name(given: Spec) -> Iterator[Mistake]:
    if not re.fullmatch(r"[\w.-]+", given.name) or not given.name.strip("."):
        fixed = re.sub(r"[^\w.-]+", "-", given.name).strip("-.") or "orders"
        yield Mistake("name", f"{given.name!r} cannot name a folder", f'write name = "{fixed}"')


def _source(given: Spec) -> Iterator[Mistake]:
    source = given.source
    yield from _format("source", source.format, given)
    name = source.format.lower()
    if name in FILE_FORMATS:
        yield from _source_path(source)
        yield from file_options.check(source)
    elif source.path is not None and name in {"kafka", "jdbc", "rate", "socket"}:
        yield Mistake("source.path", f"{name} has no path", "remove it; what it reads is named by its options")
    if source.schema_changes == "widen" and name not in source_files.FORMATS:
        what = f"the columns of {name} are taken as Spark has them"
        yield Mistake("source.schema_changes", what, "remove it: widen is for json, csv and parquet")
    if source.lineage and name not in source_files.FORMATS:
        what = f"where a row of {name} came from is not known here"
        yield Mistake("source.lineage", what, "remove it: lineage is for json, csv and parquet")
    yield from _needed("source", name, source.options)
    yield from _what_to_read(source)
    yield from _own_log(given)
    if source.streaming and name not in STREAMING_FORMATS and name in _FORMATS:
        yield Mistake(
            "source.streaming", f"Spark cannot follow {name}", "remove it: the source is read as a whole each time"
        )


def _what_to_read(source: SourceSpec) -> Iterator[Mistake]:
    """Look at the options that name what is to be read: of several that would do, one."""
    name = source.format.lower()
    for kind, ways, example in (
        ("kafka", _KAFKA_TOPICS, 'subscribe = "TOPIC"'),
        ("jdbc", ("dbtable", "query"), 'dbtable = "orders"'),
    ):
        given = [way for way in ways if _given(source.options, way)]
        if name == kind and not given:
            yield Mistake("source.options", f"{kind} is not told what to read", f"add {example}")
        if name == kind and len(given) > 1:
            yield Mistake("source.options", f"{kind} takes one of {' and '.join(given)}", f"keep {given[0]}")
    url = _option(source.options, "url")
    if name == "jdbc" and isinstance(url, str) and not url.startswith("jdbc:"):
        rest = url.removeprefix("file://") if url.startswith("file:") else url
        meant = "jdbc:" + re.sub(r"^postgres:", "postgresql:", rest)
        yield Mistake("source.options", f"{rest!r} is not a URL of JDBC", f'write url = "{meant}"')
    elif name == "jdbc" and url is not None and not _given(source.options, "driver"):
        driver = next((given for sign, given in _DRIVERS.items() if str(url).startswith(f"jdbc:{sign}:")), "…")
        what = "no driver is named, and Spark does not find one that came by packages or spark.jars"
        yield Mistake("source.options", what, f'add driver = "{driver}"', severity="warning")


def _own_log(given: Spec) -> Iterator[Mistake]:
    """See that the log is neither read into itself nor copied into itself."""
    own = (given.log.url, given.log.name)
    for table, part, what in (("source", given.source, "read"), ("sink", given.sink, "copied")):
        if part is not None and part.format.lower() == frames.FORMAT:
            there = _option(part.options, "url"), _option(part.options, "log")
            if there == own:
                yield Mistake(f"{table}.options.log", f"the log would be {what} into itself", "name another log")


def _format(table: str, name: str, given: Spec) -> Iterator[Mistake]:
    key, lower = f"{table}.format", name.lower()
    if not name:
        yield Mistake(key, "is empty", 'name what Spark reads, as in format = "json"')
        return
    meant = _ALIASES.get(lower) or (None if lower in _FORMATS else nearest(lower, _FORMATS))
    if meant is not None:
        yield Mistake(key, f"Spark has no format {name!r}", f'write format = "{meant}"')
    elif lower not in _FORMATS and "." not in name and not (given.run.packages or given.run.conf):
        hint = "add what brings it to [run] packages, or use json, csv, parquet, …"
        yield Mistake(key, f"Spark itself has no format {name!r}", hint, severity="warning")
    if table == "sink" and lower in _LIBRARIES:
        if importlib.util.find_spec(_LIBRARIES[lower]) is None:
            yield Mistake(key, f"{_LIBRARIES[lower]} is not installed", 'pip install "oncelog[tables]"')
        return
    package = _PACKAGES.get(lower)
    jars = " ".join([*given.run.packages, *(str(given.run.conf.get(f"spark.{jar}", "")) for jar in _JARS)])
    if package is not None and package not in jars and lower not in jars:
        example = _EXAMPLES[lower].format(spark=_spark_version())
        yield Mistake(key, f"Spark does not bring {lower} along", f'add to [run] packages = ["{example}"]')


_JARS = ("jars", "jars.packages", "driver.extraClassPath")


def _spark_version() -> str:
    return str(importlib.metadata.version("pyspark")) if importlib.util.find_spec("pyspark") else "4.3.0"


def _source_path(source: SourceSpec) -> Iterator[Mistake]:
    if source.path is None:
        yield Mistake(
            "source.path", f"{source.format} is read from files, and no path is given", 'add path = "folder/"'
        )
        return
    path = spec.local_path(source.path)
    if path is None:
        return
    if not source.path:
        yield Mistake("source.path", "is empty", 'write path = "folder/"')
        return
    if glob.has_magic(str(path)):
        if next(glob.iglob(str(path)), None) is None:  # noqa: PTH207 (as Spark does)
            yield Mistake("source.path", f"nothing matches {path}", _near_path(path))
    elif not path.exists():
        yield Mistake("source.path", f"{path} is not there", _near_path(path))
    elif path.is_file() and source.is_streaming:
        hint = f'write path = "{path.parent}" and, in options, pathGlobFilter = "{path.name}"; or streaming = false'
        yield Mistake("source.path", f"{path} is a file, and Spark follows folders", hint)
    elif path.is_dir() and source.schema is None and not any(path.iterdir()):
        yield Mistake("source.schema", f"{path} is empty, so that no schema can be taken from it", "give the schema")


def _near_path(path: Path) -> str:
    """Return what to do about a path that is not there: use the one next to it, or make it."""
    parent = path.parent
    if parent.is_dir():
        meant = nearest(path.name, [found.name for found in parent.iterdir()])
        if meant is not None:
            return f"did you mean {parent / meant}?"
    return "make it first; paths are relative to the spec"


def _needed(table: str, name: str, options: dict[str, spec.Option]) -> Iterator[Mistake]:
    for option in _NEEDED.get(name, ()):
        if not _given(options, option):
            yield Mistake(f"{table}.options", f"{name} needs the option {option}", f'add "{option}" = "…" to options')


def _given(options: dict[str, spec.Option], name: str) -> bool:
    return _option(options, name) is not None


def _option(options: dict[str, spec.Option], name: str) -> spec.Option | None:
    """Return an option, however its name is written: Spark does not tell a from A."""
    return next((value for option, value in options.items() if option.lower() == name.lower()), None)


def _identity(given: Spec) -> Iterator[Mistake]:
    identity = given.identity
    ways = _ways(identity)
    if not ways:
        hint = 'add column = "order_id", or expression = "…", or content = true'
        yield Mistake("identity", "nothing says what makes two rows the same record", hint)
    if len(ways) > 1:
        key = f"identity.{ways[-1]}"
        yield Mistake(key, f"{' and '.join(ways)} both say what the identity is", f"keep {ways[0]}, or {ways[-1]}")
    if identity.column is not None and re.search(r"[()+|' ]", identity.column):
        yield Mistake(
            "identity.column", f"{identity.column!r} is not a column's name", f'write expression = "{identity.column}"'
        )
    for name in ("column", "expression"):
        if getattr(identity, name) == "":
            yield Mistake(f"identity.{name}", "is empty", f"name the {name}, or remove the line")


def _ways(identity: IdentitySpec) -> list[str]:
    return [name for name in ("column", "expression", "content") if getattr(identity, name) not in {None, False}]


def _sql(given: Spec) -> Iterator[Mistake]:
    for key, sql, view in (
        ("transform.sql", given.transform.sql if given.transform else None, "source"),
        ("sink.sql", given.sink.sql if given.sink else None, "log"),
    ):
        if sql is None:
            continue
        if not re.match(r"\s*(SELECT|WITH|FROM)\b", sql, re.IGNORECASE):
            yield Mistake(key, "is not a SELECT", f"write SELECT … FROM {view}")  # noqa: S608 (a hint)
        elif not re.search(rf"\b(FROM|JOIN)\s+`?{view}\b", sql, re.IGNORECASE):
            yield Mistake(key, f"does not read {view}, where the rows are", f"write … FROM {view}")
        chance = _CHANCE.search(sql)
        if chance is not None and view == "source":
            what = f"{chance[1]}() is another each time: a retry would have other content, and be a conflict"
            yield Mistake(key, what, "leave it out of the record", severity="warning")


def _log(given: Spec) -> Iterator[Mistake]:
    log = given.log
    if not log.url:
        yield Mistake("log.url", "is empty", 'write url = "file:///var/lib/shop", or a folder')
    elif log.url.startswith("memory:"):
        yield Mistake("log.url", "a log in memory ends with the process, and Spark has several", "use a folder")
    try:
        names.check(log.name)
    except InvalidArgument as error:
        yield Mistake("log.name", str(error), "use letters, digits, - and _")
    if log.name.startswith("conflicts."):
        yield Mistake("log.name", "conflicts.… are the logs of quarantined rows", f'write name = "{log.name[10:]}"')
    if log.settings is not None:
        yield from _settings(log.settings)
    yield from _stored(given)


def _settings(settings: LogSettings) -> Iterator[Mistake]:
    try:
        log_settings.check(settings)
    except InvalidArgument as error:
        text = str(error).removeprefix("settings: ")
        key = text.split(" ", 1)[0].rstrip(":")
        yield Mistake(f"log.settings.{key}", text, "keep to the range")
    if settings.idempotence == "off":
        yield Mistake(
            "log.settings.idempotence", "off: nothing would be recognised as a repetition", 'write "explicit"'
        )


def _stored(given: Spec) -> Iterator[Mistake]:
    """Compare with the log that is there, if it is."""
    try:
        with oncelog.connect(given.log.url) as db:
            stored = db.log(given.log.name).settings
    except NotFound:
        stored = wanted_settings(given)
    except OncelogError as error:
        if given.log.url and not given.log.url.startswith("memory:"):
            yield Mistake("log.url", str(error), _url_hint(given.log.url))
        return
    if given.identity.content and stored.idempotence != "content":
        hint = 'write [log.settings] idempotence = "content", or name a column'
        yield Mistake("identity.content", f"the log's idempotence is {stored.idempotence}", hint)
    if not given.identity.content and stored.idempotence == "off":
        yield Mistake("log.name", "the log is there with idempotence off, and would take no ids", "use another log")
    wanted = given.log.settings
    kept = stored if wanted is None else log_settings.keeping_window(stored, wanted)
    different = log_settings.differences(stored, kept)
    if different:
        hint = "remove [log.settings] to take the log as it is, or give these"
        yield Mistake("log.settings", f"the log is there with other settings: {'; '.join(different)}", hint)


def _url_hint(url: str) -> str | None:
    scheme, _, rest = url.partition(":")
    meant = nearest(scheme, ("file", "s3", "gs", "az", "oncelog", "oncelog+tls", "quorum"))
    if meant is not None and meant != scheme:
        return f'write url = "{meant}:{rest}"'
    if scheme == "file" and not rest.startswith("///"):
        return f'write url = "file:///{rest.lstrip("/")}"'
    if scheme in {"s3", "gs", "az"} and not rest.startswith("//"):
        return f'write url = "{scheme}://{rest.lstrip("/")}"'
    return 'name a folder, as in url = "data", or a bucket, as in url = "s3://bucket/shop"'


def wanted_settings(given: Spec) -> LogSettings:
    """Return the settings that the pipeline creates its log with."""
    if given.log.settings is not None:
        return given.log.settings
    return LogSettings(idempotence="content" if given.identity.content else "explicit")


def _sink(given: Spec) -> Iterator[Mistake]:
    sink = given.sink
    if sink is None:
        return
    yield from _format("sink", sink.format, given)
    name = sink.format.lower()
    yield from _needed("sink", name, sink.options)
    if name in FILE_FORMATS:
        yield from _sink_path(sink, given)
    elif sink.partition_by and name != "delta":
        yield Mistake("sink.partition_by", f"{name} has no folders", "remove it")
    yield from _sink_table(sink)
    if name not in {*FILE_FORMATS, "oncelog", "delta", "iceberg"} and name in _FORMATS:
        what = f"what Spark writes to {name} may be written again after a crash: at least once, not exactly once"
        yield Mistake("sink.format", what, "let its readers deduplicate by position or id", severity="warning")


def _sink_table(sink: SinkSpec) -> Iterator[Mistake]:
    """Look at what names a table of Delta's, or of Iceberg's."""
    name = sink.format.lower()
    if name == "delta" and not sink.path:
        yield Mistake("sink.path", "no path of the Delta table is given", 'add path = "table"')
    elif name == "delta" and spec.local_path(sink.path or "") is None and not _is_bucket(sink.path):
        what = "a Delta table is written to a folder of a disk, or to a bucket"
        yield Mistake("sink.path", what, 'write path = "table", or path = "s3://bucket/table"')
    for option, example in (("table", "shop.orders"), ("uri", "sqlite:////var/lib/shop/catalog.db")):
        if name == "iceberg" and not _given(sink.options, option):
            hint = f'add {option} = "{example}" to options'
            yield Mistake("sink.options", f"iceberg needs the option {option}", hint)


def _is_bucket(path: str | None) -> bool:
    return path is not None and bucket_of(path) is not None


def _sink_path(sink: SinkSpec, given: Spec) -> Iterator[Mistake]:
    if sink.path is None:
        yield Mistake("sink.path", f"{sink.format} is written to files, and no path is given", 'add path = "folder/"')
        return
    path = spec.local_path(sink.path)
    if path is not None and path.is_file():
        yield Mistake("sink.path", f"{path} is a file, where a folder should be", "name another folder")
    if not sink.path:
        yield Mistake("sink.path", "is empty", 'write path = "folder/"')
    progress = spec.local_path(f"{given.checkpoint}/out-of-log")
    if path is not None and progress is not None and any(path.glob("batch=*")) and not progress.exists():
        what = f"{path} has batches whose progress is lost: their records would be there twice"
        yield Mistake("sink.path", what, "remove that folder, or name another")


def _run(given: Spec) -> Iterator[Mistake]:
    run = given.run
    if not _MASTER.fullmatch(run.master):
        meant = nearest(run.master, ("local[*]", "local", "yarn", "spark://host:7077"))
        yield Mistake("run.master", f"{run.master!r} is not a Spark master", f'write master = "{meant or "local[*]"}"')
    if not 0 <= run.every_s < float("inf"):
        yield Mistake("run.every_s", f"{run.every_s} is not a time to wait", "write every_s = 1.0")
    for name in run.conf:
        if not name.startswith("spark."):
            key = dotted(("run", "conf", name))
            yield Mistake(key, f"Spark would ignore {name}", f'write "spark.{name}"')
    for package in run.packages:
        if not _COORDINATE.fullmatch(package):
            hint = "write group:artifact:version, as in io.delta:delta-spark_2.13:4.0.0"
            yield Mistake("run.packages", f"{package!r} is not a Maven coordinate", hint)


def _parts(given: Spec) -> Iterator[Mistake]:
    if importlib.util.find_spec("pyspark") is None:
        yield Mistake("", "pyspark is not installed", 'pip install "oncelog[spark]"')
    if given.run.master.startswith("local") and shutil.which("java") is None:
        yield Mistake("", "there is no Java, and Spark wants 17 or newer", "install it, or set JAVA_HOME")


_CHECKS: tuple[Check, ...] = (_name, _source, _identity, _sql, _log, _sink, _run, ownership.check, _parts)
