"""Write a spec's HTML report again from its stored rows.

    python jobs/report.py sweeps/smoke.yaml [key=value ...]

On a cluster: ray job submit --working-dir . -- python jobs/report.py sweeps/smoke.yaml
"""

import sys

from indexmem.cli import main

if __name__ == "__main__":
    sys.exit(main(["report", *sys.argv[1:]]))
