"""What callers give is checked here, at the rim: a bad argument is ``InvalidArgument`` and the message names it.

``checked`` holds the arguments of a public function against its annotations. The other functions check one argument
each, where a function is too hot for a wrapper, or the rule is narrower than the type.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np

from oncelog.errors import InvalidArgument
from oncelog.limits import REASON_BYTES_MAX
from oncelog.types import Record

SECONDS_MAX = 1e9
"""For ever, in practice; more than this is as much."""

COUNT_MAX = (1 << 63) - 1
"""What a position, or a count of records, fits in."""

_SHOWN_MAX = 80


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Check = Callable[[str, Any], Any]
"""Takes the name and the value of an argument; returns the value in its plain type, or raises ``InvalidArgument``."""


def _refuse(name: str, value: object, wanted: str) -> InvalidArgument:
    return InvalidArgument(f"{name} is {shown(value)}, must be {wanted}")


def shown(value: object) -> str:
    """Return a value for a message; an object whose ``repr`` fails is shown by its type."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 (the code of a caller's object)
        return f"an object of {type(value).__name__}"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def told(error: BaseException) -> str:
    """Return what an error says: its class and its text, also if the text cannot be had."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception as second:  # noqa: BLE001  whatever a __str__ of the user's raises
        return f"{name} (and its text: {type(second).__name__})"


def stored_reason(text: str) -> str:
    """Return the reason of a failure as a queue or inbox stores it: without NUL, which PostgreSQL refuses, and cut."""
    plain = text.replace("\0", "\\0")
    return plain.encode("utf-8", "backslashreplace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")


def number(name: str, value: object) -> float:
    """Return a number as a float; infinity is one, NaN and a bool are not.

    >>> number("seconds", 5)
    5.0
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating) or value != value:  # noqa: PLR0124 (NaN)
        raise _refuse(name, value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise _refuse(name, value, "a number that a float can hold") from None


def seconds(name: str, value: object) -> float:
    """Return a time to wait; infinity is as long as can be.

    >>> seconds("wait_s", float("inf"))
    1000000000.0
    """
    if type(value) is float and 0 <= value <= SECONDS_MAX:
        return value
    try:
        found = number(name, value)
    except InvalidArgument:
        found = -1.0
    if found < 0:
        raise _refuse(name, value, "a number of seconds, 0 or more")
    return min(found, SECONDS_MAX)


def whole(name: str, value: object) -> int:
    """Return a whole number.

    >>> whole("start", -5)
    -5
    """
    if isinstance(value, bool | np.bool_ | np.ndarray | type) or not hasattr(value, "__index__"):
        raise _refuse(name, value, "a whole number")
    return int(value.__index__())


def count(name: str, value: object) -> int:
    """Return a whole number, 0 or more.

    >>> count("limit", 5)
    5
    """
    try:
        found = whole(name, value)
    except InvalidArgument:
        found = -1
    if not 0 <= found <= COUNT_MAX:
        raise _refuse(name, value, "a whole number, 0 or more")
    return found


def text(name: str, value: object) -> str:
    """Return a text that UTF-8 can encode, as a plain ``str``.

    >>> text("name", "orders")
    'orders'
    """
    if not isinstance(value, str):
        raise _refuse(name, value, f"a str, not {type(value).__name__}")
    plain = str.__str__(value)
    if not plain.isascii():
        try:
            plain.encode()
        except UnicodeEncodeError:
            raise _refuse(name, value, "text without a lone surrogate, which UTF-8 cannot encode") from None
    return plain


def flag(name: str, value: object) -> bool:
    """Return ``True`` or ``False``.

    >>> flag("create", True)
    True
    """
    if not isinstance(value, bool | np.bool_):
        raise _refuse(name, value, "True or False")
    return bool(value)


def one_of(name: str, value: object, *choices: str) -> str:
    """Return one of the words that an argument may be.

    >>> one_of("start", "latest", "earliest", "latest")
    'latest'
    """
    plain = str.__str__(value) if isinstance(value, str) else None
    if plain is None or plain not in choices:
        raise _refuse(name, value, " or ".join(map(repr, choices)))
    return plain


def function(name: str, value: object) -> object:
    """Return what can be called."""
    if not callable(value):
        raise _refuse(name, value, "a function")
    return value


def checked(method: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of a public function against its annotations, before its body runs.

    Checked are ``str``, ``int``, ``float``, ``bool``, ``Literal``, classes and callables, each with ``None`` where the
    annotation allows ``None``. Everything else (a union of kinds, an iterable) is for the body to check.
    """
    signature = inspect.signature(method)
    parameters = _Parameters(signature)

    @functools.cache
    def checks() -> list[tuple[int, str, Check]]:
        found = [(at, name, _check_of(_hint(method, name))) for at, name in enumerate(signature.parameters)]
        return [(at, name, check) for at, name, check in found if check is not None]

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if not parameters.fit(len(args), kwargs):
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                message = f"{method.__name__}(): {error}"
                raise InvalidArgument(message) from None
        values: list[Any] = list(args)
        for at, name, check in checks():
            if at < len(values):
                values[at] = check(name, values[at])
            elif name in kwargs:
                kwargs[name] = check(name, kwargs[name])
        return method(*values, **kwargs)

    return wrapped


class _Parameters:
    """The parameters of a function: tells whether arguments fit them, in a tenth of the time of ``Signature.bind``."""

    def __init__(self, signature: inspect.Signature) -> None:
        found = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        kinds = {one.kind for one in found}
        assert kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}, str(signature)
        self._positional = [one.name for one in found if one.kind is one.POSITIONAL_OR_KEYWORD]
        self._names = {one.name for one in found}
        self._required = {one.name for one in found if one.default is one.empty}
        self._takes_any_name = len(found) < len(signature.parameters)

    def fit(self, count: int, named: Mapping[str, object]) -> bool:
        """Tell whether so many arguments, and those that are named, give every parameter one value at most."""
        by_place = self._positional[:count]
        return (
            count <= len(self._positional)
            and (self._takes_any_name or self._names.issuperset(named))
            and not any(name in named for name in by_place)
            and all(name in named for name in self._required.difference(by_place))
        )


def _hint(method: Callable[..., object], name: str) -> object:
    """Return the annotation of a parameter; ``object`` without one, or for a class that is imported only when used."""
    hint = method.__annotations__.get(name, object)
    try:
        found: object = eval(hint, method.__globals__) if isinstance(hint, str) else hint  # noqa: S307 (our own source)
    except NameError:
        return object
    return found


def _check_of(hint: object) -> Check | None:
    """Return the check for an annotation; ``None`` for one that only the body can check."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _one_of(parts)
    if origin in (Union, types.UnionType):
        rest = [part for part in parts if part is not type(None)]
        check = _check_of(rest[0]) if len(rest) == 1 else None
        return None if check is None or len(rest) == len(parts) else _or_none(check)
    if origin is Callable:
        return function
    is_class = isinstance(hint, type) and hint is not object and origin is None
    return _instance_of(hint) if is_class and not getattr(hint, "_is_protocol", False) else None  # type: ignore[arg-type]


def _or_none(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _one_of(choices: tuple[object, ...]) -> Check:
    def check(name: str, value: object) -> object:
        for choice in choices:
            if type(value) is type(choice) and value == choice:
                return value
        raise _refuse(name, value, " or ".join(map(repr, choices)))

    return check


def _instance_of(kind: type) -> Check:
    def check(name: str, value: object) -> object:
        if not isinstance(value, kind):
            raise _refuse(name, value, f"of {kind.__name__}")
        return value

    return check


_PLAIN: dict[object, Check] = {str: text, int: whole, float: number, bool: flag}


def items(name: str, value: object, of: str) -> list[Any]:
    """Return the elements of a list, or of anything that yields them; a text, or a mapping, is no list.

    >>> items("positions", range(3), "positions")
    [0, 1, 2]
    """
    return list(yielding(name, value, of))


def yielding(name: str, value: object, of: str) -> Iterator[Any]:
    """Return what yields the elements, one after the other, of what ``items`` takes."""
    if not isinstance(value, str | bytes | bytearray | memoryview | Mapping | Record | type):
        try:
            found: Iterator[Any] = iter(value)  # type: ignore[call-overload]
        except TypeError:
            pass
        else:
            return found
    message = f"{name}: is {type(value).__name__}, must be a list of {of}"
    raise InvalidArgument(message)


def instances(name: str, value: object, kind: type[T]) -> list[T]:
    """Return the elements of a list, all of one class.

    >>> instances("names", ["a", "b"], str)
    ['a', 'b']
    """
    found = items(name, value, kind.__name__)
    for number, one in enumerate(found):
        if not isinstance(one, kind):
            message = f"{name}: number {number} is {type(one).__name__}, must be a {kind.__name__}"
            raise InvalidArgument(message)
    return found


def listed(records: object) -> list[Record]:
    """Return the records that were given as a list, or as anything that yields them."""
    listed = items("records", records, "Record")
    is_exact = list(map(type, listed)).count(Record) == len(listed)  # sooner than a set of the types
    return listed if is_exact else instances("records", listed, Record)
