"""Search for good settings: trials that each train and evaluate, on Ray Tune. Goes on where it was stopped.

    python jobs/sweep.py sweeps/tune/learning-rate.yaml [key=value ...]

On a cluster: ray job submit --working-dir . -- python jobs/sweep.py sweeps/tune/learning-rate.yaml
"""

import sys

from indexmem.cli import main

if __name__ == "__main__":
    sys.exit(main(["sweep", *sys.argv[1:]]))
