"""Proof that a server of the fleet handed a call on."""

from __future__ import annotations

import pytest

from oncelog.server.fleet.hop import Hop, derived, opened, opened_text, seal

HOP = Hop(("a", 3), "10.0.0.1:5", ("spiffe://shop/importer",))


def test_only_the_key_makes_a_hop() -> None:
    """A client cannot say that it is a server, nor whose certificate it has."""
    sealed = seal(b"key", HOP)
    assert opened(b"key", sealed) == HOP
    assert opened_text(b"key", sealed.hex()) == HOP
    assert opened(b"other", sealed) is None
    assert derived(b"key", "sessions") != derived(b"key", "other")


@pytest.mark.parametrize("at", range(0, 60, 7))
def test_a_changed_byte_is_noticed(at: int) -> None:
    """What was sealed cannot be changed on the way."""
    sealed = bytearray(seal(b"key", HOP))
    sealed[at] ^= 1
    assert opened(b"key", bytes(sealed)) is None


@pytest.mark.parametrize("text", ["", "zz", "00", "é"])
def test_text_that_is_no_hop(text: str) -> None:
    """A header of a client is never an exception."""
    assert opened_text(b"key", text) is None
