"""``python -m examples.day``."""

from examples.day import main

main()
