"""A damaged file of the row store: the next run moves it aside and computes what it held, once."""

import warnings

import pytest
from null_grid import PROVENANCE, NullEvaluator, null_assignment, null_plan, null_spec

from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.local import evaluate_here


def test_what_a_damaged_file_held_is_computed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(CellEvaluator, "load", lambda *_: NullEvaluator(null_assignment(spec)))
    spec = null_spec(tmp_path, "grid.samples=4")
    plan = null_plan(spec)
    list(evaluate_here(spec, plan, PROVENANCE))
    before = plan.store.read(plan.partitions).drop_columns(["created_at"])
    part, *others = sorted((tmp_path / "results" / "rows").rglob("*.parquet"))
    content = part.read_bytes()
    part.write_bytes(content[:90] + bytes([content[90] ^ 4]) + content[91:])
    with pytest.warns(RuntimeWarning, match=f"Moved .*{part.name} to .*damaged"):
        *_, progress = evaluate_here(spec, plan, PROVENANCE)
    assert (progress.done, progress.failed) == (plan.row_count, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plan.store.read(plan.partitions).drop_columns(["created_at"]).equals(before)
    assert (tmp_path / "results" / "damaged" / part.relative_to(tmp_path / "results")).is_file()
    assert all(path.exists() for path in others), "only what was missing was computed"
    assert len(list((tmp_path / "results" / "rows").rglob("*.parquet"))) == len(others) + 1
