"""What a trial measures has one name in objectives, records and MLflow, and cannot be compared where it differs."""

import pyarrow as pa
import pytest
from tiny_models import tiny_backbone

from indexmem.config.sweep import Objective
from indexmem.errors import UserError
from indexmem.results.schema import ROW_SCHEMA
from indexmem.sweep.metrics import check_metrics, grid_means, grid_names, grid_spreads, training_metrics, training_names

GEOMETRY = tiny_backbone().geometry
GRID = {"methods": ["full", "indexer", {"name": "snapkv", "params": {"window_size": 8}}], "ratios": [0.5, 0.75]}


def rows(**cells):
    """(method, budget, benchmark) -> scores of its samples."""
    costs = {"kv_bytes": 100, "indexer_bytes": 20, "memory_bytes": 3}
    times = {"prefill_seconds": 1.0, "score_seconds": 0.5, "decode_seconds": 2.0, "decode_batch": 4}
    found = [
        {"method": method, "budget": budget, "benchmark": benchmark, "score": score, **costs, **times}
        | {"sample_id": f"{benchmark}/{number}", "status": "ok"}
        for (method, budget, benchmark), scores in cells["cells"].items()
        for number, score in enumerate(scores)
    ]
    return pa.Table.from_pylist(found, schema=ROW_SCHEMA)


def test_benchmarks_weigh_the_same_and_the_full_cache_does_not_count():
    found = grid_means(
        rows(
            cells={
                ("full", "0%", "a"): [1.0],
                ("full", "0%", "b"): [1.0],
                ("indexer", "50%", "a"): [1.0, 1.0, 0.0, 0.0],
                ("indexer", "50%", "b"): [1.0],
                ("indexer", "75%", "a"): [0.0],
                ("indexer", "75%", "b"): [0.0],
            }
        )
    )
    assert found["score/indexer/r0.50"] == 0.75
    assert found["score/indexer/r0.75"] == 0.0
    assert found["score/full/r0.00"] == 1.0
    assert found["score"] == 0.375
    assert found["bytes"] == 123.0
    assert found["ms"] == pytest.approx(2000.0)


def test_names_that_can_be_asked_for_are_names_that_are_measured(sweep_spec):
    spec = sweep_spec({}, grid=GRID)
    cells = [("full", "0%", "a"), *((m.label, b, "a") for m in spec.grid.methods[1:] for b in ("50%", "75%"))]
    assert sorted(grid_names(spec)) == sorted(grid_means(rows(cells={cell: [1.0] for cell in cells})))


def test_losses_are_means_over_the_steps_that_have_them(sweep_spec):
    spec = sweep_spec({}, distill={"modules": ["indexer", "memory"]})
    assert "loss_memory-indexer" in training_names(spec, GEOMETRY)
    assert training_names(spec, GEOMETRY)[0] == "loss"
    history = [{"step": 0, "loss": 1.0, "lr": 0.1}, {"step": 1, "loss": 3.0, "loss_memory-indexer": 5.0}]
    assert training_metrics(history) == {"loss": 2.0, "loss_memory-indexer": 5.0}


@pytest.mark.parametrize(
    ("sweep", "complaint"),
    [
        ({"objectives": ["scor"]}, "sweep.objectives: no metric is called 'scor'. Did you mean 'score'?"),
        ({"objectives": ["score/indexer/r0.95"]}, "Did you mean 'score/indexer/r0.75'?"),
        ({"scheduler": "asha", "asha": {"metric": "score"}}, "sweep.asha.metric: no metric is called 'score'"),
        ({"axes": {"target.scale": ["head", "model"]}}, "since target.scale says what it measures"),
        (
            {"axes": {"indexer.scope": ["layer"]}, "objectives": ["score"], "scheduler": "asha"},
            "sweep.asha.metric: 'loss' is not the same quantity in all trials",
        ),
        (
            {"axes": {"memory.decay": [0.9, 1.0]}, "objectives": ["score"], "scheduler": "asha"},
            "sweep.asha.metric: 'loss' does not depend on memory.decay, so that chance would choose between trials. "
            "Use loss_memory-indexer or loss_worst_layer_memory-indexer, or objectives from the grid",
        ),
        (
            {"axes": {"indexer.floor": [0.1, 0.2], "eviction.sinks": [2, 4]}},
            "sweep.objectives: 'loss' does not depend on indexer.floor, eviction.sinks",
        ),
    ],
)
def test_metrics_that_do_not_exist_or_compare_are_refused(sweep_spec, sweep, complaint):
    with pytest.raises(UserError) as error:
        check_metrics(sweep_spec(sweep, grid=GRID, distill={"modules": ["indexer", "memory"]}), GEOMETRY)
    assert complaint in str(error.value)


def test_one_axis_that_shapes_the_loss_is_enough(sweep_spec):
    axes = {"memory.decay": [0.9, 1.0], "indexer.share_every": [1, 2]}
    asha = {"axes": axes, "objectives": ["score"], "scheduler": "asha"}
    check_metrics(sweep_spec(asha, grid=GRID), GEOMETRY)


def test_a_score_is_as_sure_as_its_samples_and_comes_in_their_units():
    cells = {("full", "0%", "a"): [1.0] * 4, ("full", "0%", "b"): [1.0] * 2}
    cells |= {("indexer", b, "a"): [1.0, 1.0, 0.0, float(b == "50%")] for b in ("50%", "75%")}
    cells |= {("indexer", b, "b"): [1.0, 0.0] for b in ("50%", "75%")}
    table = rows(cells=cells)
    found = grid_spreads(table, [Objective.model_validate(m) for m in ("score", "score/indexer/r0.75", "bytes")])
    assert list(found) == ["score", "score/indexer/r0.75"], "bytes are no mean over samples that a test could compare"
    assert found["score"].units == pytest.approx((0.125, 0.125, 0.0, 0.0625, 0.25, 0.0))
    for name, spread in found.items():
        mean = grid_means(table)[name]
        assert sum(spread.units) == pytest.approx(mean)
        assert 0 < spread.low < mean < spread.high < 1


def test_what_a_loss_measures_may_vary_where_scores_decide(sweep_spec):
    axes = {"target.scale": ["head", "model"], "distill.batch_size": [1, 2]}
    check_metrics(sweep_spec({"axes": axes, "objectives": ["score", "bytes/indexer/r0.50"]}, grid=GRID), GEOMETRY)
