"""`indexmem sync` of a grid: what it sends, and what it says and returns when MLflow does not take it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from mlflow_reading import all_runs
from null_grid import PROVENANCE
from tiny_models import save_tiny_model
from tiny_tokenizers import TEXT

from indexmem.cli import main
from indexmem.config.load import load
from indexmem.evaluate.grid import plan
from indexmem.evaluate.rows import base_row
from indexmem.results.schema import OK, ROW_SCHEMA


@pytest.fixture
def spec_file(root: Path) -> Path:
    folder = root.parent
    save_tiny_model(folder / "model")
    (folder / "text.txt").write_text(TEXT)
    grid = {"methods": ["full", "knorm"], "ratios": [0.5], "benchmarks": ["niah_single_1"], "length": 640, "samples": 2}
    spec = {"name": "tiny", "model": {"id": str(folder / "model")}, "run": {"root": str(root)}}
    spec["distill"] = {"texts": [str(folder / "text.txt")]}
    spec["grid"] = {**grid, "haystack": str(folder / "text.txt")}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def store_rows(path: Path) -> None:
    experiment = load(path)
    grid = plan(experiment)
    numbers = [
        field.name for field in ROW_SCHEMA if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    ]
    measured = {"status": OK, "score": 0.5} | dict.fromkeys(numbers[numbers.index("context_tokens") :], 1)
    rows = [
        base_row(experiment, sample, cell, grid.model_fingerprint, PROVENANCE) | measured
        for cell in grid.cells
        for sample in grid.samples[cell.benchmark]
    ]
    grid.store.append(rows, grid.partition("niah_single_1"))


def test_what_is_stored_is_published(spec_file: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sync", str(spec_file)]) == 2
    assert "Nothing is stored for this spec yet" in capsys.readouterr().err
    store_rows(spec_file)
    assert main(["sync", str(spec_file)]) == 0
    assert "published 4 rows to sqlite:///" in capsys.readouterr().err
    assert len(all_runs(root)) == 1 + 2


def test_what_mlflow_does_not_take_is_said_and_is_no_success(
    spec_file: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_rows(spec_file)
    (root / "mlflow.db").write_text("this is no database")
    with pytest.warns(RuntimeWarning, match="did not take the results .*file is not a database"):
        assert main(["sync", str(spec_file)]) == 1
    said = capsys.readouterr().err
    assert "NOT published: 4 rows" in said
    assert "published 4 rows to" not in said
