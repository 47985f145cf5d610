"""``python -m examples.embedded``."""

import sys

from examples.embedded import main, produce

if len(sys.argv) > 1:
    produce(sys.argv[1], sys.argv[2])
else:
    main()
