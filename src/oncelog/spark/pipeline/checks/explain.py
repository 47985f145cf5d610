"""A spec in sentences: what each step does, and what it promises."""

from __future__ import annotations

from oncelog.redaction import redacted
from oncelog.spark.pipeline.checks import check
from oncelog.spark.pipeline.rows import source_files
from oncelog.spark.pipeline.spec import FILE_FORMATS, Spec

_CHANGED = {
    "rescue": "is kept in _rescued",
    "widen": "becomes a column in the next run, or is kept in _rescued",
    "fail": "stops the pipeline",
}


def explain(given: Spec) -> list[tuple[str, str]]:
    """Return the steps of a pipeline, each with what it does and promises."""
    steps = [("source", _source(given))]
    if source_files.is_read_here(given):
        steps.append(("bad rows", _bad_rows(given)))
    if given.transform is not None:
        steps.append(("transform", " ".join(given.transform.sql.split())))
    steps += [("identity", _identity(given)), ("log", _log(given)), ("conflicts", _conflicts(given))]
    steps.append(("sink", _sink(given)))
    steps.append(("progress", f"kept in {given.checkpoint}; run on {given.run.master}"))
    return steps


def _source(given: Spec) -> str:
    source = given.source
    where = source.path or source.options.get("subscribe") or source.options.get("dbtable") or ""
    how = "what is new since the last run" if source.is_streaming else "all there is, on each run"
    return f"{source.format} {where}: {how}"


def _identity(given: Spec) -> str:
    identity = given.identity
    if identity.content:
        return "rows that are equal are one record"
    return f"rows with the same {identity.column or identity.expression} are one record"


def _log(given: Spec) -> str:
    window = check.wanted_settings(given).window
    how_long = "as long as its record is in the log"
    if window.duration_s is not None:
        how_long = f"for {window.duration_s:,.0f} s of the log's up-time, and {window.max_keys:,} ids at most"
    return f"{given.log.name} at {redacted(given.log.url)}: each record once; an id is remembered {how_long}"


def _bad_rows(given: Spec) -> str:
    bad = {
        "quarantine": f"what cannot be read goes to the log {given.log.rejected}, with file and line",
        "fail": "what cannot be read stops the pipeline",
        "drop": "what cannot be read is counted only",
    }[given.source.on_bad_row]
    changed = _CHANGED[given.source.schema_changes]
    return f"{bad}; a field that the schema has no place for {changed}"


def _conflicts(given: Spec) -> str:
    return {
        "quarantine": f"the same id with other content goes to the log {given.log.conflicts}; the first stands",
        "error": "the same id with other content stops the pipeline",
        "original": "the same id with other content is dropped; the first stands",
    }[given.log.on_conflict]


def _sink(given: Spec) -> str:
    sink = given.sink
    if sink is None:
        return "none: the records stay in the log"
    name = sink.format.lower()
    if name in FILE_FORMATS:
        return (
            f"{name} in {sink.path}: exactly once; each batch is a folder whose files the first manifest of that batch "
            "names"
        )
    if name == "delta":
        return f"delta in {sink.path}: exactly once; each batch is one commit, with a transaction that is looked up"
    if name == "iceberg":
        return f"iceberg, table {sink.options.get('table')}: exactly once; each batch is one commit, with its number"
    if name == "oncelog":
        return f"the log {sink.options.get('log')}: exactly once, by the records' ids"
    return f"{name}: at least once, as Spark writes it; a crash may repeat the last batch"
