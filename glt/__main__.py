"""``python -m glt`` is ``glt``."""

import sys

from glt.cli import main

if __name__ == "__main__":
    sys.exit(main())
