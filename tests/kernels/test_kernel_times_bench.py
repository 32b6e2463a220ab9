"""The kernels' bench, tried by the interpreter: every row has its figures, and kernels agree with torch."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "bench" / "kernel_times.py"


def test_every_row_is_measured_and_agrees(tmp_path, device):
    out = tmp_path / "out.json"
    subprocess.run([sys.executable, str(BENCH), "--device", device, "--smoke", "--out", str(out)], check=True)
    rows = json.loads(out.read_text())["rows"]
    assert [row["kernel"] for row in rows] == ["indexer_max"] * 3 + ["row_lse", "teacher_max", "reread_max"]
    assert not any("errors" in row for row in rows), rows
    for row in rows:
        assert row["seconds"] > 0 and all(floor > 0 for floor in row["floors"].values())
    assert rows[0]["agreement"]["largest_error"] < 1e-4 and rows[0]["agreement"]["same_winners"] == 1
    assert all(row["agreement"]["largest_loss"] < 0.2 for row in rows[:3])
    assert rows[3]["lse_gap"] < 1e-3 and all(row["largest_error"] < 1e-3 for row in rows[4:])
