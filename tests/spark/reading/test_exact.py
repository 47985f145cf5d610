"""What a type of Spark's does not hold is found before Spark rounds, cuts or invents, without a word."""

from __future__ import annotations

from decimal import Decimal

import pytest

from oncelog.spark.reading import exact

HELD = [
    ("decimal(10,2)", ["1", "-1.2", "1.2300", "1.5e2", ".5", "5.", " 7 ", "0.000", "1e-2", "0e-9"]),
    ("decimal(38,0)", ["9" * 38, "1e2"]),
    ("date", ["2026-01-05", "2026-1-5", "2026", "2026-01-05T00:00:00", "2026-01-05 00:00", "yesterday"]),
    ("timestamp", ["2026-01-05", "2026-01-05T12:30:00.123456Z", "2026-01-05 12:30:00.123456000+02:00", "12 EUR"]),
    ("timestamp_ntz", ["2026-01-05", "2026-01-05T12:30:00.123456", "2026-01-05 12:30", "2026"]),
    ("double", ["1e308", "-0.0", "NaN", "Infinity", "x", "1" * 300]),
    ("float", ["3.4e38", "0.1", "-3.4028234663852886e38", "NaN"]),
    ("string", ["1.239"]),
    ("timestamp", ["2026-03-29 02:30", "2026-03-29 03:00 Europe/Berlin", "2026-03-29 02:30 Mars/Olympus"]),
    ("timestamp", ["2026-03-29 02:30 Europe", "2026-03-29 02:30 " + "x" * 1_000]),
    (exact.in_zone("Europe/Berlin"), ["2026-03-29 01:59:59.999999", "2026-03-29T03:00", "2026-03-29T02:30:00Z"]),
    (exact.in_zone("Europe/Berlin"), ["2026-10-25 02:30", "2026", "2026-02-30", "202600-03-29 02:30", "x"]),
]
NOT_HELD = [
    ("decimal(10,2)", ["1.239", "1e-3", "12,50", "1,239.00", "1_0", "NaN", "x", "0.001"]),
    ("decimal(38,2)", ["1234567890123456789012345.678", "1e-3"]),
    ("date", ["2026-01-05T23:59:59", "2026-01-05 10:00", "2026-01-05T00:00:00+02:00"]),
    ("timestamp", ["2026-01-05T12:30:00.1234567Z", "12:30", "T12:30:00", "2026-01-05 00:00:00.000000001"]),
    ("timestamp_ntz", ["2026-01-05T12:30:00Z", "2026-01-05T12:30:00+02:00", "2026-01-05T12:30:00.1234567", "12:30"]),
    ("double", ["1e999", "-1e400"]),
    ("float", ["1e39", "-3.5e38", "1e999"]),
    ("timestamp", ["2026-03-29 02:30 Europe/Berlin", "2026-03-29T02:30:00 CET"]),
    (exact.in_zone("Europe/Berlin"), ["2026-03-29 02:00", "2026-03-29T02:59:59.999999", "2026-03-29 2", "12:30"]),
    (exact.in_zone("America/Sao_Paulo"), ["2018-11-04", "2018-11-4T00:30"]),
]


@pytest.mark.parametrize(("kind", "texts"), HELD)
def test_texts_that_a_type_holds(kind: str, texts: list[str]) -> None:
    """They are not rescued; what is of no such type at all is left to Spark."""
    assert [text for text in texts if not exact.holds(kind, text)] == []


@pytest.mark.parametrize(("kind", "texts"), NOT_HELD)
def test_texts_that_say_more_than_a_type_holds(kind: str, texts: list[str]) -> None:
    """Stored as they would be by Spark, they would say something else."""
    assert [text for text in texts if exact.holds(kind, text)] == []


def test_digits_behind_the_point() -> None:
    """Zeros at the end are none. What no decimal of Spark's holds is not within."""
    assert [exact.is_within(Decimal(text), 2) for text in ("1.2300", "1.239", "1E-3", "0E-9", "NaN", "1E+400")] == [
        *(True, False, False, True, False, False)
    ]
