"""An envelope gives back what was put in, or says what is wrong with it."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import CorruptionError, Unsupported
from oncelog.format import frame
from tests.format.samples import flips

KIND = b"TEST"


@given(payload=st.binary(max_size=300), version=st.integers(0, 5))
def test_payload_comes_back(payload: bytes, version: int) -> None:
    """Every payload survives, from bytes and from an Arrow buffer."""
    wrapped = frame.wrap(KIND, version, payload)
    assert len(wrapped) == frame.HEAD_BYTES + len(payload)
    assert frame.unwrap(KIND, 5, wrapped, "a thing") == payload
    assert bytes(frame.unwrap(KIND, 5, pa.py_buffer(wrapped), "a thing")) == payload


def test_payload_may_be_any_buffer() -> None:
    """Writers hand over what they have, without copying it first."""
    expected = frame.wrap(KIND, 1, b"abc")
    for payload in (bytearray(b"abc"), memoryview(b"abc"), pa.py_buffer(b"abc")):
        assert frame.wrap(KIND, 1, payload) == expected


def test_payload_is_not_copied_and_not_writable() -> None:
    """A body of megabytes is read where it lies, and nobody changes it there."""
    wrapped = pa.py_buffer(frame.wrap(KIND, 1, b"abcdef"))
    payload = frame.unwrap(KIND, 1, wrapped, "a thing")
    assert payload.readonly
    assert pa.py_buffer(payload).address == wrapped.address + frame.HEAD_BYTES


def test_every_flipped_bit_is_seen() -> None:
    """No single damaged bit yields a payload."""
    for _, damaged in flips(frame.wrap(KIND, 1, b"some payload")):
        with pytest.raises(CorruptionError):
            frame.unwrap(KIND, 1, damaged, "a thing")


def test_every_other_length_is_seen() -> None:
    """An envelope that was cut short, or grew, is refused."""
    wrapped = frame.wrap(KIND, 1, b"some payload")
    for end in range(len(wrapped)):
        with pytest.raises(CorruptionError):
            frame.unwrap(KIND, 1, wrapped[:end], "a thing")
    with pytest.raises(CorruptionError, match="1 bytes too many"):
        frame.unwrap(KIND, 1, wrapped + b"\0", "a thing")


def test_front_leaves_what_follows() -> None:
    """A head at the front of a larger object is read without the rest."""
    wrapped = frame.wrap(KIND, 1, b"head")
    payload, size_bytes = frame.unwrap_front(KIND, 1, wrapped + b"the rest", "a thing")
    assert (bytes(payload), size_bytes) == (b"head", len(wrapped))


def test_other_kind_is_refused_by_name() -> None:
    """A snapshot is never read as a manifest, and the message says which object it was."""
    with pytest.raises(CorruptionError, match=r"manifest 7: begins with b'TEST', expected b'MANI'"):
        frame.unwrap(b"MANI", 1, frame.wrap(KIND, 1, b""), "manifest 7")


def test_newer_version_is_unsupported_only_when_whole() -> None:
    """A newer format asks for an upgrade; a damaged version number is damage."""
    newer = frame.wrap(KIND, 2, b"from the future")
    with pytest.raises(Unsupported, match="version 2"):
        frame.unwrap(KIND, 1, newer, "a thing")
    for _, damaged in flips(newer):
        with pytest.raises(CorruptionError):
            frame.unwrap(KIND, 1, damaged, "a thing")


@given(garbage=st.binary(max_size=100))
def test_garbage_is_refused(garbage: bytes) -> None:
    """Whatever bytes come, the answer is an error of ours."""
    for content in (garbage, KIND + garbage):
        with pytest.raises(CorruptionError):
            frame.unwrap(KIND, 1, content, "a thing")
