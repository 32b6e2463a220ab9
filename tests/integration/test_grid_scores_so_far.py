"""A real grid while it runs: partial scores without reading the store again, also after a restart."""

import null_grid
import numpy as np
import pytest
from null_grid import PROVENANCE, NullLoad, null_plan, null_spec
from ray import cloudpickle

from indexmem.evaluate.fanout import evaluate_on_ray
from indexmem.progress.view import LogLines, ProgressView
from indexmem.results.store import RowStore

pytestmark = pytest.mark.ray


@pytest.fixture(autouse=True)
def _ship_test_code(local_ray):
    """Workers cannot import test modules by name."""
    cloudpickle.register_pickle_by_value(null_grid)
    yield
    cloudpickle.unregister_pickle_by_value(null_grid)


def run(root, statuses, *overrides):
    spec = null_spec(root, *overrides)
    with ProgressView(LogLines(statuses.append, 1.0)) as view:
        seen = []
        evaluate_on_ray(
            spec, null_plan(spec), PROVENANCE, lambda now: (seen.append(now.status()), view(seen[-1])), NullLoad()
        )
    return seen


def means(root, *overrides) -> list[float]:
    """Of the stored rows, budget by budget."""
    plan = null_plan(null_spec(root, *overrides))
    by_benchmark = [np.nanmean(score_SC, axis=0) for score_SC in plan.scores().values()]
    return np.mean(by_benchmark, axis=0).tolist()


def test_scores_follow_the_grid_and_a_restart_goes_on_from_what_is_stored(tmp_path, monkeypatch):
    looks = []
    read = RowStore.scores
    monkeypatch.setattr(RowStore, "scores", lambda self, *given: (looks.append(given), read(self, *given))[1])
    lines = []
    first = run(tmp_path, lines, "grid.samples=40")
    assert len(looks) == 2 * 2, "both benchmarks, before and after the cells were claimed, however many units"
    assert (first[0].done, first[-1].done, first[-1].total) == (0, 240, 240)
    assert first[0].scores.methods[0].means == (None, None, None)
    half = first[-1].scores.methods[0]
    assert half.means == pytest.approx(means(tmp_path, "grid.samples=40"))

    second = run(tmp_path, lines, "grid.samples=60")
    assert second[0].done == 240
    assert second[0].scores.methods[0].means == pytest.approx(half.means)
    assert second[-1].scores.methods[0].means == pytest.approx(means(tmp_path, "grid.samples=60"))
    assert lines[-1].startswith("  360/360 rows")
