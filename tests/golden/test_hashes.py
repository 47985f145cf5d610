"""Values that stored logs depend on. If one of these tests fails, the code is wrong, not the test."""

from __future__ import annotations

import pytest

from oncelog.dedup.content import content_id
from oncelog.dedup.identity import Hasher
from oncelog.types import Record

HASHER = Hasher(bytes(range(32)))

IDENTITIES = [
    ("", "order-42", (0xDFE4146651A01091, 0xFE61417E8F144C86)),
    ("", "漢字", (0x2D2F397CE56DE2E7, 0xD67C96628878B1B1)),
    ("s", "x", (0xBCEC628BA5A9EE73, 0x315C7DB4D640E115)),
    ("", "i" * 62, (0x7C607206F9983D7C, 0x06EAD918AD71505E)),
    ("", "i" * 63, (0x0987FF3E5F716034, 0x10029C4CE376DC37)),
    ("", "i" * 255, (0x650921EECF9E84A8, 0x2186239489EAF747)),
    ("s" * 993, "i" * 32, (0xB72E0691FEAB0D52, 0x6208F2CDFCD821A2)),
]
RICH = Record(
    b"paid",
    stream="",
    type="order",
    headers={"trace": b"\x01\x02", "a": b""},
    producer="p-1",
    sequence=-1,
    tenant="té",
)
CONTENTS = [
    (Record(b""), 0x467BC831405B77AF, "c183236cfc1743c129f197151d65119e"),
    (Record(b"paid"), 0x6C935EAD27492B7D, "1ff13857c5209e92a8a1e145bc8174b9"),
    (Record(b"v" * 126), 0x6B567D9E2A3E814F, "56eaab33e2da5b2a37e0eac54d52d31b"),
    (Record(b"v" * 127), 0x13CF0108013622DE, "4fb087e25409334cf898ff89ce1ee924"),
    (Record(b"v" * 1008), 0x49DC9D2F1063E0C6, "d047779e6ff35ef8a5d56a0d7415d1f3"),
    (Record(b"v" * 1009), 0x7D4D66FE33D2BD26, "a03a733bfcb4ed9f3891c07972f970b8"),
    (Record(b"v" * 4158), 0x623C49BC5C5C7064, "0b4a62df993de82deb5ac17ecf4bb22d"),
    (Record(b"v" * 4159), 0x25B563EA068545D6, "7254cf5a3c7e43a001a0bd4f1d06e78c"),
    (RICH, 0x1D15450F65DD1154, "3632032083fd8ad2317e8a2cec90db64"),
]


@pytest.mark.parametrize(("scope", "id", "expected"), IDENTITIES)
def test_identity_never_changes(scope: str, id: str, expected: tuple[int, int]) -> None:
    """A snapshot written by any version is understood by every later one."""
    assert HASHER.identity(scope, id) == expected


@pytest.mark.parametrize(("record", "fingerprint", "content"), CONTENTS)
def test_fingerprint_and_content_id_never_change(record: Record, fingerprint: int, content: str) -> None:
    """A retry of what an older version stored is no conflict, and finds its content id."""
    assert HASHER.fingerprint(record) == fingerprint
    assert content_id("log-1", record) == content
