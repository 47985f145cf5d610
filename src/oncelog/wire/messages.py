"""The messages of ``wire.proto``, built at import from its descriptor set.

Generated code would pin users to a version of protobuf.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "oncelog.v1"
PROTOCOL = 1
"""The version of the protocol that ``Hello`` and ``Welcome`` carry."""


def proto() -> str:
    """Return the text of ``wire.proto``, from which other languages make their messages."""
    return resources.files(__package__).joinpath("wire.proto").read_text(encoding="utf-8")


def descriptor_set() -> bytes:
    """Return the descriptor set that is shipped with the package."""
    return resources.files(__package__).joinpath("wire.binpb").read_bytes()


def _file() -> Any:
    """Return the descriptor of ``wire.proto`` in a pool of its own, apart from the messages of other packages."""
    described = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set())
    pool = descriptor_pool.DescriptorPool()
    for file in described.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool.FindFileByName("wire.proto")


FILE = _file()
CLASSES: dict[str, Any] = {
    name: message_factory.GetMessageClass(descriptor) for name, descriptor in FILE.message_types_by_name.items()
}
EACH, BATCH = 0, 1
"""The values of the enum ``Way``."""


def __getattr__(name: str) -> Any:
    """Return the class of a message: ``messages.Record``."""
    try:
        return CLASSES[name]
    except KeyError:
        message = f"wire.proto has no message {name!r}"
        raise AttributeError(message) from None
