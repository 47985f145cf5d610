"""Mistakes in a spec, all of them at once: what, on which line, and what was probably meant."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

import msgspec

from oncelog.errors import InvalidArgument
from oncelog.redaction import redacted
from oncelog.spark.pipeline import lines
from oncelog.spark.pipeline.spec import Spec

_SYNTAX = re.compile(r" \(at (?:line (?P<line>\d+), column \d+|end of document)\)$")
_QUOTES = " \"'\u201c\u201d\u2018\u2019"
_WORDS = {"str": "text", "object": "a table", "array": "a list", "bool": "true or false", "int": "a number",
          "float": "a number", "null": "nothing"}  # fmt: skip
_MSGSPEC_PLACE = re.compile(r" - at `[^`]*`$")


class Mistake(msgspec.Struct, frozen=True):
    """Something in a spec that is wrong (an *error*), or works and is hardly what is wanted (a *warning*)."""

    key: str
    what: str
    suggestion: str | None = None
    line: int | None = None
    severity: Literal["error", "warning"] = "error"

    def __post_init__(self) -> None:
        """Take passwords out: what is wrong with an option is said with the option."""
        msgspec.structs.force_setattr(self, "what", redacted(self.what))
        if self.suggestion is not None:
            msgspec.structs.force_setattr(self, "suggestion", redacted(self.suggestion))


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A spec as it was read: what it says, if it says anything, where, and what is wrong with it."""

    spec: Spec | None
    mistakes: list[Mistake]
    places: dict[lines.Path, int] = {}


def read(path: Path) -> Read:
    """Return a spec from a file, with every mistake in its form."""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        return Read(spec=None, mistakes=[Mistake("", "the file is not UTF-8 text", "save it as UTF-8")])
    except IsADirectoryError:
        return Read(spec=None, mistakes=[Mistake("", "is a folder, not a file", "name the file in it")])
    if not text.strip():
        hint = f"oncelog pipeline init {path.with_name('other.toml').name} writes one to begin with"
        return Read(spec=None, mistakes=[Mistake("", "the file is empty", hint, 1)])
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return Read(spec=None, mistakes=[_syntax(text, error)])
    places = lines.lines_of(text)
    found = [_with_line(mistake, places) for mistake in check_form(given)]
    spec = None if found else msgspec.convert(given, Spec)
    return Read(spec=spec, mistakes=found, places=places)


def load(path: Path) -> Spec:
    """Return a spec from a file; ``InvalidArgument`` that names every mistake in its form."""
    found = read(path)
    if found.spec is None:
        message = f"{path}: " + "; ".join(one_line(mistake) for mistake in found.mistakes)
        raise InvalidArgument(message)
    return found.spec


def one_line(mistake: Mistake) -> str:
    """Return a mistake as one line of text."""
    where = f"line {mistake.line}: " if mistake.line is not None else ""
    key = f"{mistake.key}: " if mistake.key else ""
    return where + key + mistake.what + (f" ({mistake.suggestion})" if mistake.suggestion else "")


def _syntax(text: str, error: tomllib.TOMLDecodeError) -> Mistake:
    message = str(error)
    match = _SYNTAX.search(message)
    line = int(match["line"]) if match and match["line"] else text.count("\n") + 1
    hint = next(_syntax_hints(text.splitlines()[line - 1] if line <= len(text.splitlines()) else "", message))
    what = message[: match.start()] if match else message
    return Mistake("", f"not TOML: {what[:1].lower()}{what[1:]}", hint, line)


def _syntax_hints(line: str, message: str) -> Iterator[str]:
    """Yield what was probably meant, what is most probable first."""
    key, equals, value = line.partition("=")
    if message.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate")):
        yield f"{(key if equals else line).strip()} is there already: keep one of the two"
    if re.search("[\u201c\u201d\u2018\u2019]", value):
        yield f'use straight quotes: {key.strip()} = "{value.strip(_QUOTES)}"'
    if "\\" in value:
        yield f"write / for \\, or use single quotes: {key.strip()} = '{value.strip(_QUOTES)}'"
    if value.count('"') % 2 and '"""' not in value:
        yield f'close the quotes: {line.strip()}"'
    if line.lstrip().startswith("[") and not line.partition("#")[0].rstrip().endswith("]"):
        yield f"close the bracket: {line.strip()}]"
    if not equals and ":" in line:
        yield "write key = value, not key: value"
    if value.strip() in {"True", "False"}:
        yield f"write {key.strip()} = {value.strip().lower()}"
    if equals and re.match(r"\s*[A-Za-z/.~]", value):
        yield f'put text into quotes: {key.strip()} = "{value.strip()}"'
    yield "look at this line, and at the one before it"


def _with_line(mistake: Mistake, places: dict[lines.Path, int]) -> Mistake:
    return msgspec.structs.replace(mistake, line=lines.line_of(places, lines.parts(mistake.key)))


def check_form(given: Mapping[str, object]) -> list[Mistake]:
    """Return what is wrong with the tables and keys of a spec, and with the types of their values."""
    return list(_check_table((), given, Spec))


def _check_table(path: lines.Path, given: Mapping[str, object], shape: type[msgspec.Struct]) -> Iterator[Mistake]:
    fields = {field.name: field for field in msgspec.structs.fields(shape)}
    for key, value in given.items():
        if key not in fields:
            yield _unknown(path, key, fields, shape)
            continue
        inner = table_type(fields[key].type)
        if inner is not None and isinstance(value, dict):
            yield from _check_table((*path, key), value, inner)
        else:
            yield from _check_value((*path, key), value, fields[key].type)
    for name, field in fields.items():
        misspelt = any(nearest(key, fields) == name for key in given if key not in fields)
        if field.required and name not in given and not misspelt:
            yield _missing(path, name, field.type)


def table_type(kind: Any) -> type[msgspec.Struct] | None:
    """Return the table that a field is, if it is one."""
    kind = _plain(kind)
    if get_origin(kind) is UnionType or str(get_origin(kind)) == "typing.Union":
        kinds = [part for part in get_args(kind) if part is not NoneType]
        return table_type(kinds[0]) if len(kinds) == 1 else None
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if hasattr(kind, "__metadata__") else kind


def _check_value(path: lines.Path, value: object, kind: Any) -> Iterator[Mistake]:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what = _in_words(_MSGSPEC_PLACE.sub("", str(error)).replace("`", ""))
        yield Mistake(dotted(path), f"{what[:1].lower()}{what[1:]}", _value_hint(path[-1], value, kind))


def _in_words(message: str) -> str:
    """Return what is wrong with a type in the words of people who write specs.

    >>> _in_words("Expected str | null, got array")
    'Expected text, got a list'
    """
    found = re.fullmatch(r"Expected ([a-z |]+), got (\w+)", message)
    if found is None:
        return message
    wanted = dict.fromkeys(_WORDS.get(word, word) for word in found[1].split(" | ") if word != "null")
    return f"Expected {' or '.join(wanted)}, got {_WORDS.get(found[2], found[2])}"


def _value_hint(key: str, value: object, kind: Any) -> str | None:
    choices = _choices(kind)
    if choices and isinstance(value, str):
        meant = nearest(value, choices)
        return f'write {key} = "{meant}"' if meant else f"use one of {', '.join(choices)}"
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return f"write {key} = {value.lower()}, without quotes"
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value):
        return f"write {key} = {value}, without quotes"
    if isinstance(value, str) and "tuple" in str(kind):
        return f'write {key} = ["{value}"]'
    if isinstance(value, bool | int | float):
        return f'write {key} = "{value}"'
    return _shape_hint(key, value, kind)


def _shape_hint(key: str, value: object, kind: Any) -> str | None:
    """Return what to write for a value that is of another shape: a table, a list, or one of their parts."""
    if table_type(kind) is not None:
        only = isinstance(value, list)
        return f"write [{key}], with one pair of brackets" if only else f"write [{key}], and its keys below it"
    if isinstance(value, str):
        return f'write {key} = {{ NAME = "…" }}'
    if isinstance(value, dict):
        name, inner = next(_nested(value), ("", None))
        written = f'"{inner}"' if isinstance(inner, str | list | dict) else str(inner).lower()
        return f'write "{name}" = {written}: a name with dots is in quotes' if name else None
    if isinstance(value, list) and value and "tuple" in str(kind):
        return f"write {key} = [{', '.join(_quoted(one) for one in value)}]"
    return f"write {key} = {_quoted(value[0])}" if isinstance(value, list) and value else None


def _quoted(value: object) -> str:
    return f'"{value}"'


def _nested(table: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """Yield what is in tables within a table, under names with dots."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _nested(value, f"{before}{name}.")
        elif before or isinstance(value, list):
            yield f"{before}{name}", ", ".join(map(str, value)) if isinstance(value, list) else value


def _choices(kind: Any) -> list[str]:
    kind = _plain(kind)
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    return []


_TABLES = {field.name for field in msgspec.structs.fields(Spec) if table_type(field.type) is not None}


def _unknown(path: lines.Path, key: str, fields: Iterable[str], shape: type[msgspec.Struct]) -> Mistake:
    where = f"[{dotted(path)}]" if path else "a spec"
    meant = nearest(key, list(fields))
    home = _home_of(key)
    if meant is not None:
        hint = f"did you mean {meant}?"
    elif home == () and key in _TABLES:
        hint = f"write [{key}], and its keys below it"
    elif home is not None and home != path:
        hint = f"it belongs into [{dotted(home)}]" if home else "it belongs before the first table"
    else:
        hint = f"there is {', '.join(fields)}"
        if "options" in shape.__struct_fields__:
            hint += "; what the format itself takes goes into options"
    return Mistake(dotted((*path, key)), f"{where} has no {key}", hint)


def _home_of(key: str) -> lines.Path | None:
    """Return the table that has such a key."""
    if key in Spec.__struct_fields__:
        return ()
    for field in msgspec.structs.fields(Spec):
        table = table_type(field.type)
        if table is not None and key in table.__struct_fields__:
            return (field.name,)
    return None


def _missing(path: lines.Path, name: str, kind: Any) -> Mistake:
    inner = table_type(kind)
    if inner is not None:
        return Mistake(name, f"there is no [{name}]", f"add [{name}]: {_first_sentence(inner)}")
    hint = f'add {name} = "…"{_description(kind)}'
    where = f"[{dotted(path)}]" if path else "the spec"
    return Mistake(dotted((*path, name)), f"{where} lacks {name}", hint)


def _first_sentence(shape: type) -> str:
    text = (shape.__doc__ or "").split(".")[0].split(":")[0]
    return text[:1].lower() + text[1:]


def _description(kind: Any) -> str:
    for meta in getattr(kind, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.description:
            return f": {meta.description[:1].lower()}{meta.description[1:]}"
    return ""


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that was probably meant."""
    by_lower = {choice.lower().replace("-", "_"): choice for choice in choices}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), by_lower, 1, 0.7)
    return by_lower[found[0]] if found else None


def dotted(path: lines.Path) -> str:
    """Return a path as it is written in TOML."""
    return ".".join(part if re.fullmatch(r"[\w-]+", part) else f'"{part}"' for part in path)
