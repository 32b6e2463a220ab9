"""The folder beside a report: CSV, LaTeX, and images where a browser is."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from report_rows import make_rows
from report_zoo import zoo_rows

from indexmem.config.budget import Budget
from indexmem.config.schema import Experiment
from indexmem.errors import UserError
from indexmem.report import images
from indexmem.report.content import Content, gather
from indexmem.report.files import ablations_csv, costs_csv, facets_csv, write_files
from indexmem.report.latex import benchmarks_table, budgets_table, escaped
from indexmem.results.schema import RETENTION_SCHEMA


@pytest.fixture(scope="module")
def content() -> Content:
    return gather(Experiment(), zoo_rows(samples=8), RETENTION_SCHEMA.empty_table())


def test_the_folder_is_written_whole_and_replaced_as_a_whole(content: Content, tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "paper"
    folder.mkdir(parents=True)
    (folder / "old.csv").touch()
    assert write_files(content, folder) == folder
    names = {path.name for path in folder.iterdir()}
    assert {"scores.csv", "costs.csv", "facets.csv", "ablations.csv"} <= names
    assert {"scores.tex", "benchmarks-qwen3-8b-90.tex"} <= names
    assert "old.csv" not in names
    assert list(folder.parent.iterdir()) == [folder]


def test_csvs_have_a_line_per_thing_with_its_model(content: Content) -> None:
    costs = list(csv.DictReader(io.StringIO(costs_csv(content.views))))
    assert len(costs) == 2 * (9 * 4 + 1)
    assert float(costs[1]["decode_kept_mean"]) > 0
    assert costs[0]["budget"] == "0%"
    categories = [
        line for line in csv.DictReader(io.StringIO(facets_csv(content.views))) if line["label"] == "category"
    ]
    assert {line["model"] for line in categories} == {"llama-3.1-8b", "qwen3-8b"}
    assert all(float(line["low"]) <= float(line["mean"]) <= float(line["high"]) for line in categories)
    variants = list(csv.DictReader(io.StringIO(ablations_csv(content.views))))
    assert {line["model"] for line in variants} == {"llama-3.1-8b", "qwen3-8b"}
    assert all(float(line["low"]) <= float(line["difference"]) <= float(line["high"]) for line in variants)


def test_bold_is_for_winners_only() -> None:
    (view,) = gather(Experiment(), make_rows(), RETENTION_SCHEMA.empty_table()).views
    text = budgets_table([view], 4096)
    summary = view.summary
    standings = [summary.contests[b, "mean"].standing(m) for m in summary.methods for b in summary.budgets]
    assert text.count(r"\textbf{") == standings.count("winner") == 2
    assert text.count(r"$^\dagger$") == standings.count("leading") + 1  # and once in the caption
    assert "Mean score over 3 benchmarks at 4,096 tokens" in text


def test_every_line_of_a_table_has_as_many_cells(content: Content) -> None:
    tables = [budgets_table(content.views, 4096), benchmarks_table(content.views[0], Budget.of_ratio(0.9))]
    for text in tables:
        lines = [line for line in text.split("\n") if line.endswith(r"\\")]
        assert len({line.count(" & ") for line in lines}) == 1
        assert len(lines) > 9


def test_captions_say_who_is_not_ranked() -> None:
    rows = make_rows(samples=10, failures=10)  # all of the last method's last benchmark at 90 %
    (view,) = gather(Experiment(), rows, RETENTION_SCHEMA.empty_table()).views
    for text in (budgets_table([view], 4096), benchmarks_table(view, Budget.of_ratio(0.9))):
        assert r"Not ranked at 90\%: random (lacks 10 of 30 samples)." in text
        assert r"random" in text and "--" in text


def test_foreign_names_do_not_break_latex() -> None:
    assert escaped(r"a_b%{c}\d~^") == r"a\_b\%\{c\}\textbackslash{}d\textasciitilde{}\textasciicircum{}"


def test_images_without_a_browser_are_a_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="Images need a browser"):
        images.check_drawable()
