"""``python -m examples.backfill``."""

import tempfile
from pathlib import Path

from examples.backfill import run

with tempfile.TemporaryDirectory() as name:
    for outcome in run(Path(name))[:2]:
        print(f"{outcome.pipeline}: {outcome.rows} rows, {outcome.stored} stored, {outcome.duplicates} duplicates")
