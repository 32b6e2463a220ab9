"""The job on Ray Train: two workers train, publish a model folder, and a second start finds it."""

import json

import pytest
import yaml

from indexmem.distill.history import History
from indexmem_testbed.config import load_pretraining
from indexmem_testbed.runs import PretrainRun
from indexmem_testbed.train import train

pytestmark = pytest.mark.ray


@pytest.fixture
def experiment(tmp_path):
    spec = {
        "name": "tiny-testbed",
        "pretrain": {
            "architecture": {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate": 48},
            "texts": ["essays-train"],
            "stages": [{"length": 32, "share": 1.0, "dense": 1.0}],
            "steps": 6,
            "step_tokens": 256,
            "workers": 2,
            "checkpoint_every": 3,
            "evaluate_samples": 0,
        },
        "run": {"root": str(tmp_path / "runs")},
    }
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return load_pretraining(path)


def test_two_workers_train_the_model(local_ray, experiment):
    run, seen = PretrainRun.of(experiment), []
    assert train(experiment, run, seen.append) is None
    assert json.loads((run.final / "trained.json").read_text())["step"] == 6
    assert (run.final / "model.safetensors").is_file() and not (run.final / "state.pt").exists()
    rows = History(run.history, span=3).read()
    assert [row["step"] for row in rows] == list(range(6)) == [row["step"] for row in seen[-1]]
