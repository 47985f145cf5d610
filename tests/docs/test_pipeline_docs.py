"""What the documents say of pipelines is so: their specs are specs, and the reference has every key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from oncelog.spark.pipeline import mistakes
from oncelog.spark.pipeline.spec import Spec

ROOT = Path(__file__).parents[2]
SPECS = [
    pytest.param(match[1], id=f"{document.name}:{number}")
    for document in sorted((ROOT / "docs").glob("pipeline-*.md"))
    for number, match in enumerate(re.finditer(r"^```toml\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL))
]
REFERENCE = (ROOT / "docs" / "pipeline-spec.md").read_text()


@pytest.mark.parametrize("text", SPECS)
def test_spec_in_a_document_is_one(text: str) -> None:
    """Anybody who copies a spec has no mistake in its form."""
    assert mistakes.check_form(tomllib.loads(text)) == []


def test_there_are_specs() -> None:
    """The test above checks something."""
    assert len(SPECS) >= 3


def keys() -> Iterator[tuple[str, str, bool]]:
    """Yield the table, name and need of every key of a spec."""
    for field in msgspec.structs.fields(Spec):
        table = mistakes.table_type(field.type)
        for inner in msgspec.structs.fields(table) if table is not None else ():
            yield field.name, inner.name, inner.required


@pytest.mark.parametrize(("table", "name", "required"), list(keys()))
def test_reference_has_every_key(table: str, name: str, required: bool) -> None:  # noqa: FBT001 (a parameter)
    """Each key is in the table of its part, in bold if it is required."""
    part = REFERENCE.partition(f"## [{table}]\n")[2].partition("\n## ")[0]
    assert (f"| **`{name}`** |" if required else f"| `{name}` |") in part
