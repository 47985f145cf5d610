"""TLS and client certificates at a real server; what may be reached from elsewhere, and what not."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import pytest

from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument
from oncelog.server.security import setup, tokens
from oncelog.server.settings import ServeSettings
from oncelog.wire import messages
from oncelog.wire.methods import METHODS
from tests.server import certificates as certificates_module
from tests.servers import Serving


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an authority, and certificates of a server and of two clients."""
    names = {
        "server": "DNS:localhost,IP:127.0.0.1",
        "importer": "DNS:importer.example",
        "both": "DNS:importer.example,URI:spiffe://shop/reader",
    }
    return certificates_module.make(tmp_path_factory.mktemp("certificates"), names)


def _context(folder: Path, client: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    if client is not None:
        context.load_cert_chain(folder / f"{client}.pem", folder / f"{client}.key")
    return context


def _info(server: Serving, folder: Path, client: str | None, log: str) -> str:
    """Ask for a log over gRPC with TLS; return the name of the code."""
    pair = (None, None)
    if client is not None:
        pair = (folder / f"{client}.key").read_bytes(), (folder / f"{client}.pem").read_bytes()  # type: ignore[assignment]
    credentials = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes(), *pair)
    method = METHODS["Log.Info"]
    with grpc.secure_channel(server.grpc, credentials) as channel:
        call = channel.unary_unary(method.path, method.encode_request, method.decode_response)
        try:
            call(messages.LogRequest(log=log), timeout=30)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def test_a_certificate_is_a_caller_on_both_ports(
    serve: Callable[..., Serving], certificates: Path, tmp_path: Path
) -> None:
    """By one exact name in it. Without a certificate there is no connection; two names that are known are refused."""
    (tmp_path / "serve.toml").write_text(
        '[mtls]\n"importer.example" = ["look,append,admin:shop/*"]\n"spiffe://shop/reader" = ["read:*"]\n'
    )
    tls = [f"--tls-{name}={certificates / file}" for name, file in (("cert", "server.pem"), ("key", "server.key"))]
    server = serve(
        "memory://", *tls, f"--tls-client-ca={certificates / 'ca.pem'}", "--config", str(tmp_path / "serve.toml")
    )
    url = f"https://{server.http}"
    with httpx.Client(base_url=url, verify=_context(certificates, "importer"), timeout=60) as client:
        assert client.post("/v1/logs", json={"name": "shop/orders"}).status_code == 201
        assert client.post("/v1/logs/shop%2Forders/records", content=b"paid").status_code == 201
        assert client.get("/v1/logs/shop%2Forders/records").status_code == 403
        assert client.get("/v1/logs/other").status_code == 404
    with httpx.Client(base_url=url, verify=_context(certificates, "both"), timeout=60) as client:
        assert client.get("/v1/logs/shop%2Forders").status_code == 401
    with (
        httpx.Client(base_url=url, verify=_context(certificates), timeout=60) as client,
        pytest.raises(httpx.HTTPError),
    ):
        client.get("/livez")
    assert _info(server, certificates, "importer", "shop/orders") == "OK"
    assert _info(server, certificates, "importer", "other") == "NOT_FOUND"
    assert _info(server, certificates, "both", "shop/orders") == "UNAUTHENTICATED"
    assert _info(server, certificates, None, "shop/orders") == "UNAVAILABLE"


def _load(**given: object) -> setup.Security:
    return setup.load(ServeSettings(url="memory://", **given), SYSTEM)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given", [{"http": "0.0.0.0:0"}, {"grpc": "0.0.0.0:0"}, {"grpc": "[::]:0"}, {"http": "10.0.0.1:0"}]
)
def test_nobody_is_open_to_others_by_accident(given: dict[str, str], certificates: Path, tmp_path: Path) -> None:
    """Any address but loopback needs TLS and callers that are known, or ``--insecure`` said aloud."""
    path = tmp_path / "tokens"
    tokens.create(path, "a", ["look:*"], SYSTEM)
    tls = {"tls_cert": str(certificates / "server.pem"), "tls_key": str(certificates / "server.key")}
    for more in ({}, tls, {"tokens": str(path)}):
        with pytest.raises(InvalidArgument, match="--insecure"):
            _load(**given, **more)
    assert not _load(**given, **tls, tokens=str(path)).loopback
    assert not _load(**given, insecure=True).loopback
    assert _load().loopback


@pytest.mark.parametrize("given", [
    {"tls_cert": "x"}, {"tls_cert": "/none", "tls_key": "/none"}, {"mtls": {"a": ["read:*"]}}, {"origins": ["*"]},
    {"origins": ["https://a/b"]},
])  # fmt: skip
def test_settings_that_mean_nothing_are_refused(given: dict[str, object]) -> None:
    """A server starts as it was meant to, or not."""
    with pytest.raises(InvalidArgument):
        _load(**given)


def test_a_token_file_that_is_not_there_lets_nobody_in(tmp_path: Path) -> None:
    """It is no reason to be open."""
    assert not _load(tokens=str(tmp_path / "none")).authorizer.is_open


@pytest.mark.parametrize("name", ["tls_client_ca", "tls_fleet_ca", "tls_name"])
def test_a_part_of_tls_without_its_certificate_is_a_mistake(name: str) -> None:
    """Who names the authority of clients wants certificates to be asked for: the server was open, and said nothing."""
    with pytest.raises(InvalidArgument, match=f"{name} needs tls_cert and tls_key"):
        setup.read_tls(ServeSettings(url="memory://", **{name: "x"}))  # type: ignore[arg-type]
