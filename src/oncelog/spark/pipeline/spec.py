"""A pipeline as data: where records come from, what identifies a record, which log keeps them, which sink gets them.

A spec is a TOML file. Paths in it are relative to the file. ``check`` finds its mistakes; ``template`` writes one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from oncelog.settings import LogSettings

Option = str | bool | int | float
OnConflict = Literal["quarantine", "error", "original"]
OnBadRow = Literal["quarantine", "fail", "drop"]
SchemaChanges = Literal["rescue", "widen", "fail"]

FILE_FORMATS = ("csv", "json", "orc", "parquet", "text")
"""What Spark reads from, and writes to, a folder."""

STREAMING_FORMATS = (*FILE_FORMATS, "delta", "kafka", "oncelog", "rate", "rate-micro-batch", "socket")
"""What Spark can follow. Anything else is read once, as a whole."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


class SourceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where records come from: anything that Spark reads."""

    format: Annotated[str, Meta(description="A Spark format: json, csv, parquet, kafka, jdbc, oncelog, …")]
    path: Annotated[str | None, Meta(description="The folder, or pattern of folders, of files")] = None
    schema: Annotated[str | None, Meta(description="Columns and types; without it, taken from the files there are")] = (
        None
    )
    streaming: Annotated[
        bool | None, Meta(description="Whether to read what is new since last time; by the format if not given")
    ] = None
    on_bad_row: Annotated[
        OnBadRow, Meta(description="What becomes of a row that cannot be read: quarantine, fail or drop")
    ] = "quarantine"
    schema_changes: Annotated[
        SchemaChanges, Meta(description="What becomes of a field that is not in the schema: rescue, widen or fail")
    ] = "rescue"
    lineage: Annotated[bool, Meta(description="Whether each record has its file, line and batch, as headers")] = False
    options: Annotated[dict[str, Option], Meta(description="What the format takes, in Spark's words")] = {}

    @property
    def is_streaming(self) -> bool:
        """Whether Spark follows the source, or reads it once."""
        return self.format.lower() in STREAMING_FORMATS if self.streaming is None else self.streaming


class Transform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of rows before they are records."""

    sql: Annotated[str, Meta(description="A SELECT from the view source; its columns are the record")]


class IdentitySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What makes two rows the same record: exactly one of the three."""

    column: Annotated[str | None, Meta(description="A column whose text is the id")] = None
    expression: Annotated[str | None, Meta(description="A SQL expression whose text is the id")] = None
    content: Annotated[bool, Meta(description="Rows that are equal are one; the log's idempotence is content")] = False


class Columns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Columns that become more than a part of the value."""

    stream: Annotated[str | None, Meta(description="The column of the record's stream")] = None
    type: Annotated[str | None, Meta(description="The column of the record's type")] = None
    tenant: Annotated[str | None, Meta(description="The column of the record's tenant")] = None


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log that keeps the records; it is created if it is not there."""

    url: Annotated[str, Meta(description="The database, as in file:///var/lib/shop; a plain path is a folder")]
    name: Annotated[str, Meta(description="The log's name")]
    value: Annotated[str, Meta(description="json: the whole row; or the name of a binary or text column")] = "json"
    on_conflict: Annotated[OnConflict, Meta(description="What becomes of a row whose id is taken by other content")] = (
        "quarantine"
    )
    columns: Annotated[Columns, Meta(description="Columns that become stream, type, tenant")] = Columns()
    settings: Annotated[LogSettings | None, Meta(description="Settings to create the log with, as in LogSettings")] = (
        None
    )

    @property
    def conflicts(self) -> str:
        """The log that quarantined rows are read from."""
        return f"conflicts.{self.name}"

    @property
    def rejected(self) -> str:
        """The log that rejected rows are kept in."""
        return f"rejected.{self.name}"


class SinkSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the log's records go on to: anything that Spark writes."""

    format: Annotated[str, Meta(description="A Spark format: parquet, json, csv, delta, kafka, oncelog, …")]
    path: Annotated[str | None, Meta(description="The folder to write")] = None
    sql: Annotated[str | None, Meta(description="A SELECT from the view log; all of its columns if not given")] = None
    partition_by: Annotated[tuple[str, ...], Meta(description="Columns to make folders of")] = ()
    options: Annotated[dict[str, Option], Meta(description="What the format takes, in Spark's words")] = {}


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the pipeline runs."""

    checkpoint: Annotated[
        str | None, Meta(description="Where Spark notes how far it is; .oncelog/NAME beside the spec if not given")
    ] = None
    master: Annotated[str, Meta(description="The Spark to run on: local[*], spark://host:7077, yarn, k8s://…")] = (
        "local[*]"
    )
    every_s: Annotated[float, Meta(description="With --follow: the least time from one batch to the next")] = 1.0
    conf: Annotated[dict[str, Option], Meta(description="Spark's own settings, spark.…")] = {}
    packages: Annotated[tuple[str, ...], Meta(description="Maven coordinates of formats that Spark lacks")] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The page that a run writes."""

    path: Annotated[str | None, Meta(description="The HTML file; report.html in the checkpoint if not given")] = None


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline."""

    name: Annotated[str, Meta(description="What the pipeline is called; its progress is kept under this name")]
    source: SourceSpec
    identity: IdentitySpec
    log: Target
    transform: Transform | None = None
    sink: SinkSpec | None = None
    run: RunSpec = RunSpec()
    report: Report = Report()

    @property
    def checkpoint(self) -> str:
        """Where Spark notes how far it is."""
        return self.run.checkpoint or f".oncelog/{self.name}"


def placed(spec: Spec, folder: Path) -> Spec:
    """Return a spec whose relative paths are made absolute, from the folder that the file is in."""
    replace = msgspec.structs.replace
    sink = spec.sink
    return replace(
        spec,
        source=replace(
            spec.source, path=place(spec.source.path, folder), options=_options(spec.source.options, folder)
        ),
        log=replace(spec.log, url=url_of(spec.log.url, folder)),
        sink=sink
        if sink is None
        else replace(sink, path=place(sink.path, folder), options=_options(sink.options, folder)),
        run=replace(spec.run, checkpoint=place(spec.checkpoint, folder)),
        report=replace(spec.report, path=place(spec.report.path, folder)),
    )


def _options(options: dict[str, Option], folder: Path) -> dict[str, Option]:
    """Return options in which the URL of a database, if there is one, is absolute."""
    return {
        name: url_of(value, folder) if name.lower() == "url" and isinstance(value, str) else value
        for name, value in options.items()
    }


def place(path: str | None, folder: Path) -> str | None:
    """Return a path that does not depend on where one is; one with a scheme, such as s3a://, stays."""
    if not path or _SCHEME.match(path):
        return path
    return os.path.normpath(folder.absolute() / Path(path).expanduser())


def url_of(url: str, folder: Path) -> str:
    """Return a database's URL; a plain path is a folder."""
    if _SCHEME.match(url) or not url:
        return url
    return Path(place(url, folder) or "").as_uri()


def local_path(path: str) -> Path | None:
    """Return a path of this machine, ``None`` when it is somewhere else."""
    if path.startswith("file:"):
        return Path(re.sub(r"^file:(//)?", "", path))
    return None if _SCHEME.match(path) else Path(path)


def batches_expected(given: Spec) -> int | None:
    """Return how many batches all there is makes, where that can be told: of files on this machine, so many a batch."""
    source = given.source
    path = local_path(source.path) if source.path is not None else None
    a_batch = {name.lower(): value for name, value in source.options.items()}.get("maxfilespertrigger")
    if path is None or a_batch is None or not path.is_dir() or not source.is_streaming:
        return None
    files = sum(found.is_file() and not found.name.startswith((".", "_")) for found in path.iterdir())
    return -(-files // int(a_batch))
