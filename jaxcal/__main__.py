"""`python -m jaxcal` is the command `jaxcal`."""

import sys

from jaxcal.cli import main

if __name__ == "__main__":
    sys.exit(main())
