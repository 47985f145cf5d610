"""``python -m examples.cluster``."""

import sys
from pathlib import Path

from examples.cluster import run

done, ids = run(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
print(f"{done.attempts} attempts, {done.stored} stored, {len(ids)} rows, {len(set(ids))} orders in the output")
