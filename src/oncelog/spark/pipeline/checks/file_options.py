"""Checking the options of a source of files.

Oncelog reads json, csv and parquet itself. An option of Spark's reader that it does not have would do nothing, and the
rows would not be what was asked for. So it is a mistake.
"""

from __future__ import annotations

from collections.abc import Iterator

from oncelog.spark.pipeline.mistakes import Mistake, dotted, nearest
from oncelog.spark.pipeline.rows import source_files
from oncelog.spark.pipeline.spec import Option, SourceSpec

_TYPES = ("timestampFormat", "dateFormat", "timestampNTZFormat", "inferSchema", "samplingRatio")
_TEXT = ("encoding", "charset", "multiLine", *_TYPES)
_TAKEN = {
    "csv": ("sep", "delimiter", "quote", "escape", "header", "nullValue", "preferDate", *_TEXT),
    "json": (
        "timeZone",
        "locale",
        "primitivesAsString",
        "prefersDecimal",
        "dropFieldIfAllNull",
        "inferTimestamp",
        *_TEXT,
    ),
    "parquet": ("mergeSchema",),
}
"""Options that the reader of a format has, or that are for taking the schema from files."""

_SPARKS = (
    "header",
    "delimiter",
    "sep",
    "multiLine",
    "mode",
    "encoding",
    "timestampFormat",
    "dateFormat",
    "inferSchema",
)
_ON_BAD_ROW = "remove it: on_bad_row, beside path, says what becomes of a row that cannot be read"
_TRIM = "remove it: trim(…) in transform.sql takes spaces off"
_INSTEAD = {
    "mode": _ON_BAD_ROW,
    "columnnameofcorruptrecord": _ON_BAD_ROW,
    "badrecordspath": _ON_BAD_ROW,
    "ignoreleadingwhitespace": _TRIM,
    "ignoretrailingwhitespace": _TRIM,
    "emptyvalue": "remove it: an empty cell is null, in quotes or not",
    "comment": "remove it, and have files without comments written: a comment is rejected if it is no row",
    "linesep": "remove it: a line feed ends a line",
    "enforceschema": "remove it: the header of each file names its cells",
}
_CHARACTERS = {"sep", "delimiter", "quote", "escape"}


def check(source: SourceSpec) -> Iterator[Mistake]:
    """Look at the name and the value of each option."""
    name = source.format.lower()
    for option, value in source.options.items():
        key = dotted(("source", "options", option))
        yield from _name(name, key, option, value) if name in _TAKEN else _name_for_spark(key, option)
        if option.lower() == "maxfilespertrigger" and (not str(value).isdecimal() or int(value) < 1):
            yield Mistake(key, f"{value!r} is not a number of files", f"write {option} = 100")
        if name == "csv":
            yield from _csv_value(key, option, str(value))
        if name in _TAKEN and option.lower() in {"encoding", "charset"} and not _is_encoding(str(value)):
            yield Mistake(key, f"no encoding is called {value!r}", f'write {option} = "utf-8", or "iso-8859-1", …')


def _name(format: str, key: str, option: str, value: Option) -> Iterator[Mistake]:
    known = (*source_files.LISTING, *_TAKEN[format])
    if option.lower() in map(str.lower, known) or source_files.is_of_storage(option):
        return
    if option.lower() == "mode" and str(value).lower() == "permissive":
        return  # as Oncelog reads
    meant = nearest(option, known)
    instead = _INSTEAD.get(option.lower(), "remove it" if meant is None else f"did you mean {meant}?")
    yield Mistake(key, f"Oncelog reads {format} itself, and has no option {option}: it would do nothing", instead)


def _name_for_spark(key: str, option: str) -> Iterator[Mistake]:
    meant = nearest(option, (*source_files.LISTING, *_SPARKS))
    if meant is not None and meant.lower() != option.lower():
        yield Mistake(key, f"Spark would ignore {option}", f"did you mean {meant}?", severity="warning")


def _csv_value(key: str, option: str, value: str) -> Iterator[Mistake]:
    name, text = option.lower(), value.replace("\\t", "\t")
    if name in _CHARACTERS and len(text) > 1:
        yield Mistake(key, f"{value!r} is more than one character", "name one character")
    elif name in {"sep", "delimiter"} and text in {"", "\n", "\r"}:
        yield Mistake(key, f"{value!r} cannot separate cells", f'write {option} = ";"')
    if name == "header" and value.lower() not in {"true", "false"}:
        yield Mistake(key, f"{value!r} is neither true nor false", f"write {option} = true")


def _is_encoding(name: str) -> bool:
    try:
        b" ".decode(name)  # of no bytes, Python would not look the name up
    except UnicodeError:
        return True
    except (LookupError, ValueError):
        return False
    return True
