"""``python -m examples.late``."""

import tempfile
from pathlib import Path

from examples.late import run

with tempfile.TemporaryDirectory() as name:
    late, purged, left, met = run(Path(name))
    print(f"{late} came late, {purged} were purged, {len(left)} records are left; a retry is met at position {met}")
