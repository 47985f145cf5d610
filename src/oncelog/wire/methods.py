"""The methods of ``wire.proto``: their paths, and how their messages become bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from oncelog.wire import messages

Codec = Callable[[Any], Any]


class Method(NamedTuple):
    """One method of a service, for both ends of a channel.

    ``encode_*`` and ``decode_*`` are ``None`` for raw messages: gRPC hands the bytes through.
    """

    service: str
    name: str
    client_streams: bool
    server_streams: bool
    encode_request: Codec | None
    decode_request: Codec | None
    encode_response: Codec | None
    decode_response: Codec | None

    @property
    def path(self) -> str:
        """The path of the HTTP/2 request: ``/oncelog.v1.Log/Append``."""
        return f"/{messages.PACKAGE}.{self.service}/{self.name}"


def _codec(name: str) -> tuple[Codec | None, Codec | None]:
    if name == "Raw":
        return None, None
    found = messages.CLASSES[name]
    return found.SerializeToString, found.FromString


def _method(service: str, described: Any) -> Method:
    return Method(
        service,
        described.name,
        described.client_streaming,
        described.server_streaming,
        *_codec(described.input_type.name),
        *_codec(described.output_type.name),
    )


METHODS: dict[str, Method] = {
    f"{service}.{method.name}": _method(service, method)
    for service, described in messages.FILE.services_by_name.items()
    for method in described.methods
}
"""All methods by service and name: ``METHODS["Log.Append"]``."""
