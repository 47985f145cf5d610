"""The functions of ``pyarrow.compute``, loaded when the first one is used.

To load them takes as long as to load all of Oncelog. A process that appends single records, or lists logs, needs none.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a function of ``pyarrow.compute``, and keep it here (PEP 562)."""
    found = getattr(importlib.import_module("pyarrow.compute"), name)
    globals()[name] = found
    return found
