"""Types that bytes are decoded to, made ready before any thread decodes.

msgspec looks at the annotations of a struct when the struct is decoded for the first time. Two threads that do so at
once end the process by a segmentation fault.
"""

from __future__ import annotations

from typing import Any

import msgspec


def prepare(*shapes: Any) -> None:
    """Make types ready to be decoded. To be called where a module is imported, behind its last class."""
    for shape in shapes:
        msgspec.msgpack.Decoder(shape)
