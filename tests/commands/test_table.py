"""`indexmem table`: stored runs side by side, and what is missing."""

import csv

import pytest
import yaml
from tiny_models import save_tiny_model
from tiny_tokenizers import TEXT

from indexmem.cli import main
from indexmem.config.load import load
from indexmem.config.table import load_table
from indexmem.evaluate.grid import plan
from indexmem.evaluate.local import evaluate_here
from indexmem.provenance import provenance


@pytest.fixture
def table(tmp_path):
    for name in ("one", "two"):
        save_tiny_model(tmp_path / name)
    (tmp_path / "text.txt").write_text(TEXT)
    spec = {
        "name": "run-{model}-{length}",
        "model": {"id": str(tmp_path / "one")},
        "grid": {
            "methods": ["full", "knorm", "random"],
            "ratios": [0.5, 0.9],
            "benchmarks": ["niah_single_1"],
            "samples": 2,
            "haystack": str(tmp_path / "text.txt"),
            "max_new_tokens": 2,
        },
        "run": {"root": str(tmp_path / "runs")},
    }
    methods = {"Knorm": "knorm", "Chance": "random"}
    joined = {
        "name": "both",
        "title": "Two models & two lengths",
        "spec": "spec.yaml",
        "rows": [
            {"title": name, "overrides": [f"model.id={tmp_path / name}", f"model.dtype={dtype}"], "methods": methods}
            for name, dtype in (("one", "float32"), ("two", "bfloat16"))
        ],
        "columns": [{"title": f"at {n}", "overrides": [f"grid.length={n}"]} for n in (600, 640)],
        "budgets": [0, 0.5, 0.9],
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(joined, sort_keys=False))
    return tmp_path / "table.yaml"


def evaluate(table, group, column):
    spec, _ = load_table(table)
    overrides = [*spec.rows[group].overrides, *spec.columns[column].overrides]
    run = load(spec.spec, overrides)
    for _ in evaluate_here(run, plan(run), provenance()):
        pass


def test_what_is_stored_is_shown_and_what_is_missing_is_a_command(table, capsys):
    evaluate(table, 0, 0)
    evaluate(table, 1, 1)
    assert main(["table", str(table)]) == 1
    said = capsys.readouterr()
    lines = said.out.splitlines()
    heads = "at 600 0% | at 600 50% | at 600 90% | at 640 0% | at 640 50% | at 640 90%"
    assert lines[0] == f"| Model | Method | {heads} |"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:6]]
    assert [row[:2] for row in cells] == [["one", "Knorm"], ["", "Chance"], ["two", "Knorm"], ["", "Chance"]]
    assert all("-" not in row[2:5] and row[5:] == ["-"] * 3 for row in cells[:2])
    assert all(row[2:5] == ["-"] * 3 and "-" not in row[5:] for row in cells[2:])
    missing = [line for line in said.err.splitlines() if line.startswith("rows are missing: indexmem run ")]
    assert [line.split()[-1] for line in missing] == ["grid.length=640", "grid.length=600"]
    latex = (table.parent / "runs" / "reports" / "both" / "table.tex").read_text()
    assert r"Two models \& two lengths" in latex and r"\multicolumn{3}{c}{at 640}" in latex
    assert latex.count(r"\multirow{2}{*}") == 2
    rows = list(csv.DictReader((table.parent / "runs" / "reports" / "both" / "table.csv").open()))
    assert len(rows) == 2 * 2 * 3
    assert {row["budget"] for row in rows} == {"0%", "50%", "90%"}


def test_nothing_evaluated_writes_nothing(table, capsys):
    assert main(["table", str(table), "grid.samples=1"]) == 1
    assert len([line for line in capsys.readouterr().err.splitlines() if "grid.samples=1" in line]) == 4
    assert not (table.parent / "runs").exists()


def test_mistakes_are_sentences(table, capsys):
    wrong = "rows=[{title: X, methods: {Y: tova}}]"
    assert main(["table", str(table), wrong]) == 2
    assert "rows 'X': tova is not among the methods of" in capsys.readouterr().err
    assert main(["table", str(table), "budgets=[2]"]) == 2
    assert main(["table", str(table), "spec=none.yaml"]) == 2
    assert "No spec file at" in capsys.readouterr().err
