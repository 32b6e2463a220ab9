"""Train the testbed, a small model that retrieves, from nothing on generated tasks; put it into the package.

    python jobs/pretrain_testbed.py sweeps/testbed.yaml [key=value ...]

On several GPUs: torchrun --nproc-per-node 2 jobs/pretrain_testbed.py sweeps/testbed.yaml
It needs the package in indexmem-testbed/, which `make env` installs.
"""

import sys

from indexmem_testbed.cli import main

if __name__ == "__main__":
    sys.exit(main())
