"""What `indexmem fetch` looks for on a cluster."""

from pathlib import Path

import pytest
import yaml

from indexmem.commands.offer import files_of, files_of_nights, offer_results
from indexmem.config.load import load
from indexmem.errors import UserError


def touched(root: Path, *places: str) -> None:
    for place in places:
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text("x")


def test_the_reports_and_tables_of_a_spec_and_of_no_other(tmp_path):
    mine = ("reports/mine.html", "reports/mine/scores.csv", "reports/mine-sweep.html", "reports/mine-sweep.csv")
    touched(tmp_path, *mine, "reports/mine/.tmp-1", "reports/mine-2.html", "reports/mine-2/scores.csv", "mlflow.db")
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({"name": "mine", "run": {"root": str(tmp_path)}}))
    found = files_of(load(tmp_path / "spec.yaml"), rows=False, modules=False)
    assert {str(path.relative_to(tmp_path)) for path in found} == set(mine)


def test_pages_of_all_nights_and_rows_and_modules_of_the_newest(tmp_path):
    pages = ("index.html", "2026-11-27/report.html", "2026-11-28/report.html", "2026-11-28/verdict.json")
    rows, modules = "2026-11-28/smoke/results/rows/p/part-1.parquet", "2026-11-28/distill/1/final/a.safetensors"
    touched(tmp_path, *pages, rows, modules, "2026-11-27/smoke/results/rows/p/part-0.parquet", "leases/a.json")

    def found(**wanted):
        return {str(path.relative_to(tmp_path)) for path in files_of_nights(tmp_path, **wanted)}

    assert found(rows=False, modules=False) == set(pages)
    assert found(rows=True, modules=True) == {*pages, rows, modules}


def test_nothing_there_is_a_sentence_that_says_where_it_looked(tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({"name": "mine", "run": {"root": str(tmp_path / "runs")}}))
    with pytest.raises(UserError, match=rf"no report of 'mine' in {tmp_path}/runs on the cluster"):
        offer_results(type("Arguments", (), {"spec": str(tmp_path / "spec.yaml"), "rows": False, "modules": False}))
