"""Sending a job waits for no library that only the job needs: what is loaded is looked at, not the clock."""

import json
import os
import subprocess
import sys
from pathlib import Path

SWEEPS = Path(__file__).parents[2] / "sweeps"
HEAVY = {"torch", "transformers", "kvpress", "pandas", "datasets", "mlflow", "scipy", "optuna"}
CODE = """
import json, sys
from indexmem.cli import main
import indexmem.cluster.job_server, indexmem.cluster.fetch  # what sends it, and what brings its results
codes = [main(["submit", *words, "--dry-run"]) for words in json.loads(sys.argv[1])]
print(json.dumps([codes, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def test_a_job_is_checked_and_sent_without_the_libraries_that_compute_it():
    words = [
        ["eval", str(SWEEPS / "smoke.yaml"), "eviction.decode_budget=300", "grid.methods=[full, indexmem, snapkv]"],
        ["eval", str(SWEEPS / "smoke.yaml"), "grid.methods=[full, pyramidkv]", "eviction.decode_budget=300"],
        ["distill", str(SWEEPS / "smoke.yaml")],
        ["sweep", str(SWEEPS / "tune" / "learning-rate.yaml")],
        ["nightly", str(SWEEPS / "nightly.yaml")],
    ]
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(words)], env=os.environ, capture_output=True, text=True, check=True
    )
    codes, loaded = json.loads(done.stdout)
    assert codes == [0, 2, 0, 0, 0], done.stderr
    assert "pyramidkv cannot rank a cache that grows" in done.stderr, "mistakes are found all the same"
    assert HEAVY & set(loaded) == set()
