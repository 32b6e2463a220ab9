"""docs/adding_a_method.md from an empty folder: its files work as they stand."""

import re
import sys
from pathlib import Path

import pytest
from tiny_models import random_ids, tiny_backbone

import indexmem
from indexmem.cli import main
from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.eviction.methods import registry
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.selection import PerHead

PAGE = (Path(__file__).parents[2] / "docs" / "adding_a_method.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What a reader of the page has written, and is in."""
    of_class, of_test = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (spec,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    for name, text in {"my_methods.py": of_class, "test_my_methods.py": of_test, "spec.yaml": spec}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("my_methods", None)


def test_the_page_has_six_steps():
    assert re.findall(r"^## (\d)\. ", PAGE, flags=re.MULTILINE) == list("123456")


def test_the_page_s_test_passes_on_the_page_s_method(folder):
    names: dict = {}
    exec((folder / "test_my_methods.py").read_text(), names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    test()


def test_the_page_s_grid_runs_and_is_sent(folder, capsys):
    assert main(["submit", "eval", "spec.yaml", "--dry-run"]) == 0
    assert f"{folder / 'my_methods.py'} as files/" in capsys.readouterr().err
    settings = {"tracking.enabled": False, "run.root": "runs"}
    result = indexmem.run_grid(spec="spec.yaml", settings=settings, progress=False)
    assert result.failed == 0
    assert set(result.rows["method"].to_pylist()) == {
        *("full", "knorm", "my_methods.py:ValueNorm", "my_methods.py:ValueNorm(power=-1.0)")
    }


def test_the_method_has_its_parameter_and_shares_budgets(folder):
    backbone, name = tiny_backbone(), f"{folder}/my_methods.py:ValueNorm"
    configs = {"long": {}, "short": {"power": -1.0}, "shared": {"share": "model"}}
    context = MethodContext(backbone.geometry)
    methods = {k: registry.make_method(MethodConfig(name=name, params=v), context) for k, v in configs.items()}
    assert isinstance(methods["long"], EvictionMethod) and isinstance(methods["long"].selection, PerHead)
    done = prefill(backbone, random_ids(60), methods, sinks=0)
    assert not done.errors
    rows = {label: methods[label].compress(done.context, done.rankings_HL[label], 12.0) for label in methods}
    assert all(set(row.lengths(0)) == {12} for label, row in rows.items() if label != "shared")
    assert sum(sum(rows["shared"].lengths(layer)) for layer in range(3)) == 12 * 3 * backbone.geometry.kv_heads
    best, worst = rows["long"].kept_HK[0][0].tolist(), rows["short"].kept_HK[0][0].tolist()
    assert not set(best) & set(worst)
