"""`python -m autoseg` is the same as `autoseg`."""

import sys

from autoseg.cli import main

if __name__ == "__main__":
    sys.exit(main())
