"""Stored bytes that somebody forged: refused by name, or read; never a crash. ``make soak`` tries many more of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from oncelog.clock import SYSTEM
from tests.hostile.fuzzer import Report

COUNTS = {"block": 1_500, "envelope": 1_500, "headed": 1_000, "sealed": 800, "run": 1_000, "wire": 1_500, "log": 40}
"""Inputs of each kind: about ten seconds of one core together."""

SOAK_TIMES = 200
TIMEOUT_S = 3_600 if os.environ.get("ONCELOG_SOAK") == "1" else 300


def fuzz(kind: str, seed: int, count: int) -> Report:
    """Run the fuzzer in a process of its own, and return what it reports."""
    command = [sys.executable, "-m", "tests.hostile.fuzzer", kind, str(seed), str(count)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr[-3000:]}"
    return msgspec.json.decode(done.stdout, type=Report)


@pytest.mark.parametrize("kind", COUNTS)
def test_forged_bytes_are_refused_or_read(kind: str) -> None:
    """Damaged bytes whose checksums hold are ``CorruptionError`` or records: never another error, never a crash."""
    report = fuzz(kind, 1, COUNTS[kind])
    assert not report.wrong, "\n".join(report.wrong[:3])
    assert report.tried == COUNTS[kind] == report.refused + report.read
    assert report.refused
    assert report.read, "some damage is harmless: else it is the fuzzer that is broken"


@pytest.mark.soak
@pytest.mark.parametrize("kind", COUNTS)
def test_forged_bytes_are_refused_or_read_for_long(kind: str) -> None:
    """The same with inputs that were never tried, many of them."""
    seed = int.from_bytes(SYSTEM.token(4))
    report = fuzz(kind, seed, COUNTS[kind] * SOAK_TIMES)
    assert not report.wrong, f"seed {seed}: " + "\n".join(report.wrong[:3])
