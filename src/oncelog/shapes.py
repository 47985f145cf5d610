"""Types that bytes are decoded to, made ready before any thread decodes.

msgspec looks at the annotations of a struct when the struct is decoded for the first time. Two threads that do so at
once end the process by a segmentation fault.
"""

from __future__ import annotations

from typing import Any

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that it cannot decode. Text that is not UTF-8, and values nested too deeply, are errors
of Python, not of msgspec: code that catches ``MsgspecError`` alone lets them through.
"""


def prepare(*shapes: Any) -> None:
    """Make types ready to be decoded. To be called where a module is imported, behind its last class."""
    for shape in shapes:
        msgspec.msgpack.Decoder(shape)
