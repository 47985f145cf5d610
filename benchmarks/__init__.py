"""Oncelog beside what one would use instead of it: ``python -m benchmarks``, or ``make bench``."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # its handlers may end a child that is to become another user
