"""Certificates that are renewed while a real server runs."""

from __future__ import annotations

import shutil
import signal
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

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


def test_a_server_without_certificates_survives_a_hangup(serve: Callable[..., Serving]) -> None:
    """A terminal that is closed, or a reload by habit, must not end the server without a drain."""
    server = serve("memory://")
    server.process.send_signal(signal.SIGHUP)
    with httpx.Client(base_url=f"http://{server.http}", timeout=60) as client:
        assert client.get("/livez").status_code == 200
    assert server.stop() == 0
