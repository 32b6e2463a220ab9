"""Two processes of `torchrun` train a model together, and a second start finds it."""

import json
import subprocess
import sys

import pytest
import yaml

from indexmem.distill.history import History

pytestmark = pytest.mark.ray  # slow


def test_two_processes_train_the_model(tmp_path):
    spec = {
        "name": "tiny-testbed",
        "pretrain": {
            "architecture": {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate": 48},
            "texts": ["essays-train"],
            "stages": [{"length": 32, "share": 1.0, "dense": 1.0}],
            "steps": 6,
            "step_tokens": 256,
            "checkpoint_every": 3,
            "evaluate_samples": 0,
        },
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for _ in range(2):
        subprocess.run([*two, "-m", "indexmem_testbed", "spec.yaml"], cwd=tmp_path, check=True, timeout=300)
    folder = tmp_path / "build" / "tiny-testbed"
    assert json.loads((folder / "final" / "trained.json").read_text())["step"] == 6
    assert (folder / "final" / "model.safetensors").is_file() and not (folder / "final" / "state.pt").exists()
    assert [row["step"] for row in History(folder / "history", span=3).read()] == list(range(6))
