"""`python -m backplay` is the command `backplay`."""

import sys

from backplay.cli import main

if __name__ == "__main__":
    sys.exit(main())
