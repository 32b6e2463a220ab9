"""`python -m indexmem`: the command line where no script is on the PATH, as in a job that brought the package along."""

import sys

from indexmem.cli import main

if __name__ == "__main__":
    sys.exit(main())
