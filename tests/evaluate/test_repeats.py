"""Several answers to each sample: rows of their own, resumed one by one, drawn differently, averaged per sample."""

from __future__ import annotations

import json

import numpy as np
import pytest
from grids import remaining
from tiny_models import save_tiny_model

from indexmem.config.load import validate
from indexmem.errors import UserError
from indexmem.evaluate.cell import CellEvaluator, draw_seed
from indexmem.evaluate.grid import plan, repeated
from indexmem.evaluate.work import Assignment, Backlog, Task, packed_samples
from indexmem.results.summary import summarise

PROVENANCE = {"git_commit": "", "versions": {}, "host": ""}
ROW = {"context": "The lantern hangs in the harbour. " * 9, "question": "Where?", "answer_prefix": "", "metric": "f1"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repeats")
    rows = [
        ROW | {"context": ROW["context"] + str(n), "question": f"Where, {n}?", "answers": ["in the harbour"]}
        for n in range(3)
    ]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.txt").write_text("Some text. And more of it.")
    return folder, str(save_tiny_model(folder / "model", "llama"))


def spec(files, tmp_path, **grid):
    folder, model = files
    usual = {
        "methods": ["full", "knorm"],
        "ratios": [0.5],
        "benchmarks": [{"name": "jsonl", "params": {"path": str(folder / "mine.jsonl"), "max_new_tokens": 12}}],
        "length": 512,
        "samples": 2,
        "haystack": str(folder / "text.txt"),
    }
    return validate({"model": {"id": model}, "run": {"root": str(tmp_path)}, "grid": usual | grid}, "test")


WARM = {"temperature": 1.3, "repeats": 3}


def evaluated(experiment, tasks):
    methods = {config.label: config for config in experiment.grid.methods}
    rows, _ = CellEvaluator.load(experiment, methods, None, PROVENANCE).evaluate(tasks)
    assert {row["status"] for row in rows} == {"ok"}, rows
    return rows


def test_samples_come_once_before_any_comes_again(files, tmp_path):
    (samples,) = plan(spec(files, tmp_path, decoding=WARM)).samples.values()
    assert [(s.id, s.repeat) for s in samples] == [(f"jsonl/{n}", r) for r in range(3) for n in range(2)]


def test_what_is_stored_is_not_done_again(files, tmp_path):
    """lm-eval #3046: a cache keyed by the prompt gives one answer k times."""
    experiment = spec(files, tmp_path, decoding=WARM)
    grid = plan(experiment)
    rows = evaluated(experiment, remaining(grid))
    keys = {(row["cell_id"], row["sample_id"], row["repeat"]) for row in rows}
    assert len(keys) == len(rows) == grid.row_count == 2 * 2 * 3
    stored = [row for row in rows if (row["sample_id"], row["repeat"]) != ("jsonl/1", 2)]
    grid.store.append(stored, grid.partitions[0])
    assert [(task.sample.id, task.sample.repeat) for task in remaining(grid)] == [("jsonl/1", 2)]
    assert int(np.isnan(grid.scores()["jsonl"]).sum()) == 2
    by_sample = {}
    for row in rows:
        by_sample.setdefault((row["cell_id"], row["sample_id"]), set()).add(row["prediction"])
    assert all(len(answers) == 3 for answers in by_sample.values()), "three different answers"


def test_more_repeats_keep_the_cells_and_their_rows(files, tmp_path):
    few = plan(spec(files, tmp_path, decoding=WARM))
    more = plan(spec(files, tmp_path, decoding=WARM | {"repeats": 5}))
    assert few.cell_ids == more.cell_ids
    assert more.row_count == 2 * 2 * 5


def test_greedy_cells_are_what_they_were_and_drawn_ones_are_others(files, tmp_path):
    plain = plan(spec(files, tmp_path)).cell_ids
    assert plan(spec(files, tmp_path, decoding={"temperature": 0})).cell_ids == plain
    assert not set(plan(spec(files, tmp_path, decoding=WARM)).cell_ids) & set(plain)
    with pytest.raises(UserError, match="no effect on greedy answers"):
        spec(files, tmp_path, decoding={"repeats": 2})


def test_the_same_answer_whoever_is_evaluated_with_it(files, tmp_path):
    experiment = spec(files, tmp_path, decoding=WARM)
    tasks = remaining(plan(experiment))
    together = {(r["cell_id"], r["sample_id"], r["repeat"]): r["prediction"] for r in evaluated(experiment, tasks)}
    last = tasks[-1]
    (alone,) = evaluated(experiment, [Task(last.sample, last.cells[1:])])
    assert together[last.cells[1].id, last.sample.id, last.sample.repeat] == alone["prediction"]


def test_workers_get_repeats_as_units_of_their_own(files, tmp_path):
    grid = plan(spec(files, tmp_path, decoding=WARM))
    assert grid.missing()["jsonl"].shape == (6, 2)
    (samples,) = grid.samples.values()
    cells = {"jsonl": grid.cells}
    packed = {"jsonl": packed_samples(samples)}
    assignment = Assignment(
        spec(files, tmp_path), grid.methods, cells, packed, grid.model_fingerprint, None, PROVENANCE
    )
    backlog = Backlog(grid.missing())
    seen = [task.sample.repeat for _ in range(6) for task in assignment.tasks(backlog.take(1, 100))]
    assert seen == [0, 0, 1, 1, 2, 2]


def test_a_samples_repeats_count_as_one_sample(files, tmp_path):
    experiment = spec(files, tmp_path, decoding=WARM)
    grid = plan(experiment)
    rows = evaluated(experiment, remaining(grid))
    grid.store.append(rows, grid.partitions[0])
    summary = summarise(grid.store.read(grid.partitions))
    cells = [interval for key, interval in summary.cells.items() if key[2] == "jsonl"]
    assert {interval.n for interval in cells} == {2}, "samples, not answers"


def test_seeds_differ_by_sample_repeat_and_grid_seed(files, tmp_path):
    (samples,) = plan(spec(files, tmp_path, decoding=WARM)).samples.values()
    assert len({draw_seed(seed, sample) for seed in (1, 2) for sample in samples}) == 12
    assert draw_seed(1, samples[0]) == draw_seed(1, repeated(samples[:1], 1)[0])
