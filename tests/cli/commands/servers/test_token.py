"""``oncelog token``: what operators type."""

from __future__ import annotations

from pathlib import Path

from oncelog.server.security import tokens
from tests.cli.shell import shell


def test_a_token_is_made_listed_and_revoked(tmp_path: Path) -> None:
    """The token is printed once, alone on stdout, and never again."""
    path = tmp_path / "tokens.json"
    made = shell("token", "create", "importer", "--allow", "append:shop/*", "--allow", "read:a", "-t", str(path))
    assert made.code == 0
    secret = made.out.decode().strip()
    assert tokens.TokenFile(path).find(tokens.digest(secret)) is not None
    listed = shell("token", "list", "-t", str(path))
    assert b"importer" in listed.out
    assert b"append:shop/*" in listed.out
    assert secret.encode() not in listed.out
    as_json = shell("token", "list", "-t", str(path), "--json")
    assert as_json.lines[0]["allow"] == ["append:shop/*", "read:a"]
    assert "sha256" not in as_json.lines[0]
    assert shell("token", "revoke", "importer", "--yes", "-t", str(path), "--json").json["revoked"]
    assert tokens.stored(path) == []


def test_what_is_wrong_is_said_and_nothing_is_stored(tmp_path: Path) -> None:
    """A scope that is none makes no token; an unknown one cannot be revoked."""
    path = tmp_path / "tokens.json"
    refused = shell("token", "create", "importer", "--allow", "append:ord*", "-t", str(path), "--json")
    assert refused.code == 2
    assert "bare prefix" in refused.errors[0]["message"]
    assert not path.exists()
    assert shell("token", "revoke", "importer", "--yes", "-t", str(path)).code == 2
