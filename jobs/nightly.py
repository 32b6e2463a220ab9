"""Run one night of a nightly spec, or finish it: all suites, the comparison with earlier nights, the verdict.

    python jobs/nightly.py sweeps/nightly.yaml [--date 2026-11-28] [key=value ...]

On a cluster: ray job submit --working-dir . -- python jobs/nightly.py sweeps/nightly.yaml
"""

import sys

from indexmem.cli import main

if __name__ == "__main__":
    sys.exit(main(["nightly", "run", *sys.argv[1:]]))
