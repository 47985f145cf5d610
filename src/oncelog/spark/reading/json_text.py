"""JSON as strictly as a record deserves: each object once, with no key twice, and nothing behind it.

Spark's reader takes the last of two equal keys, drops fields that the schema has not, and drops what follows the first
object of a line, all without a word. So each line is looked at before Spark has it: quickly by msgspec, which refuses
what is no JSON and what has more behind it, and by counts of keys; and closely where that is not enough.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog.shapes import UNREADABLE
from oncelog.spark.reading import exact
from oncelog.spark.reading.rows import ROW_BYTES_MAX, Clean, Piece, Rejected, TextRow

Shape = Mapping[str, Any]
"""Fields by name: a ``Shape`` for an object, ``[shape]`` for a list, ``(shape,)`` for a map by text, the name of a
simple type, ``None`` for any."""

_SPACE = re.compile(r"[ \t\r\n]*")
_INTEGER = re.compile(r"-?\d{1,20}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_DIGITS_MAX = 1000
"""Spark's parser gives a row up for a longer number."""

_NOT_FINITE = {"NaN", "Infinity", "-Infinity", "+INF", "INF", "-INF", "+Infinity"}
_WHOLE = {"byte": 1 << 7, "short": 1 << 15, "integer": 1 << 31, "long": 1 << 63}
_TYPES: dict[str, Any] = {
    **{name: Annotated[int, msgspec.Meta(ge=-size, le=size - 1)] for name, size in _WHOLE.items()},
    "double": float,
    "float": Annotated[float, msgspec.Meta(gt=-exact.FLOAT_MAX, lt=exact.FLOAT_MAX)],
    "boolean": bool,
    "string": str,
    "date": Annotated[str, msgspec.Meta(pattern=exact.DATE)],
    "timestamp": Annotated[str, msgspec.Meta(pattern=exact.MOMENT)] | int,
    "timestamp_ntz": Annotated[str, msgspec.Meta(pattern=exact.MOMENT)],
}
_IN_ZONE = Annotated[str, msgspec.Meta(pattern=exact.ZONED)] | int
_SPACED_KEY = re.compile(rb'"[ \t\r]')
_LINE_FEED, _RETURN, _OPEN, _CLOSE, _QUOTE, _COLON = b'\n\r{}":'
_SPACES = np.frombuffer(b" \t\r", np.uint8)


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


class _Wrong(ValueError):
    """What is wrong with a line."""


def _refuse(text: str) -> NoReturn:
    message = f"{text} is no number of JSON"
    raise _Wrong(message)


def _number(text: str) -> _Number:
    if len(text) > _DIGITS_MAX:
        message = f"a number has more than {_DIGITS_MAX:,} digits"
        raise _Wrong(message)
    return _Number(text)


def _pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(found)
    if len(made) < len(found):
        names = [name for name, _ in found]
        message = f"key {next(name for name in names if names.count(name) > 1)!r} is there twice"
        raise _Wrong(message)
    return made


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_float=_number, parse_int=_number, parse_constant=_refuse, strict=True
)


class JsonParser:
    """Finds the objects of one file."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._nested = [at for at, kind in enumerate(shape.values()) if not isinstance(kind, str)]
        self._decimals = [(at, kind) for at, kind in enumerate(shape.values()) if _has_decimal(kind)]
        decoder = msgspec.json.Decoder(_struct(shape))
        self._decode, self._decode_lines = decoder.decode, decoder.decode_lines
        self._fields = [operator.attrgetter(f"f{at}") for at in range(len(shape))]

    def lines(self, chunks: Iterator[list[bytes]], number: int) -> Iterator[Clean | list[Piece]]:
        """Yield the values of lines that are parsed one by one; ``number`` is that of the first line."""
        for chunk in chunks:
            yield self._clean(chunk, number) or self._lines(chunk, number)
            number += len(chunk)

    def pieces(self, chunks: Iterator[list[bytes]]) -> Iterator[Clean | list[Piece]]:
        """Yield what is in a file, in lists: by the line, or as a whole where its objects span lines."""
        number = 1
        first: list[bytes] = []
        for chunk in chunks:
            first = chunk
            if any(line.strip() for line in chunk):
                break
            number += len(chunk)
        if spans_lines(first):
            yield from self._document(b"".join([*first, *(line for chunk in chunks for line in chunk)]), number)
            return
        yield from self.lines(itertools.chain([first] if first else [], chunks), number)

    def _clean(self, chunk: list[bytes], number: int) -> Clean | None:
        """Return lines that are all clean, looked at together; ``None`` if a line may not be.

        Every line begins with a brace and ends with one. No object has such a line end in it, so each line is one
        object or more; with as many objects as lines, it is one. For keys see ``_is_clean``: no line has fewer of
        ``":`` than fields; with as many of those in all lines as fields in all objects, each line has as many.
        """
        data = b"".join(chunk)
        if len(data) > ROW_BYTES_MAX:
            return None
        ends = _ends(data)
        colons = _colons(data, ends)
        if colons is None:
            return None
        try:
            objects = self._decode_lines(data)
        except UNREADABLE:
            return None
        columns = [list(map(field, objects)) for field in self._fields]
        missing = [column.count(msgspec.UNSET) for column in columns]
        fields = len(objects) * len(columns) - sum(missing)
        fields += sum(_count(value) for at in self._nested for value in columns[at])
        if len(objects) != len(chunk) or colons != fields:
            return None
        if not all(_is_within(value, kind) for at, kind in self._decimals for value in columns[at]):
            return None
        for at, absent in enumerate(missing):
            if absent:
                columns[at] = [None if value is msgspec.UNSET else value for value in columns[at]]
        return Clean(number, data, ends, columns)

    def _lines(self, chunk: list[bytes], number: int) -> list[Piece]:
        found: list[Piece] = []
        for at, line in enumerate(chunk):
            if self._is_clean(line):
                found.append(TextRow(number + at, line.decode()))
            else:
                found += self._line(line, number + at)
        return found

    def _is_clean(self, line: bytes) -> bool:
        """Tell whether a line is one object whose fields are all known, none of them twice; ``False`` if in doubt.

        Every key of a line is followed by ``":`` where no space stands behind a quote. So there are at least as many of
        those as keys, and as many as fields only if no key is there twice.
        """
        if len(line) > ROW_BYTES_MAX or _SPACED_KEY.search(line):
            return False
        try:
            values = msgspec.structs.astuple(self._decode(line))
        except UNREADABLE:
            return False
        fields = len(values) - values.count(msgspec.UNSET)
        for at in self._nested:
            fields += _count(values[at])
        return line.count(b'":') == fields and all(_is_within(values[at], kind) for at, kind in self._decimals)

    def _line(self, line: bytes, number: int) -> Iterator[Piece]:
        """Yield the objects of a line: one, or those of a list."""
        if not line.strip():
            return
        try:
            text = line.decode()
            start = _SPACE.match(text, 0).end()  # type: ignore[union-attr]  # it matches nothing, too
            if text[start] == "[":
                yield from self._elements(text, number)
                return
            value, end = _DECODER.raw_decode(text, start)
            if text[end:].strip():
                message = "there is more on the line behind the object"
                raise _Wrong(message)
            yield self._row(value, text, number)
        except (ValueError, RecursionError) as error:
            yield Rejected(number, line, _reason(error))

    def _document(self, data: bytes, number: int) -> Iterator[list[Piece]]:
        """Yield the objects of a text that is one list, or objects that span lines."""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            yield [Rejected(number, data, _reason(error))]
            return
        yield list(self._elements(text, number))

    def _elements(self, text: str, number: int) -> Iterator[Piece]:
        """Yield the objects of a list, or of a run of objects; what cannot be read is one piece, to the end."""
        at = _SPACE.match(text, 0).end()  # type: ignore[union-attr]  # as above
        listed = text.startswith("[", at)
        at += listed
        closed, first = not listed, True
        line, counted = number, 0
        while (at := _SPACE.match(text, at).end()) < len(text):  # type: ignore[union-attr]  # as above
            if listed and text[at] == "]":
                closed, at = True, at + 1
                break
            begin = at
            try:
                if listed and not first:
                    at = _after_comma(text, at)
                begin = at
                value, at = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                yield Rejected(line + text.count("\n", counted, begin), text[begin:].encode(), _reason(error))
                return
            line, counted = line + text.count("\n", counted, begin), begin
            yield self._row(value, text[begin:at], line)
            first = False
        if text[at:].strip():
            yield Rejected(line, text[at:].encode(), "there is more behind the list")
        elif not closed:
            yield Rejected(line, b"", "the list has no end: the file is cut short")

    def _row(self, value: Any, text: str, number: int) -> Piece:
        if not isinstance(value, dict):
            return Rejected(number, text.encode(), "is not an object")
        if len(text) > ROW_BYTES_MAX:
            return Rejected(number, text.encode(), f"has more than {ROW_BYTES_MAX:,} bytes")
        if _SURROGATE.search(text) and not _is_text(value):
            return Rejected(number, text.encode(), "has half of a surrogate pair, which is no text")
        if _has_bare(value, self._shape):
            return TextRow(number, _text(_spelled(value, self._shape)), rescued=_rescued(value, self._shape))
        return TextRow(number, text, rescued=_rescued(value, self._shape))


def _ends(data: bytes) -> NDArray[np.int64]:
    """Return where each line ends; the last one may have no line feed."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_FEED) + 1
    return ends if data.endswith(b"\n") else np.append(ends, len(data))


def _colons(data: bytes, ends: NDArray[np.int64]) -> int | None:
    """Return how often ``":`` is in lines that each begin and end with a brace; ``None`` if one does not, or if a space
    stands behind a quote.
    """
    found = np.frombuffer(data, np.uint8)
    first = np.concatenate(([0], ends[:-1]))
    last = ends - 1 - (found[ends - 1] == _LINE_FEED)
    last -= found[last] == _RETURN
    if (found[first] != _OPEN).any() or (found[last] != _CLOSE).any():
        return None
    behind = found[np.flatnonzero(found[:-1] == _QUOTE) + 1]
    return None if np.isin(behind, _SPACES).any() else int(np.count_nonzero(behind == _COLON))


def _after_comma(text: str, at: int) -> int:
    if text[at] != ",":
        message = "a comma is missing between two objects"
        raise _Wrong(message)
    return _SPACE.match(text, at + 1).end()  # type: ignore[union-attr]  # as above


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    return str(error) if isinstance(error, _Wrong) else f"is not JSON: {error.msg if hasattr(error, 'msg') else error}"


def spans_lines(chunk: list[bytes]) -> bool:
    """Tell whether a file begins with a list over lines, or an object over lines."""
    first = next((line for line in chunk if line.strip()), b"")
    if first.lstrip().startswith(b"["):
        return not first.rstrip().endswith(b"]")
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        pass
    else:
        return False
    if not first.strip() or not first.lstrip().startswith(b"{"):
        return False
    try:
        text = b"".join(chunk).decode(errors="replace")
        _, end = json.JSONDecoder().raw_decode(text, len(text) - len(text.lstrip()))
    except (ValueError, RecursionError):
        return first.strip() in {b"{", b"[{"}  # longer than a chunk
    return "\n" in text[:end].strip()


def _struct(shape: Shape) -> type[msgspec.Struct]:
    """Return a type that msgspec decodes an object of this shape to; fields that are not there stay unset."""
    fields = [
        (f"f{at}", _type(kind) | None | msgspec.UnsetType, msgspec.UNSET) for at, kind in enumerate(shape.values())
    ]
    names = {f"f{at}": name for at, name in enumerate(shape)}
    return msgspec.defstruct("Object", fields, rename=names, forbid_unknown_fields=True, gc=False)


def _type(shape: Any) -> Any:
    if isinstance(shape, Mapping):
        return _struct(shape)
    if isinstance(shape, list):
        return list[_type(shape[0]) | None]  # type: ignore[misc]  # a type that is made here
    if isinstance(shape, tuple):  # in the place of a text, Spark writes a whole number and a truth value as they stand
        inner = str | int | bool if shape[0] == "string" else _type(shape[0])
        return dict[str, inner | None]  # type: ignore[valid-type]  # as above
    if exact.scale_of(shape) is not None:
        return Decimal
    return _IN_ZONE if exact.is_in_zone(shape) else _TYPES.get(shape, Any)


def _count(value: Any) -> int:
    """Return how many fields there are in a value, at any depth."""
    if isinstance(value, msgspec.Struct):
        values = msgspec.structs.astuple(value)
        return len(values) - values.count(msgspec.UNSET) + sum(_count(each) for each in values)
    if isinstance(value, dict):
        return len(value) + sum(_count(each) for each in value.values())
    return sum(_count(each) for each in value) if isinstance(value, list) else 0


def _has_decimal(shape: Any) -> bool:
    inner = shape.values() if isinstance(shape, Mapping) else shape if isinstance(shape, list | tuple) else ()
    return exact.scale_of(shape) is not None if isinstance(shape, str) else any(map(_has_decimal, inner))


def _is_within(value: Any, shape: Any) -> bool:
    """Tell whether no decimal in a value has more digits behind its point than its type."""
    if isinstance(value, Decimal):
        return exact.is_within(value, exact.scale_of(shape) or 0)
    if isinstance(value, msgspec.Struct):
        return all(map(_is_within, msgspec.structs.astuple(value), shape.values()))
    if isinstance(value, dict | list):
        each = value.values() if isinstance(value, dict) else value
        return all(_is_within(one, shape[0]) for one in each)
    return True


def _is_text(value: Any) -> bool:
    try:
        _text(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def _has_bare(value: Any, shape: Any) -> bool:
    """Tell whether a number, a list or the like is in the place of a text. Spark would write 1.10 as the text 1.1."""
    if isinstance(shape, Mapping) and isinstance(value, dict):
        return any(_has_bare(each, shape.get(name)) for name, each in value.items())
    if isinstance(shape, list) and isinstance(value, list):
        return any(_has_bare(each, shape[0]) for each in value)
    if isinstance(shape, tuple) and isinstance(value, dict):
        return any(_has_bare(each, shape[0]) for each in value.values())
    return shape == "string" and value is not None and type(value) is not str


def _spelled(value: Any, shape: Any) -> Any:
    """Return a value in which whatever is in the place of a text is one, as it was written."""
    if isinstance(shape, Mapping) and isinstance(value, dict):
        return {name: _spelled(each, shape.get(name)) for name, each in value.items()}
    if isinstance(shape, list) and isinstance(value, list):
        return [_spelled(each, shape[0]) for each in value]
    if isinstance(shape, tuple) and isinstance(value, dict):
        return {name: _spelled(each, shape[0]) for name, each in value.items()}
    return _text(value) if _has_bare(value, shape) else value


def _rescued(value: dict[str, Any], shape: Shape) -> dict[str, str]:
    """Return the fields that do not fit, each as the JSON that it is."""
    return {name: _text(each) for name, each in value.items() if name not in shape or not _fits(each, shape[name])}


def _fits(value: Any, shape: Any) -> bool:
    """Tell whether a value has a place in a type, with all that is in it."""
    if value is None or shape is None:
        return True
    if isinstance(shape, Mapping):
        return isinstance(value, dict) and all(
            name in shape and _fits(each, shape[name]) for name, each in value.items()
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(each, shape[0]) for each in value)
    if isinstance(shape, tuple):
        return isinstance(value, dict) and all(_fits(each, shape[0]) for each in value.values())
    return _is_of(value, shape)


def _is_of(value: Any, kind: str) -> bool:
    """Tell whether a simple type holds a value. Spark has the last word on what is no such value at all."""
    if kind in _WHOLE:
        return (
            isinstance(value, _Number)
            and _INTEGER.fullmatch(value) is not None
            and -_WHOLE[kind] <= int(value) < _WHOLE[kind]
        )
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in {"double", "float"} and not _is_double(value):
        return False
    return not isinstance(value, str) or exact.holds(kind, value)


def _is_double(value: Any) -> bool:
    """Tell whether a value is a number that a double holds, or one of the names of those that are not finite."""
    if isinstance(value, _Number):
        return math.isfinite(float(value))
    return isinstance(value, str) and value in _NOT_FINITE


def _text(value: Any) -> str:
    """Return a value as JSON, its numbers as they were written."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{_text(each)}" for name, each in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(_text(each) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)
