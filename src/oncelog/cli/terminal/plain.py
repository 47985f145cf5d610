"""Commands whose help is plain and quick: words as they are typed, and nothing loaded that only draws frames.

Typer's own help comes with Rich's Markdown and tracebacks, which take longer to load than all of Oncelog's shell.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeVar, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

_Function = TypeVar("_Function", bound=Callable[..., Any])
_PLACE = {"<str>": "TEXT", "<int>": "N", "<float>": "NUMBER", "<bool>": "", "<path>": "PATH", "<file>": "FILE"}
"""What stands behind an option for its value; a switch has none."""

_WIDTH_MAX, _NAME_MAX = 110, 34
_FIRST = {"Arguments": 0, "Options": 1}
_MARKUP = re.compile(r"\[(/|/?bold|/?cyan)\]")
_FACTS = re.compile(r"(.*?)\s*\[([^\[]*(?:\[[^\[\]]*\])?)\]", re.DOTALL)
_DEFAULT = re.compile(r"default: \((.*)\)", re.DOTALL)
_IDLE = re.compile(r"(; )?[\d.<=]*x[<>=]+[\d.]+|default: (as it is)?(?=;|$)")
_HEADING, _WORD, _END = "\x1b[1m", "\x1b[36m", "\x1b[0m"


class _Plain:
    """What a command and a group have in common."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, each plain."""
        return [_plain(parameter, ctx) for parameter in super().get_params(ctx)]  # type: ignore[misc]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line, as people type it."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        arguments = [one for one in self.get_params(ctx) if isinstance(one, TyperArgument)]
        spelled = {one.get_usage_pieces(ctx)[0]: _usage(one) for one in arguments}
        return [spelled.get(piece, piece) for piece in pieces]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, text, arguments, options, commands and examples."""
        formatter.write("\n".join(_page(self, ctx)) + "\n")


class PlainCommand(_Plain, TyperCommand):
    """A command with plain help."""


class PlainGroup(_Plain, TyperGroup):
    """A group of commands with plain help."""

    def rows(self, ctx: Any) -> list[tuple[str, str, str]]:  # noqa: ARG002 (a group may need it)
        """Return the panel of each command, its name, and the first sentence of its help."""
        return [("Commands", name, summary(command)) for name, command in self.commands.items()]


def summary(command: Any) -> str:
    """Return the first paragraph of a command's help, without markup."""
    return _MARKUP.sub("", (command.help or "").split("\n\n")[0])


class Shell(typer.Typer):
    """Typer, with plain help."""

    def __init__(self, *, cls: type[TyperGroup] = PlainGroup, **given: Any) -> None:
        super().__init__(cls=cls, **given)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = PlainCommand, **given: Any
    ) -> Callable[[_Function], _Function]:
        """Make a command."""
        return super().command(name, cls=cls, **given)


class Verbs(Shell):
    """The verbs of a noun. The noun alone shows its help. Below the help of each verb are examples."""

    def __init__(self, noun: str, help: str, *, heading: str = "Examples, with ONCELOG_URL set") -> None:
        super().__init__(help=help, callback=show_help, invoke_without_command=True)
        self._noun = noun
        self._heading = heading

    def verb(self, *examples: str, name: str | None = None) -> Callable[[_Function], _Function]:
        """Make a function a verb. Its docstring is the help."""
        lines = "".join(f"\n  [cyan]oncelog {self._noun}{' ' if self._noun else ''}{one}[/]" for one in examples)

        def made(function: _Function) -> _Function:
            word = name or function.__name__.strip("_").replace("_", "-")
            epilog = f"{self._heading}:\n{lines}"
            return self.command(word, help=paragraphs(function.__doc__ or ""), epilog=epilog)(function)

        return made


def paragraphs(text: str) -> str:
    """Return help whose paragraphs are as wide as the terminal, however they are broken here."""
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in inspect.cleandoc(text).split("\n\n"))


def show_help(context: typer.Context) -> None:
    """Show what commands there are, if none was given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


class _Quick:
    """Takes a value of a parameter that is what it should be already, or that the parameter's own parser reads.

    Typer has pydantic look at every value, also at a text that should be a text. To load pydantic takes longer than
    most commands. What is not plain goes to Typer as before, and Typer says what is wrong with it.
    """

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter."""
        info, annotation = param.type_descriptor.parameter_info, param.type_descriptor.annotation
        if value is None and param.nargs == 1 and not param.multiple:
            return None
        if info.parser is not None and param.nargs == 1 and not param.multiple:
            with contextlib.suppress(ValueError):
                return info.parser(value)
        elif (annotation in (str, bool) and type(value) is annotation) or (
            get_origin(annotation) is Literal and value in get_args(annotation)
        ):
            return value
        elif annotation == list[str] and isinstance(value, tuple | list) and all(type(one) is str for one in value):
            return list(value)
        param._runtime_param = None  # noqa: SLF001  Typer makes its own then
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _plain(parameter: Any, context: Any) -> Any:
    """Have a parameter show its name alone, or the word for its value; and take a plain value as it is."""
    if parameter._runtime_param is None:  # noqa: SLF001
        parameter._runtime_param = _Quick()  # noqa: SLF001
    if isinstance(parameter, TyperArgument):
        vars(parameter)["display_type_rich"] = _nothing
    elif isinstance(parameter, TyperOption) and parameter.metavar is None:
        parameter.metavar = _PLACE.get(parameter.display_type(context))
    return parameter


def _nothing(ctx: Any) -> str:  # noqa: ARG001 (Typer names it so)
    return ""


def _usage(parameter: TyperArgument) -> str:
    """Return an argument as it is typed: ``NAME``, ``[FILE]``, ``[FILE]...``."""
    name = parameter.display_name_raw.removesuffix("...").strip("[]")
    spelled = name if parameter.required else f"[{name}]"
    return spelled + ("..." if parameter.nargs != 1 else "")


def _page(command: Any, ctx: Any) -> Iterator[str]:
    """Yield the lines of a command's help."""
    width = min(shutil.get_terminal_size().columns, _WIDTH_MAX)
    yield f"{_heading('Usage:')} {ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}"
    for paragraph in (command.help or "").split("\n\n"):
        yield from ("", *textwrap.wrap(_shown(paragraph), width, break_on_hyphens=False))
    for title, rows in (*_parameters(command, ctx), *_commands(command, ctx)):
        yield from ("", _heading(f"{title}:"), *_table(rows, width))
    if command.epilog:
        yield from ("", *(_shown(line) for line in command.epilog.splitlines()))


def _shown(text: str) -> str:
    """Return text without Rich's markup, or with colours instead of it, for a terminal."""
    if not _is_coloured():
        return _MARKUP.sub("", text)
    return _MARKUP.sub(lambda found: {"cyan": _WORD, "bold": _HEADING}.get(found[1], _END), text)


def _heading(text: str) -> str:
    return f"{_HEADING}{text}{_END}" if _is_coloured() else text


def _is_coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _parameters(command: Any, ctx: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield arguments and options by their panels."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            own = "Arguments" if isinstance(parameter, TyperArgument) else "Options"
            name = _usage(parameter) if isinstance(parameter, TyperArgument) else record[0]
            panels.setdefault(parameter.rich_help_panel or own, []).append((name, _brief(record[1], own)))
    yield from sorted(panels.items(), key=lambda panel: _FIRST.get(panel[0], len(_FIRST)))


def _brief(text: str, panel: str) -> str:
    """Return the help of a parameter without what says nothing: ranges, empty defaults, that an argument is needed.

    >>> _brief("So many.  [default: (10); x>=0]", "Options"), _brief("Its name.  [required]", "Arguments")
    ('So many.  [default: 10]', 'Its name.')
    """
    found = _FACTS.fullmatch(text)
    if found is None:
        return text
    facts = _IDLE.sub("", _DEFAULT.sub(r"default: \1", found[2]))
    if panel == "Arguments":
        facts = facts.removesuffix("required")
    kept = facts.strip("; ")
    return f"{found[1]}  [{kept}]" if kept else found[1]


def _commands(command: Any, ctx: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the commands of a group by their panels."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for panel, name, summary in command.rows(ctx) if isinstance(command, PlainGroup) else ():
        panels.setdefault(panel, []).append((name, summary))
    yield from panels.items()


def _table(rows: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield names with their texts beside them; a name that is too long stands above its text."""
    rows = list(rows)
    left = min(max(len(name) for name, _ in rows), _NAME_MAX)
    for name, text in rows:
        spelled = f"{_WORD}{name}{_END}" if _is_coloured() else name
        lines = textwrap.wrap(_MARKUP.sub("", text), max(20, width - left - 4), break_on_hyphens=False) or [""]
        if len(name) > left:
            yield f"  {spelled}"
        else:
            yield f"  {spelled}{' ' * (left - len(name))}  {lines.pop(0)}".rstrip()
        yield from (f"  {' ' * left}  {line}" for line in lines)
