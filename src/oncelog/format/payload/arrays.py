"""Arrow arrays from Python lists, by their buffers: ``pa.array`` would import pandas where it finds it."""

from __future__ import annotations

from collections.abc import Sequence, Sized

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.errors import InvalidArgument

_BYTES_MAX = (1 << 31) - 1
_BYTE_MAX = 255


def binaries(values: Sequence[bytes]) -> pa.Array:
    """Return byte strings as a binary array.

    >>> binaries([b"a", b"", b"bc"]).to_pylist()
    [b'a', b'', b'bc']
    """
    return _array(pa.binary(), b"".join(values), values, None)


def texts(values: Sequence[str | None]) -> pa.Array:
    """Return strings, some of them perhaps missing, as a string array.

    >>> texts(["a", None, "ü"]).to_pylist()
    ['a', None, 'ü']
    """
    joined = _joined(values)
    if joined is not None and joined.isascii():
        return _array(pa.string(), joined.encode(), values, None)  # type: ignore[arg-type]
    return texts_of_utf8([None if value is None else value.encode() for value in values])


def _joined(values: Sequence[str | None]) -> str | None:
    """Return strings as one, or ``None`` if some are missing: to look for those first would take longer."""
    try:
        return "".join(values)  # type: ignore[arg-type]
    except TypeError:
        return None


def texts_of_utf8(values: Sequence[bytes | None]) -> pa.Array:
    """Return encoded strings, some of them perhaps missing, as a string array. That they are UTF-8 is not checked."""
    if None not in values:
        return _array(pa.string(), b"".join(values), values, None)  # type: ignore[arg-type]
    present = [value or b"" for value in values]
    return _array(pa.string(), b"".join(present), present, [value is not None for value in values])


def integers(values: NDArray[np.int64], valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return numbers, some of them perhaps missing, as an int64 array.

    >>> integers(np.array([1, 2]), np.array([True, False])).to_pylist()
    [1, None]
    """
    bitmap = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(values), [bitmap, pa.py_buffer(np.ascontiguousarray(values))])


def booleans(values: NDArray[np.bool_]) -> pa.Array:
    """Return truth values as a boolean array.

    >>> booleans(np.array([True, False])).to_pylist()
    [True, False]
    """
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])


def _array(kind: pa.DataType, data: bytes, parts: Sequence[Sized], valid: list[bool] | None) -> pa.Array:
    if len(data) > _BYTES_MAX:
        message = f"{len(data)} bytes in one column: append in parts of less than 2 GiB"
        raise InvalidArgument(message)
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(_sizes(parts, len(data)), out=offsets[1:])
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(parts), [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])


def _sizes(parts: Sequence[Sized], size_bytes: int) -> NDArray[np.uint8] | NDArray[np.int32]:
    """Return how long each part is, of so many bytes in all. Sizes of one byte take two thirds of the time."""
    if size_bytes <= _BYTE_MAX * len(parts):
        try:
            return np.frombuffer(bytearray(map(len, parts)), np.uint8)
        except ValueError:  # one of them is longer
            pass
    return np.fromiter(map(len, parts), np.int32, len(parts))


def numbers(array: pa.Array) -> NDArray[np.int64]:
    """Return an int64 array without nulls, or one of times, in numpy's form. Unlike Arrow's own way it loads no pandas.

    >>> numbers(pa.array([1, 2, 3])[1:])
    array([2, 3])
    """
    if len(array) == 0:
        return np.empty(0, np.int64)
    return np.frombuffer(array.buffers()[1], np.int64, len(array), 8 * array.offset)


def flags(array: pa.Array) -> NDArray[np.bool_]:
    """Return a boolean array without nulls in numpy's form.

    >>> flags(pa.array([True, False]))
    array([ True, False])
    """
    return _bits(array.buffers()[1], array.offset, len(array))


def present(array: pa.Array) -> NDArray[np.bool_]:
    """Return which elements of an array are not null.

    >>> present(pa.array(["a", None]))
    array([ True, False])
    """
    return _bits(array.buffers()[0], array.offset, len(array))


def _bits(bitmap: pa.Buffer | None, offset: int, count: int) -> NDArray[np.bool_]:
    if bitmap is None:
        return np.ones(count, np.bool_)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=offset + count, bitorder="little")
    return bits[offset:].view(np.bool_)
