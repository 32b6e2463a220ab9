"""Evaluate every (method, ratio, benchmark) cell of a spec on Ray, publish to MLflow, write the report.

    python jobs/eval_grid.py sweeps/smoke.yaml [key=value ...]

On a cluster: ray job submit --working-dir . -- python jobs/eval_grid.py sweeps/smoke.yaml
"""

import sys

from indexmem.cli import main

if __name__ == "__main__":
    sys.exit(main(["eval", *sys.argv[1:]]))
