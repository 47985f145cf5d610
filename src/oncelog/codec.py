"""Codecs: from an object to the bytes of a value, and from those bytes to an object of the same type.

A log stores bytes. A codec stands beside the log: it works for every value that goes into a log, a stream or a queue,
and for everything that has a value when it comes out, embedded and through a server alike.
"""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from json import JSONEncoder
from typing import Any, Generic, Protocol, TypeVar, overload

import msgspec

from oncelog.arguments import shown
from oncelog.errors import BadValue, InvalidArgument
from oncelog.shapes import UNREADABLE

_T = TypeVar("_T")
_S = TypeVar("_S")

_ENCODER = msgspec.json.Encoder(order="deterministic")
_NUMBERS = JSONEncoder(allow_nan=False, ensure_ascii=False)
_OFFSET = re.compile(rb'[+-]\d\d:\d\d"')
"""How a time that is not in UTC ends, in JSON."""
_REFUSED = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""What msgspec raises for an object that it cannot encode."""


class HasValue(Protocol):
    """What comes out with a value: an ``Entry``, a ``StreamEvent``, a ``Delivery``, a ``DeadLetter``."""

    @property
    def value(self) -> bytes:
        """The bytes."""
        ...


class Codec(Generic[_T]):
    """Values of one type as JSON. Made by ``oncelog.json(Type)``; safe to share between threads.

    Equal objects are encoded as equal bytes, in every process: the keys of a mapping and the elements of a set are
    sorted. So a retry under the same id is a duplicate, and never a conflict with itself.
    """

    def __init__(self, type: Any) -> None:
        """Take a type that msgspec knows: a dataclass, a ``msgspec.Struct``, a ``TypedDict``, ``dict[str, int]``."""
        self.type = type
        try:
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(type)
        except (TypeError, NameError) as error:
            message = f"{_name(type)} cannot be a type of values: {error}"
            raise InvalidArgument(message) from error

    def encode(self, value: _T) -> bytes:
        """Return an object as bytes. ``InvalidArgument`` if ``decode`` could not read them back as this type, so a
        wrong value is refused where it is written.
        """
        try:
            data = _encoded(value)
        except _REFUSED as error:
            message = f"value {shown(value)} cannot be JSON: {error}"
            raise InvalidArgument(message) from error
        if b"null" in data:
            _check_numbers(value)
        if _OFFSET.search(data):
            _check_offsets(value)
        if self.type is not Any:
            try:
                self._decoder.decode(data)
            except UNREADABLE as error:
                message = f"value {shown(value)} is not of {_name(self.type)}: {error}"
                raise InvalidArgument(message) from error
        return data

    def decode(self, found: bytes | HasValue) -> _T:
        """Return the object that a value holds, given the bytes or what came out with them: an ``Entry``, a
        ``StreamEvent``, a ``Delivery``, a ``DeadLetter``.

        Raises ``BadValue``, with the position where there is one, for bytes that are no such object.
        """
        data = found if isinstance(found, bytes | bytearray | memoryview) else found.value
        try:
            decoded: _T = self._decoder.decode(data)
        except UNREADABLE as error:
            position = getattr(found, "position", None)
            where = "the value" if position is None else f"the value at position {position}"
            message = f"{where} is not of {_name(self.type)}: {error}"
            raise BadValue(message, position=position) from error
        return decoded


class Json(Codec[Any]):
    """Values as JSON: ``oncelog.json`` itself takes and returns plain objects, ``oncelog.json(Order)`` those of a type.

    >>> import oncelog
    >>> oncelog.json.decode(oncelog.json.encode({"amount": 5}))
    {'amount': 5}
    >>> amounts = oncelog.json(dict[str, int])
    >>> amounts.encode({"b": 2, "a": 1})
    b'{"a":1,"b":2}'
    """

    @overload
    def __call__(self, type: type[_S]) -> Codec[_S]: ...
    @overload
    def __call__(self, type: Any) -> Codec[Any]: ...  # a union, for which there is no type yet (PEP 747)

    def __call__(self, type: Any) -> Codec[Any]:
        """Return the codec of a type."""
        return Codec(type)


json = Json(Any)
"""The codec of plain objects: dicts, lists, texts, numbers; and what makes the codec of a type."""


def _encoded(value: object) -> bytes:
    try:
        return _ENCODER.encode(value)
    except TypeError:  # a mapping whose keys are no texts: numbers, dates, enums
        return _ENCODER.encode(msgspec.to_builtins(value, str_keys=True, order="deterministic"))


def _check_numbers(value: object) -> None:
    """Refuse NaN and infinity: JSON has no such numbers, and msgspec would store ``null`` in their place."""
    try:
        _NUMBERS.encode(msgspec.to_builtins(value, str_keys=True, enc_hook=_written))
    except ValueError as error:
        message = f"value {shown(value)} has NaN or infinity in it, which JSON cannot hold: leave it out, or use None"
        raise InvalidArgument(message) from error


def _check_offsets(value: object) -> None:
    """Refuse times whose zone differs from UTC by a part of a minute, as zones did before 1920 or so: msgspec would
    leave the seconds out, and store another moment.
    """
    left = [msgspec.to_builtins(value, builtin_types=(datetime, time), enc_hook=_written)]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, list):
            left += one
        elif isinstance(one, datetime | time) and (one.utcoffset() or timedelta()) % timedelta(minutes=1):
            offset = one.utcoffset()
            message = f"value {shown(value)} has a time {offset} off UTC in it, which JSON cannot hold: use UTC"
            raise InvalidArgument(message)


def _written(_: object) -> None:
    """Stand for a ``msgspec.Raw``, the only thing that is encoded and is no builtin: it is JSON before it gets here."""


def _name(type: Any) -> str:
    return getattr(type, "__qualname__", None) or str(type)
