"""``python -m examples.daily``."""

import tempfile
from pathlib import Path

from examples.daily import run

with tempfile.TemporaryDirectory() as name:
    print(run(Path(name)))
