"""A wheel of somebody's own package in a fresh environment: grid, sweep, submit and nightly take what is in it."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import zipfile
from pathlib import Path
from venv import EnvBuilder

import pytest
import yaml
from head_node import head_node
from tiny_models import save_tiny_model
from tiny_tokenizers import TEXT

METHODS = '''
from acme.helpers import spread
from indexmem.eviction.methods.base import EvictionMethod

class KeyVariance(EvictionMethod):
    """Variance of the key."""

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    def score(self, tap):
        return spread(tap.key_BHLd) ** self.power
'''
HELPERS = """
def spread(x):
    return x.float().var(dim=-1)
"""
BENCHMARKS = '''
from dataclasses import dataclass

from indexmem.benchmarks.base import Benchmark, Sample
from indexmem.benchmarks.scorers import string_match_all

@dataclass(frozen=True, kw_only=True)
class Echo(Benchmark):
    """Says the first number again."""

    name: str = "echo"
    max_new_tokens: int = 4
    protocol: str = "acme"
    words: int = 40

    def samples(self, count, build):
        for index in range(count):
            text = " ".join(str(self.rng(index, build).randrange(10)) for _ in range(self.words))
            yield Sample(f"echo/{index}", "echo", text, "First?", "", (text[0],), 4)

    def score(self, prediction, sample):
        return string_match_all(prediction, sample.references)

    def ingredients(self, build):
        return {"words": self.words}
'''
MEMORIES = '''
import torch
from torch import nn

from indexmem.eviction.memory.base import LatentMemory, MemoryState, Readout

class MeanMemory(LatentMemory):
    """The mean of what was evicted, behind a gate."""

    def __init__(self, shape, geometry):
        super().__init__(shape, geometry)
        self.gate = nn.Parameter(torch.full((), -4.0))

    def write(self, state, evicted):
        leaves = evicted.leaves_BHL[..., None].float()
        mean = (evicted.value_BHLd.float() * leaves).sum(2) / leaves.sum(2).clamp(min=1.0)
        return MemoryState({"mean": mean if state is None else (state.tensors["mean"] + mean) / 2})

    def read(self, state, query_BQnd, output_BQnd, lse_BQn):
        mean = state.tensors["mean"].repeat_interleave(self.group, dim=1)[:, :, None]
        return Readout((output_BQnd.float() + self.gate.sigmoid() * mean).to(output_BQnd.dtype))
'''
ENTRY_POINTS = """[indexmem.methods]
key_variance = acme.methods:KeyVariance
[indexmem.benchmarks]
echo = acme.benchmarks:Echo
[indexmem.memories]
mean = acme.memories:MeanMemory
"""
MODULES = {"methods": METHODS, "helpers": HELPERS, "benchmarks": BENCHMARKS, "memories": MEMORIES, "__init__": ""}


def wheel(folder: Path) -> Path:
    """A wheel is an archive; a build backend would have to be downloaded."""
    path, info = folder / "acme_eviction-1.0-py3-none-any.whl", "acme_eviction-1.0.dist-info"
    files = {f"acme/{name}.py": text for name, text in MODULES.items()} | {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: acme-eviction\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": ENTRY_POINTS,
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def packages(place: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(place / "venv")}))


def install(place: Path) -> None:
    """The wheel, into a fresh environment; ours and what it needs come from this one, so that nothing is downloaded."""
    EnvBuilder(with_pip=True).create(place / "venv")
    here = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (packages(place) / "here.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here))
    done = run(place, "-m", "pip", "install", "-q", "--no-index", "--no-deps", str(wheel(place)))
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a spec, and an environment into which the package is installed."""
    folder = tmp_path_factory.mktemp("acme")
    install(folder)
    save_tiny_model(folder / "model")
    (folder / "text.txt").write_text(TEXT)
    stages = {"warmup": 1, "stable": 2, "decay": 1, "peak_lr": 0.01, "final_lr": 0.001}
    spec = {
        "name": "acme",
        "model": {"id": str(folder / "model")},
        "memory": {"features": "mean", "bases": ["key_variance"]},
        "distill": {"texts": ["text.txt"], "length": 96, "workers": 1, "modules": ["memory"], "schedule": stages},
        "grid": {
            "methods": [
                *("full", "knorm", "key_variance", "key_variance+memory"),
                {"name": "acme.methods:KeyVariance", "params": {"power": -1.0, "share": "model"}},
            ],
            "ratios": [0.5],
            "benchmarks": ["echo"],
            "length": 300,
            "samples": 2,
            "haystack": str(folder / "text.txt"),
        },
        "run": {"root": str(folder / "runs")},
        "tracking": {"enabled": False},
    }
    spec["distill"]["texts"] = [str(folder / "text.txt")]
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    suite = {"name": "acme", "spec": "spec.yaml", "verbs": ["eval"], "overrides": ["grid.methods=[full, key_variance]"]}
    night = {"name": "acme-nights", "cron": "0 2 * * *", "suites": [suite]}
    night |= {"run": spec["run"], "tracking": spec["tracking"]}
    (folder / "night.yaml").write_text(yaml.safe_dump(night))
    return folder


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`words` behind the environment's `python`."""
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [place / "venv" / "bin" / "python", *words]
    return subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, timeout=300)


TRAIN = 'import indexmem; indexmem.train_modules(spec="spec.yaml", progress=False)'
GRID = """
import indexmem
result = indexmem.run_grid(spec="spec.yaml", progress=False)
assert result.failed == 0, result.rows["error_message"].to_pylist()
print(len(set(result.plan.cell_ids)), *sorted(result.plan.cell_ids))
print(*result.plan.methods)
print(" ".join(result.table().split()))
"""
LISTS = """
from indexmem.cli import main
assert main(["methods"]) == main(["benchmarks"]) == 0
assert main(["eval", "spec.yaml", "grid.methods=[key_varianc]", "--dry-run"]) == 2
"""


def test_a_grid_trains_its_memory_evaluates_and_knows_edited_sources(place):
    done = run(place, "-c", TRAIN + GRID + LISTS)
    assert done.returncode == 0, done.stderr[-3000:]
    first = done.stdout
    labels = "full knorm key_variance key_variance+memory acme.methods:KeyVariance(power=-1.0,share=model)"
    assert f"\n{labels}\n" in first
    assert "of other code" not in first
    assert "acme-eviction 1.0 (acme.methods:KeyVariance)" in first
    assert "Variance of the key" in first
    assert "acme-eviction 1.0 (acme.benchmarks:Echo)" in first
    assert "Did you mean 'key_variance'?" in done.stderr
    helper = packages(place) / "acme" / "helpers.py"
    helper.write_text(HELPERS.replace("var(", "std("))
    edited = run(place, "-c", TRAIN + GRID)
    assert edited.returncode == 0, edited.stderr[-3000:]
    old, new = (set(said.splitlines()[0].split()[1:]) for said in (first, edited.stdout))
    assert len(old & new) == 2, "the cells of full and knorm are those of before"
    assert "key_variance: 2 more rows are stored under this name, of other code" in edited.stdout
    helper.write_text(HELPERS)


TRIALS = (
    "grid.methods=[key_variance]",
    "distill.modules=[indexer]",
    "sweep.axes.eviction.sinks=[2, 4]",
    "sweep.objectives=[score]",
)


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_and_a_night_take_it(place):
    done = run(place, "-m", "indexmem", "sweep", "spec.yaml", *TRIALS)
    assert done.returncode == 0, done.stderr[-3000:]
    done = run(place, "-m", "indexmem", "nightly", "run", "night.yaml")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Page: " in done.stdout


@pytest.mark.ray
@pytest.mark.slow
def test_a_job_brings_the_package_to_nodes_that_lack_it(place, tmp_path):
    here = "grid.methods=[full, key_variance]"
    with head_node(tmp_path / "head.log") as head:
        command = ["submit", "eval", "spec.yaml", here, f"run.root={tmp_path}", "--follow", f"--address={head.jobs}"]
        done = run(place, "-m", "indexmem", *command)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"sent with it: {packages(place) / 'acme'}" in done.stderr
    assert "key_variance " in done.stdout
