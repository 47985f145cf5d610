"""Programs that show what Oncelog is for: each runs as it stands, ``python -m examples.<name>``."""
