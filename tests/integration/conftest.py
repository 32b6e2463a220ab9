"""One small local Ray cluster for the whole session, and specs on tiny models."""

import os

import pytest
import yaml
from tiny_models import save_tiny_model
from tiny_tokenizers import TEXT

from indexmem.cluster.connection import ray_cluster
from indexmem.config.load import load


@pytest.fixture(scope="session")
def local_ray():
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ray_cluster(cpus=2):
        yield


@pytest.fixture
def spec_file(tmp_path):
    """A spec that trains and evaluates a tiny model in seconds, all of it under tmp_path."""
    save_tiny_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    spec = {
        "name": "tiny",
        "model": {"id": str(tmp_path / "model")},
        "distill": {
            "texts": [str(tmp_path / "text.txt")],
            "length": 96,
            "workers": 2,
            "schedule": {"warmup": 2, "stable": 20, "decay": 8, "peak_lr": 0.01, "final_lr": 0.001},
            "checkpoint_every": 5,
        },
        "grid": {
            "methods": ["full", "knorm", "random", "pyramidkv"],
            "ratios": [0.5, 0.8],
            "benchmarks": ["niah_single_1", "niah_multikey_1"],
            "length": 640,
            "samples": 6,
            "haystack": str(tmp_path / "text.txt"),
            "max_new_tokens": 8,
        },
        "run": {"root": str(tmp_path / "runs")},
    }
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


@pytest.fixture
def spec(spec_file):
    return load(spec_file)
