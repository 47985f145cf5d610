"""Types are ready before threads decode: msgspec ends the process when two threads prepare one type at once."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import oncelog
from oncelog.shapes import UNREADABLE

_FIRST_USE = """
import sys, threading
import oncelog
from oncelog.format import manifest
sys.setswitchinterval(1e-6)
made = manifest.encode_body(manifest.Manifest(
    name="x", log_id="0" * 32, secret=bytes(32), settings=oncelog.LogSettings(), created_us=0, labels=0))
import pyarrow as pa
go = threading.Barrier(8)
def decode():
    go.wait()
    manifest.decode_body(pa.py_buffer(made), "test")
threads = [threading.Thread(target=decode) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


@pytest.mark.parametrize(
    "data", [b'{"a": "\xff"}', b"[" * 100_000, b"{", b""], ids=["no UTF-8", "nested", "cut short", "nothing"]
)
def test_bytes_that_cannot_be_decoded_raise_what_is_expected(data: bytes) -> None:
    """Msgspec lets errors of Python through: those are expected, too."""
    with pytest.raises(UNREADABLE):
        msgspec.json.decode(data)
    with pytest.raises(UNREADABLE):
        msgspec.msgpack.decode(b"\xa2\xff\xfe" if b"\xff" in data else b"\x91" * len(data))


def test_no_code_expects_errors_of_msgspec_alone() -> None:
    """Text that is not UTF-8 escaped as ``UnicodeDecodeError`` from eleven places, where ``CorruptionError`` or
    ``BadValue`` was promised.
    """
    source = Path(oncelog.__file__).parent
    wrong = [
        f"{path.relative_to(source)}:{node.lineno}"
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler) and node.type is not None and _is_partial(ast.unparse(node.type))
    ]
    assert wrong == []


def _is_partial(caught: str) -> bool:
    """Tell whether a clause catches errors of msgspec's decoding, and not all that decoding raises."""
    of_msgspec = "msgspec.MsgspecError" in caught or "msgspec.DecodeError" in caught
    return of_msgspec and not any(name in caught for name in ("UnicodeDecodeError", "UnicodeError", "ValueError"))


def test_threads_may_decode_a_type_for_the_first_time() -> None:
    """Eight threads read a manifest at once, in processes that never have: none of the processes dies."""
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", _FIRST_USE], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()[-2000:]
