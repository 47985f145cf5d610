"""Functions that happen once: from their arguments to a key, and from their result to what everybody gets."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from oncelog.arguments import shown
from oncelog.errors import InvalidArgument
from oncelog.inbox import keys
from oncelog.inbox.effect import Effect, Once

R = TypeVar("R")
Bind = Callable[[tuple[Any, ...], dict[str, Any]], Mapping[str, Any]]


class Decoration(NamedTuple):
    """How a function is known: what ``Inbox.effect`` was given."""

    once: Callable[..., Once]
    key: str | Callable[..., str] | None
    payload: str | Callable[..., object] | None
    topic: str | None
    default_topic: str
    returns: Any

    def decorate(self, function: Callable[..., R]) -> Callable[..., R]:
        """Return a function that happens once, plain or async as it is."""
        check_runs_at_once(function)
        signature = _signature(function)
        bind = _binder(signature)
        wants_effect = "effect" in signature.parameters

        def more(effect: Effect) -> dict[str, Any]:
            return {"effect": effect} if wants_effect else {}

        @functools.wraps(function)
        def plain(*arguments: Any, **named: Any) -> Any:
            with self._once(function, bind, arguments, named) as effect:
                if not effect.done:
                    returned = function(*arguments, **named, **more(effect))
                    effect.result = effect.result if returned is None else returned
            return effect.result

        @functools.wraps(function)
        async def awaited(*arguments: Any, **named: Any) -> Any:
            calling: Callable[..., Any] = function
            async with self._once(function, bind, arguments, named) as effect:
                if not effect.done:
                    returned = await calling(*arguments, **named, **more(effect))
                    effect.result = effect.result if returned is None else returned
            return effect.result

        wrapper: Any = awaited if inspect.iscoroutinefunction(function) else plain
        wrapper.__signature__ = signature.replace(
            parameters=[each for name, each in signature.parameters.items() if name != "effect"]
        )
        return wrapper  # type: ignore[no-any-return]

    def _once(
        self, function: Callable[..., Any], bind: Bind, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Once:
        bound = bind(arguments, named)
        message = next(iter(bound.values()), None) if self.key is None else None
        found = None if self.key is None else keys.text("key", _picked(self.key, bound, arguments, named))
        checked = msgspec.UNSET if self.payload is None else _picked(self.payload, bound, arguments, named)
        told = message is not None and not isinstance(message, str) and keys.known(message).topic is not None
        scope = self.topic if self.topic is not None or told or self.default_topic else function.__qualname__
        return self.once(message, key=found, topic=scope, payload=checked, returns=self.returns)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError as error:
        message = f"function is {shown(function)}, which does not say what its arguments are: wrap it in one that does"
        raise InvalidArgument(message) from error


def check_runs_at_once(function: Callable[..., Any]) -> None:
    """Raise ``InvalidArgument`` for a generator: it does nothing before somebody iterates it, outside of the effect."""
    given: object = function
    if not callable(given):
        message = f"function is {shown(given)}, must be a function"
        raise InvalidArgument(message)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        message = f"{function.__qualname__} is a generator, which works outside of its effect: return a value"
        raise InvalidArgument(message)


def _binder(signature: inspect.Signature) -> Bind:
    """Return what tells a call's arguments by their names; of a plain signature, quicker than it does itself."""
    names = tuple(signature.parameters)
    plain = all(each.kind is each.POSITIONAL_OR_KEYWORD for each in signature.parameters.values())

    def bind(arguments: tuple[Any, ...], named: dict[str, Any]) -> Mapping[str, Any]:
        if plain and not named and len(arguments) <= len(names):
            return dict(zip(names, arguments, strict=False))
        return signature.bind_partial(*arguments, **named).arguments

    return bind


def _picked(
    how: str | Callable[..., Any], bound: Mapping[str, Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Return what a name, or a function of the arguments, picks out of them."""
    if callable(how):
        return how(*arguments, **named)
    first, *rest = how.split(".")
    if first not in bound:
        message = f"there is no argument {first!r} to take the key from"
        raise InvalidArgument(message)
    value = bound[first]
    for name in rest:
        try:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        except (KeyError, AttributeError) as error:
            message = f"there is no {name!r} in argument {first!r}, where {how!r} looks for it"
            raise InvalidArgument(message) from error
    return value
