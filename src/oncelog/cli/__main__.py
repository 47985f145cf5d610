"""``python -m oncelog.cli`` is ``oncelog``."""

from oncelog.cli import main

main()
