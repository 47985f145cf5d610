"""Oncelog beside what one would use instead of it: ``python -m benchmarks``, or ``make bench``."""
