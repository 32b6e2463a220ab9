"""Train the testbed, a small model that retrieves, from nothing on generated tasks; put it into the package.

    python jobs/pretrain_testbed.py sweeps/testbed.yaml [key=value ...]

Without Ray: python jobs/pretrain_testbed.py sweeps/testbed.yaml --without-ray FOLDER, also under torchrun.
It needs the package in indexmem-testbed/, which `make env` installs. On a cluster: docs/testbed.md.
"""

import sys

from indexmem_testbed.cli import main

if __name__ == "__main__":
    sys.exit(main())
