"""A hook of MkDocs: pages of reference that are made from the code, so that they cannot be out of date."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import griffe
import msgspec
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import oncelog
from oncelog import errors, limits, settings
from oncelog.queue.rules.retry import RetryPolicy
from oncelog.queue.rules.settings import QueueSettings

SETTINGS = (settings.LogSettings, settings.Window, settings.ProducerPolicy, QueueSettings, RetryPolicy)
FUNCTIONS = ("connect", "worker")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of reference."""
    for name, text in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    return {"api": _api(), "settings": _settings(), "errors": _errors(), "limits": _limits()}


def _api() -> str:
    names = [name for name in oncelog.__all__ if not _is_error(name)]
    ordered = sorted(names, key=lambda name: (name not in FUNCTIONS, name.lower()))
    parts = [
        f"::: {getattr(oncelog, name).__module__}.{name}"
        for name in ordered
        if hasattr(getattr(oncelog, name), "__module__")
    ]
    return (
        "# API\n\nEverything that `import oncelog` gives. Errors have [a page of their own](errors.md).\n\n"
        + "\n\n".join(parts)
        + "\n"
    )


def _is_error(name: str) -> bool:
    value = getattr(oncelog, name)
    return isinstance(value, type) and issubclass(value, BaseException)


def _settings() -> str:
    parts = [
        "# Settings\n\nSettings are data. They are checked where they come in, and stored with the log or the queue."
    ]
    for struct in SETTINGS:
        rows = [f"| `{field.name}` | `{_default(field)}` |" for field in msgspec.structs.fields(struct)]
        parts.append(
            f"## {struct.__name__}\n\n{_doc(struct)}\n\n| setting | default |\n| --- | --- |\n" + "\n".join(rows)
        )
    return "\n\n".join(parts) + "\n"


def _default(field: Any) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory
    return "required" if value is msgspec.NODEFAULT else repr(value).replace("|", "\\|")


def _errors() -> str:
    tree = re.search(r"::\n\n(.*)", inspect.getdoc(errors) or "", re.DOTALL)
    assert tree is not None
    parts = [
        "# Errors\n\nOne tree, grouped by what the code that catches an error does.",
        f"```text\n{inspect.cleandoc(tree[1])}\n```",
    ]
    parts += [f"## {name}\n\n{_doc(getattr(oncelog, name))}" for name in oncelog.__all__ if _is_error(name)]
    return "\n\n".join(parts) + "\n"


def _limits() -> str:
    """Return every limit with the sentence that stands below it in the source."""
    body = ast.parse(Path(limits.__file__).read_text()).body
    rows, names = [], []
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.append(node.targets[0].id)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and names:
            text = " ".join(str(node.value.value).split())
            rows += [f"| `{name}` | {getattr(limits, name):,} | {text} |" for name in names]
            names = []
    return (
        "# Limits\n\nGoing over a limit is `InvalidArgument`, and nothing is written.\n\n"
        "| limit | value | of what |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )


def _doc(value: object) -> str:
    return markdown(inspect.getdoc(value) or "")


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: double backquotes become single ones, doctests become blocks of code."""
    text = docstring.replace("``", "`")
    return re.sub(
        r"^>>> .*?(?=\n\n|\Z)", lambda found: f"```pycon\n{found[0]}\n```", text, flags=re.DOTALL | re.MULTILINE
    )


class Docstrings(griffe.Extension):
    """Hands docstrings to mkdocstrings as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
