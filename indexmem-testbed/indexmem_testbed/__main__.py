"""`python -m indexmem_testbed SPEC [key=value ...]`."""

import sys

from indexmem_testbed.cli import main

if __name__ == "__main__":
    sys.exit(main())
