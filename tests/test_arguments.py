"""Arguments are held against annotations at the rim: a bad one is InvalidArgument that names the argument."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

from oncelog import InvalidArgument, LogSettings
from oncelog.arguments import checked


@checked
def function(  # noqa: PLR0917 (each kind of argument once)
    name: str = "n",
    limit: int | None = None,
    wait_s: float = 1.0,
    settings: LogSettings | None = None,
    progress: Callable[[int], None] | None = None,
    mode: Literal["polite", "force"] = "polite",
    *,
    create: bool = False,
    **rest: object,
) -> tuple[Any, ...]:
    """Return what the body was given."""
    return name, limit, wait_s, settings, progress, mode, create, rest


class Broken:
    """An object that fails whatever one does with it."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        raise RuntimeError


class Text(str):
    """A str whose encode lies."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """Return other bytes."""
        del encoding, errors
        return b"other"


BAD: dict[str, list[object]] = {
    "name": [None, 1, b"x", "\ud800", np.array(["a"]), Broken(), str],
    "limit": [True, 1.5, "1", np.array([1, 2]), np.array(1), Broken(), int],
    "wait_s": [None, True, "1", float("nan"), 10**400, np.array([1.0]), Broken(), float],
    "settings": [5, {}, LogSettings, Broken()],
    "progress": [5, "x", np.array([1, 2]), Broken()],
    "mode": [None, "rude", b"polite", np.array(["polite", "x"]), Broken()],
    "create": [None, 0, 1, "yes", np.array([True, False]), Broken()],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_argument_is_named(name: str, value: object) -> None:
    """Whatever the object is, the error is InvalidArgument and begins with the argument's name."""
    with pytest.raises(InvalidArgument, match=f"^{name} is "):
        function(**{name: value})  # type: ignore[arg-type]


def test_good_arguments_come_through_in_plain_types() -> None:
    """A scalar of numpy and a subclass of str become what the body expects; None passes where it may."""
    given: dict[str, Any] = {"limit": np.int64(3), "wait_s": np.float32(2), "progress": print, "create": np.True_}
    name, limit, wait_s, settings, progress, mode, create, rest = function(
        Text("orders"), mode="force", other=1, **given
    )
    assert (name, type(name), name.encode()) == ("orders", str, b"orders")
    assert (limit, type(limit), wait_s, type(wait_s)) == (3, int, 2.0, float)
    assert (settings, progress, mode, create, rest) == (None, print, "force", True, {"other": 1})


def test_a_call_that_does_not_fit_is_an_invalid_argument() -> None:
    """An argument too many is told as every other mistake."""
    with pytest.raises(InvalidArgument, match="too many positional arguments"):
        function("a", 1, 1.0, None, None, "polite", "more")  # type: ignore[call-arg, arg-type]
