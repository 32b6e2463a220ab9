"""Train the spec's indexer by DDP distillation on Ray Train.

    python jobs/distill.py sweeps/smoke.yaml [key=value ...]

On a cluster: ray job submit --working-dir . -- python jobs/distill.py sweeps/smoke.yaml
"""

import sys

from indexmem.cli import main

if __name__ == "__main__":
    sys.exit(main(["distill", *sys.argv[1:]]))
