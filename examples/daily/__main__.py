"""``python -m examples.daily``."""

import tempfile
from pathlib import Path

from examples.daily import run

with tempfile.TemporaryDirectory() as name:
    table = run(Path(name))
print(f"{table['rows']} rows, {table['orders']} orders, {table['cents'] / 100:.2f} in all")
