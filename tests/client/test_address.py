"""TLS and tokens: who may speak to a server, which server is believed, and what it is called when that fails."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import oncelog
from oncelog import InvalidArgument, NotAllowed, NotAuthenticated
from oncelog.client import address
from oncelog.clock import SYSTEM
from oncelog.server.security import tokens
from tests.servers import Serving

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two authorities, a certificate that one of them signed, and two tokens in files."""
    made = tmp_path_factory.mktemp("tls")
    for name in ("ca", "other"):
        _openssl(made, "req", "-x509", *KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    _openssl(made, "req", *KEY, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    (made / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:logs.example.com")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "san")
    _openssl(made, "x509", "-req", "-in", "server.csr", *signing, "-out", "server.pem")
    for name, allow in (("operator", "look,read,append,admin:*"), ("reader", "look,read:*")):
        (made / name).write_text(tokens.create(made / "tokens.json", name, [allow], SYSTEM))
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Serving]:
    """Yield a server that wants TLS and tokens."""
    tls = [f"--tls-cert={folder / 'server.pem'}", f"--tls-key={folder / 'server.key'}"]
    serving = Serving("memory://", [*tls, "--tokens", str(folder / "tokens.json")])
    yield serving
    serving.end()


def options(folder: Path, **changed: str | None) -> Mapping[str, str]:
    """Return what a client of that server needs, with changes."""
    needed: dict[str, str | None] = {"tls_ca": str(folder / "ca.pem"), "token_file": str(folder / "operator")}
    return {name: value for name, value in {**needed, **changed}.items() if value is not None}


def test_a_client_with_the_right_papers_works(server: Serving, folder: Path) -> None:
    """By the address in the certificate, or by another name that it has; calls and streams alike."""
    url = f"oncelog://{server.grpc}"
    with oncelog.connect(url, options=options(folder)) as db, db.log("orders", create=True).writer() as writer:
        writer.append(b"paid", id="1")
    with oncelog.connect(url, options=options(folder, tls_name="logs.example.com")) as db:
        assert [entry.value for entry in db.log("orders").read()] == [b"paid"]


def test_a_url_can_ask_for_tls(server: Serving, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``oncelog+tls://`` is the option ``tls``; whom to trust may come from the environment, for TLS alone."""
    monkeypatch.setenv("ONCELOG_TLS_CA", str(folder / "ca.pem"))
    with oncelog.connect(f"oncelog+tls://{server.grpc}", options=options(folder, tls_ca=None)) as db:
        assert db.url == f"oncelog+tls://{server.grpc}"
        db.log("by-url", create=True)
    assert not address.parse(f"oncelog://{server.grpc}", {}).tls
    with pytest.raises(InvalidArgument, match="tls is 'false'"):
        oncelog.connect(f"oncelog+tls://{server.grpc}", options={"tls": "false"})


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"tls_ca": "other.pem"}, "is not trusted: give the option tls_ca"),
        ({"tls_ca": None, "tls": "true"}, "is not trusted: give the option tls_ca"),
        ({"tls_name": "evil.example.com"}, "is for another name: give the option tls_name"),
        ({"tls_ca": "san"}, "cannot be used"),
        ({"token_file": None, "token": "once_" + "x" * 40}, "unknown, revoked or expired"),
        ({"token_file": None}, "there is no token"),
    ],
    ids=["authority", "system", "name", "no certificate", "token", "no token"],
)
def test_wrong_papers_are_named_at_once(
    server: Serving, folder: Path, changed: dict[str, str | None], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt would end in the same way, and is not made; no token is in the message."""
    monkeypatch.delenv("ONCELOG_TOKEN", raising=False)
    files = {name: str(folder / value) if name == "tls_ca" and value else value for name, value in changed.items()}
    with oncelog.connect(f"oncelog://{server.grpc}", options=options(folder, **files)) as db:
        for use in (db.logs, lambda: db.log("orders", create=True), lambda: db.queue("emails")):
            with pytest.raises(NotAuthenticated, match=says) as caught:
                use()
            assert "once_" not in str(caught.value)


def test_tls_to_a_server_without_is_named(shared_server: Serving) -> None:
    """A client never falls back from TLS to plain; it says what is wrong."""
    with (
        oncelog.connect(f"oncelog://{shared_server.grpc}", options={"tls": "true"}) as db,
        pytest.raises(NotAuthenticated, match="does not speak TLS"),
    ):
        db.logs()


def test_a_token_that_may_not_is_refused_by_name(server: Serving, folder: Path) -> None:
    """A reader reads, and learns that it may not write; the writer's session ends by that error, and does not hang."""
    given = options(folder, token_file=str(folder / "reader"))
    with oncelog.connect(f"oncelog://{server.grpc}", options=options(folder)) as db:
        db.log("refused", create=True)
    with oncelog.connect(f"oncelog://{server.grpc}", options=given) as db:
        assert list(db.log("refused").read()) == []
        with pytest.raises(NotAllowed):
            db.log("refused").writer()


def test_a_token_that_changes_in_its_file_is_taken(server: Serving, folder: Path, tmp_path: Path) -> None:
    """Tokens are replaced while programs run: the next call has the new one."""
    file = tmp_path / "token"
    file.write_text("once_" + "x" * 40)
    with oncelog.connect(f"oncelog://{server.grpc}", options=options(folder, token_file=str(file))) as db:
        with pytest.raises(NotAuthenticated):
            db.logs()
        file.write_text((folder / "operator").read_text())
        db.logs()
        file.unlink()
        with pytest.raises(InvalidArgument, match="cannot be read"):
            db.logs()
