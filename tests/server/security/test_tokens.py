"""Tokens: made, found, revoked; stored as hashes alone, and read again when the file changes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument, NotFound
from oncelog.server.security import tokens
from oncelog.server.security.tokens import TokenFile


def _made(path: Path, name: str = "importer") -> str:
    return tokens.create(path, name, ["append:orders"], SYSTEM)


def test_the_file_has_no_token_and_nobody_else_reads_it(tmp_path: Path) -> None:
    """Who steals the file has no token."""
    path = tmp_path / "tokens.json"
    secret = _made(path)
    assert secret.startswith("once_")
    assert len(secret) == len("once_") + 43
    assert secret.encode() not in path.read_bytes()
    assert secret.removeprefix("once_").encode() not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    known = TokenFile(path).find(tokens.digest(secret))
    assert known is not None
    assert known.token.name == "importer"


def test_no_link_beside_the_file_is_followed(tmp_path: Path) -> None:
    """The name of the new file cannot be guessed: a link that somebody planted leads nowhere."""
    path, precious = tmp_path / "tokens.json", tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "tokens.json.new").symlink_to(precious)
    _made(path)
    assert precious.read_text() == "mine"
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600
    assert {found.name for found in tmp_path.iterdir()} - {"tokens.json.lock"} == {
        "tokens.json",
        "tokens.json.new",
        "precious",
    }


def test_no_file_is_made_where_a_link_in_the_place_of_the_lock_leads(tmp_path: Path) -> None:
    """The name of the lock can be guessed."""
    path = tmp_path / "tokens.json"
    (tmp_path / "tokens.json.lock").symlink_to(tmp_path / "made")
    with pytest.raises(InvalidArgument):
        _made(path)
    assert [found.name for found in tmp_path.iterdir()] == ["tokens.json.lock"]


def test_a_running_server_sees_a_new_token_and_a_revoked_one_at_once(tmp_path: Path) -> None:
    """Revoked means: the next call is refused."""
    path = tmp_path / "tokens.json"
    first = _made(path)
    there = TokenFile(path)
    second = _made(path, "other")
    assert there.find(tokens.digest(second)) is not None
    tokens.revoke(path, "importer")
    assert there.find(tokens.digest(first)) is None
    assert there.find(tokens.digest(second)) is not None


@pytest.mark.parametrize("damage", ["{", '{"version": 1}', '{"version": 9, "tokens": []}', "", "\xff"])
def test_a_damaged_file_keeps_the_last_good_tokens(tmp_path: Path, damage: str) -> None:
    """A slip of an editor neither locks everybody out, nor lets anybody in; the server says so."""
    path = tmp_path / "tokens.json"
    secret = _made(path)
    there = TokenFile(path)
    path.write_text(damage, encoding="latin-1")
    assert there.find(tokens.digest(secret)) is not None
    assert there.damaged is not None
    with pytest.raises(InvalidArgument):
        TokenFile(path)
    path.unlink()
    assert there.find(tokens.digest(secret)) is not None
    _made(path)
    assert there.find(tokens.digest(secret)) is None
    assert there.damaged is None


def test_a_scope_that_is_none_keeps_the_last_good_tokens(tmp_path: Path) -> None:
    """A file that parses and says nonsense is damaged, too."""
    path = tmp_path / "tokens.json"
    secret = _made(path)
    there = TokenFile(path)
    path.write_text(path.read_text().replace("append:orders", "append:ord*"))
    assert there.find(tokens.digest(secret)) is not None
    assert there.damaged is not None


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """A server does not start with tokens that everybody on the machine has seen."""
    path = tmp_path / "tokens.json"
    _made(path)
    path.chmod(0o640)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        TokenFile(path)


def test_names_are_unique_and_must_be_there_to_be_revoked(tmp_path: Path) -> None:
    """Two tokens of one name could not be told apart when one is revoked."""
    path = tmp_path / "tokens.json"
    _made(path)
    with pytest.raises(InvalidArgument, match="already"):
        _made(path)
    with pytest.raises(NotFound):
        tokens.revoke(path, "nobody")


def test_tokens_made_at_once_are_all_there(tmp_path: Path) -> None:
    """Two operators at once: a read, change and write of a whole file must not lose one."""
    path = tmp_path / "tokens.json"
    threads = [threading.Thread(target=_made, args=(path, f"t{number}")) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {token.name for token in tokens.stored(path)} == {f"t{number}" for number in range(16)}
