"""The page on the server says what the server does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from oncelog.server.settings import ServeSettings

_PAGE = Path(__file__).parents[2] / "docs" / "server.md"
_MIB = 1 << 20


def test_the_table_of_settings_has_the_defaults_of_the_code() -> None:
    """Every setting that the page names exists, with the default that the page says."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(ServeSettings)}
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.*?) \|", _PAGE.read_text(), re.MULTILINE)
    named = {name: cell for names, cell in rows for name in re.findall(r"`(\w+)`", names)}
    assert {"url", "grpc", "drain_s", "seats_max", "streams_max"} <= set(named) <= set(defaults)
    for name, cell in named.items():
        default = defaults[name]
        if isinstance(default, int | float):
            number = int(cell.split()[0].replace(",", "")) * (_MIB if cell.endswith("MiB") else 1)
            assert number == default, name
        elif isinstance(default, str):
            assert default in cell, name


def test_the_example_of_a_file_is_one() -> None:
    """The TOML on the page is taken as it stands."""
    [text] = re.findall(r"```toml\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    settings = msgspec.convert(tomllib.loads(text), ServeSettings)
    assert settings.seat_idle_s == 300
