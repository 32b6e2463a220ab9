"""A Ray of its own that exports metrics as a user's does, with a tiny grid on it; used by test_metrics.py.

    python metrics_driver.py SPEC RAY_FOLDER

Says "done" when the grid has ended, and keeps Ray up until its input ends.
"""

from __future__ import annotations

import sys
import time


def main(spec_file: str, ray_folder: str) -> None:
    import ray

    from indexmem.config.load import load
    from indexmem.distill.train import TrainingMetrics
    from indexmem.evaluate.fanout import evaluate_on_ray
    from indexmem.evaluate.grid import plan

    spec = load(spec_file)
    # The dashboard writes the service discovery file, as it does on a cluster.
    ray.init(address="local", num_cpus=2, include_dashboard=True, _temp_dir=ray_folder, log_to_driver=False)
    training = TrainingMetrics(spec, [])
    steps = [
        {"step": n, "lr": 0.01, "tokens_per_second": 100.0, "loss": 0.5, "grad_norm": 1.0, "loss_memory-knorm": 0.9}
        for n in range(4)
    ]
    training(steps[:1])
    provenance = {"git_commit": "c0ffee", "versions": {}, "host": "test"}

    def look(_: object) -> None:
        training(steps)
        time.sleep(0.5)  # a gauge is exported for as long as its run goes on, and collected every second

    progress = evaluate_on_ray(spec, plan(spec), provenance, look)
    print(f"done: {progress.line()}", flush=True)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
