"""How hard hypothesis looks: the same few examples every time, or under ``make soak`` many new ones."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, max_examples=50, deadline=None)
settings.register_profile("soak", max_examples=5_000, deadline=None, print_blob=True)
settings.load_profile("soak" if os.environ.get("ONCELOG_SOAK") == "1" else "ci")
