"""Certificates that are renewed while a real server runs."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncelog.errors import InvalidArgument
from oncelog.server.security import certificates as certificates_module
from oncelog.server.security import setup
from oncelog.server.security.certificates import Certificates
from oncelog.server.settings import ServeSettings
from tests.server import certificates
from tests.servers import Serving

_PAUSE = threading.Event()
NAMES = "DNS:localhost,IP:127.0.0.1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an authority, and two certificates of a server."""
    return certificates.make(tmp_path_factory.mktemp("certificates"), {"old": NAMES, "new": NAMES})


def _shown(address: str) -> str:
    """Return the certificate that a port shows."""
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


def _until(wanted: Callable[[], bool]) -> None:
    for _ in range(1200):
        if wanted():
            return
        _PAUSE.wait(0.1)
    pytest.fail("it did not happen within two minutes")


def test_certificates_are_read_again_when_the_server_is_told_to(
    serve: Callable[..., Serving], folder: Path, tmp_path: Path
) -> None:
    """Both ports show the new one to who connects since, and a connection that is open stays. Files that cannot be used
    change nothing: a renewal that went wrong must not end the service.
    """
    files = [tmp_path / "cert.pem", tmp_path / "key.pem"]
    texts = {name: (folder / f"{name}.pem").read_text() for name in ("old", "new")}

    def install(name: str) -> None:
        for source, target in zip((f"{name}.pem", f"{name}.key"), files, strict=True):
            shutil.copyfile(folder / source, target)

    install("old")
    server = serve("memory://", f"--tls-cert={files[0]}", f"--tls-key={files[1]}")
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    with httpx.Client(base_url=f"https://{server.http}", verify=context, timeout=60) as client:
        assert client.get("/livez").status_code == 200
        assert _shown(server.http) == _shown(server.grpc) == texts["old"]
        install("new")
        server.process.send_signal(signal.SIGHUP)
        _until(lambda: _shown(server.http) == _shown(server.grpc) == texts["new"])
        assert client.get("/livez").status_code == 200
        shutil.copyfile(folder / "old.pem", files[0])  # and the key of the other
        server.process.send_signal(signal.SIGHUP)
        _until(lambda: "not read again" in server.errors())
        files[1].write_text("rubbish")
        server.process.send_signal(signal.SIGHUP)
        _until(lambda: server.errors().count("not read again") == 2)
        assert _shown(server.http) == _shown(server.grpc) == texts["new"]
        assert client.get("/livez").status_code == 200
    assert server.stop() == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_authorities_of_clients_are_read_again(
    version: ssl.TLSVersion, serve: Callable[..., Serving], folder: Path, tmp_path: Path
) -> None:
    """Whose authority is trusted no more is refused from then on, also by a session that began before."""
    other = certificates.make(tmp_path, {"client": "DNS:client.example"})
    trusted = tmp_path / "trusted.pem"
    shutil.copyfile(folder / "ca.pem", trusted)
    (tmp_path / "serve.toml").write_text('[mtls]\n"localhost" = ["look:*"]\n"client.example" = ["look:*"]\n')
    tls = [f"--tls-cert={folder}/old.pem", f"--tls-key={folder}/old.key", f"--tls-client-ca={trusted}"]
    server = serve("memory://", *tls, "--config", str(tmp_path / "serve.toml"))
    first, second = (_client(folder, cert, version) for cert in (folder / "new", other / "client"))
    answered, session = _asked(server, first)
    assert (answered, _asked(server, second)[0]) == (True, False)
    assert _asked(server, first, session)[0]
    shutil.copyfile(other / "ca.pem", trusted)
    server.process.send_signal(signal.SIGHUP)
    _until(lambda: _asked(server, second)[0])
    assert not _asked(server, first)[0]
    assert not _asked(server, first, session)[0]
    assert server.stop() == 0


def _client(folder: Path, cert: Path, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(f"{cert}.pem", f"{cert}.key")
    return context


def _asked(
    server: Serving, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[bool, ssl.SSLSession | None]:
    """Tell whether a client with a certificate is answered; return its session, too."""
    host, _, port = server.http.rpartition(":")
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, int(port)), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as connection,
    ):
        connection.sendall(b"GET /v1/logs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(65536).startswith(b"HTTP/1.1 200"), connection.session
    return False, None


def test_a_server_without_certificates_survives_a_hangup(serve: Callable[..., Serving]) -> None:
    """A terminal that is closed, or a reload by habit, must not end the server without a drain."""
    server = serve("memory://")
    server.process.send_signal(signal.SIGHUP)
    with httpx.Client(base_url=f"http://{server.http}", timeout=60) as client:
        assert client.get("/livez").status_code == 200
    assert server.stop() == 0


def _handshake(server: ssl.SSLContext, folder: Path) -> str:
    """Return the certificate that a context shows to a client, which checks it."""
    client = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    ends = [asking, server.wrap_bio(to_server, to_client, server_side=True)]
    while ends:
        for end in tuple(ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)
    return ssl.DER_cert_to_PEM_cert(asking.getpeercert(binary_form=True) or b"")


def test_files_that_change_while_they_are_read_again_harm_no_port(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who renews writes two files, and the signal may come in between: what both ports show was read and checked once.

    The HTTP port took the files from the disk a second time, into the context that is in use.
    """
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    settings = ServeSettings(url="memory://", tls_cert=str(cert), tls_key=str(key))

    def install(name: str) -> None:
        shutil.copyfile(folder / f"{name}.pem", cert)
        shutil.copyfile(folder / f"{name}.key", key)

    def read_then_changed(given: ServeSettings) -> Any:
        found = setup.read_tls(given)
        key.write_text("rubbish")
        return found

    install("old")
    first = setup.read_tls(settings)
    assert first is not None
    current = Certificates(settings, first)
    in_use = current.context()
    assert _handshake(in_use, folder) == (folder / "old.pem").read_text()
    install("new")
    monkeypatch.setattr(certificates_module, "read_tls", read_then_changed)
    current.reload()
    assert _handshake(in_use, folder) == (folder / "new.pem").read_text() == current.current.cert.decode()
    current.reload()  # rubbish changes nothing
    assert _handshake(in_use, folder) == (folder / "new.pem").read_text()


def test_a_certificate_and_a_key_that_were_never_a_pair_are_not_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are replaced between the check and the reading: gRPC would show one with the key of the other."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for source, target in (("old.pem", cert), ("old.key", key)):
        shutil.copyfile(folder / source, target)
    load = ssl.SSLContext.load_cert_chain

    def loaded_then_replaced(context: ssl.SSLContext, *files: str) -> None:
        load(context, *files)
        shutil.copyfile(folder / "new.key", key)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", loaded_then_replaced)
    with pytest.raises(InvalidArgument, match="being replaced"):
        setup.read_tls(ServeSettings(url="memory://", tls_cert=str(cert), tls_key=str(key)))
