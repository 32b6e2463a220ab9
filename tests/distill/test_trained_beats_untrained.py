"""A short training on text that holds no task makes the indexer better than it was, on a model that retrieves."""

import pytest

from indexmem.benchmarks.base import BuildContext
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.config.budget import Budget
from indexmem.config.load import validate
from indexmem.config.schema import MethodConfig
from indexmem.distill.history import History
from indexmem.distill.loop import LocalContext, distill
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.work import GridCell, Task
from indexmem.models.backbone import load_backbone
from indexmem.texts.documents import load_texts

SAMPLES = 6
BUDGETS = (0.5,)


@pytest.fixture(scope="module")
def spec():
    return validate(
        {
            "model": {"id": "testbed"},
            "distill": {
                "length": 512,
                "batch_size": 2,
                "schedule": {"warmup": 2, "stable": 10, "decay": 12, "peak_lr": 3e-3, "final_lr": 1e-4},
            },
            "grid": {"benchmarks": ["niah_single_2", "niah_multikey_1"], "length": 512, "methods": ["full"]},
        },
        "test",
    )


def scores(spec, backbone, folders):
    """Mean score of each folder's indexer at each budget."""
    methods = {
        name: MethodConfig(name="indexer", params={"checkpoint": str(folder)}) for name, folder in folders.items()
    }
    evaluator = CellEvaluator.load(
        spec,
        {config.label: config for config in methods.values()},
        None,
        {"git_commit": "test", "versions": {}, "host": "test"},
        backbone,
    )
    build = BuildContext(backbone.tokenizer, 512, 42, "\n\n".join(load_texts(["essays-heldout"])), 24)
    found = {name: dict.fromkeys(BUDGETS, 0.0) for name in folders}
    for benchmark in make_benchmarks(spec.grid.benchmarks):
        cells = [
            GridCell(f"{name}/{ratio}", config, Budget.of_ratio(ratio), benchmark.name, "test", "")
            for name, config in methods.items()
            for ratio in BUDGETS
        ]
        tasks = [Task(sample, tuple(cells)) for sample, _ in zip(benchmark.samples(SAMPLES, build), range(SAMPLES))]
        for row in evaluator.evaluate(tasks)[0]:
            assert row["status"] == "ok", row["error_message"]
            name, ratio = row["cell_id"].split("/")
            found[name][float(ratio)] += row["score"] / (2 * SAMPLES)
    return found


def test_training_makes_the_indexer_better(spec, tmp_path):
    backbone = load_backbone(spec.model)
    folders = {}
    for name, steps in (("trained", 24), ("untrained", 1)):
        schedule = (
            spec.distill.schedule
            if steps > 1
            else spec.distill.schedule.model_copy(
                update={"warmup": 0, "stable": 1, "decay": 0, "peak_lr": 1e-12, "final_lr": 1e-12}
            )
        )
        own = spec.model_copy(update={"distill": spec.distill.model_copy(update={"schedule": schedule})})
        context = LocalContext(tmp_path / name)
        distill(own, context, History(tmp_path / f"{name}-history", span=50), backbone)
        folders[name] = context.restore()
    found = scores(spec, backbone, folders)
    assert found["trained"][0.5] >= 0.8, found
    assert found["trained"][0.5] >= found["untrained"][0.5] + 0.4, found
