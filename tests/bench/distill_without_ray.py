"""Trains a spec's modules in this process alone, on a machine that has neither Ray nor MLflow.

    python tests/bench/distill_without_ray.py sweeps/testbed.yaml distill.workers=1 run.root=FOLDER

The run goes where that of `jobs/distill.py` goes and has its name, so a grid over the same run root finds its modules.
A run already finished is left alone, one that was stopped goes on from its last checkpoint. Prints the folder.
"""

from __future__ import annotations

import argparse
import time

from indexmem.config.load import load
from indexmem.distill.local import distill_here
from indexmem.distill.runs import DistillRun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    experiment = load(arguments.spec, arguments.overrides)
    run = DistillRun.of(experiment)
    if not run.finished:
        began = time.monotonic()
        distill_here(experiment, run)
        print(f"{experiment.distill.schedule.steps} steps in {time.monotonic() - began:.0f} s")
    print(run.final)


if __name__ == "__main__":
    main()
