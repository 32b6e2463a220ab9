"""Train the testbed, a small model that retrieves, from nothing on generated tasks; put it into the package.

    python jobs/pretrain_testbed.py sweeps/testbed.yaml [key=value ...]

Without Ray: python jobs/pretrain_testbed.py sweeps/testbed.yaml --without-ray FOLDER, also under torchrun.
On a cluster: ray job submit --working-dir . -- python jobs/pretrain_testbed.py sweeps/testbed.yaml
"""

import sys

from indexmem.cli import main

if __name__ == "__main__":
    sys.exit(main(["pretrain", *sys.argv[1:]]))
