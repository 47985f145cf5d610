"""Commands whose help is plain: names as they are typed, and no types that say nothing (``<bool>``, ``<str>``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

_Function = TypeVar("_Function", bound=Callable[..., Any])
_PLACE = {"<str>": "TEXT", "<int>": "N", "<float>": "NUMBER", "<bool>": "", "<path>": "PATH", "<file>": "FILE"}
"""What stands behind an option for its value; a switch has none."""


def _plain(parameter: Any, context: Any) -> Any:
    """Have a parameter show its name alone, or the word for its value."""
    if isinstance(parameter, TyperArgument):
        vars(parameter)["display_type_rich"] = _nothing
    elif isinstance(parameter, TyperOption) and parameter.metavar is None:
        place = _PLACE.get(parameter.display_type(context))
        parameter.metavar = place
    return parameter


def _nothing(ctx: Any) -> str:  # noqa: ARG001 (Typer names it so)
    return ""


def _usage(parameter: TyperArgument) -> str:
    """Return an argument as it is typed: ``NAME``, ``[FILE]``, ``[FILE]...``."""
    name = parameter.display_name_raw.removesuffix("...").strip("[]")
    spelled = name if parameter.required else f"[{name}]"
    return spelled + ("..." if parameter.nargs != 1 else "")


class _Plain:
    """What a command and a group have in common."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, each plain."""
        return [_plain(parameter, ctx) for parameter in super().get_params(ctx)]  # type: ignore[misc]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line: arguments first, as people type them."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        spelled = {one.get_usage_pieces(ctx)[0]: _usage(one) for one in self.get_params(ctx) if _is_argument(one)}
        return [spelled.get(piece, piece) for piece in pieces]


def _is_argument(parameter: Any) -> bool:
    return isinstance(parameter, TyperArgument)


class PlainCommand(_Plain, TyperCommand):
    """A command with plain help."""


class PlainGroup(_Plain, TyperGroup):
    """A group of commands with plain help."""


class Shell(typer.Typer):
    """Typer, with plain help."""

    def __init__(self, *, cls: type[TyperGroup] = PlainGroup, **given: Any) -> None:
        super().__init__(cls=cls, **given)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = PlainCommand, **given: Any
    ) -> Callable[[_Function], _Function]:
        """Make a command."""
        return super().command(name, cls=cls, **given)
