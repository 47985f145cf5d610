"""How hard hypothesis looks: the same few examples every time, or under ``make soak`` many new ones."""

import os

from hypothesis import settings

# What is counted must not depend on how many tests came before: numba has tests of its own.
os.environ.setdefault("ONCELOG_FAST", "0")

settings.register_profile("ci", derandomize=True, max_examples=50, deadline=None)
settings.register_profile("soak", max_examples=5_000, deadline=None, print_blob=True)
settings.load_profile("soak" if os.environ.get("ONCELOG_SOAK") == "1" else "ci")
