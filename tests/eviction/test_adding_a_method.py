"""docs/adding_a_method.md: its class, its registration and its test work as they stand."""

import re
from pathlib import Path

import pytest
from tiny_models import random_ids, tiny_backbone

from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.eviction.methods import registry, simple
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.selection import PerHead

PAGE = (Path(__file__).parents[2] / "docs" / "adding_a_method.md").read_text(encoding="utf-8")


@pytest.fixture
def value_norm(monkeypatch):
    """The page's method, registered as the page says; its test, as the page writes it."""
    of_class, of_registry, of_test = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names = dict(vars(simple))
    exec(of_class, names)
    entries = eval("{" + of_registry + "}", vars(registry) | names)
    monkeypatch.setattr(registry, "METHODS", registry.METHODS | entries)
    test_names = globals() | {"torch": simple.torch, "make_method": registry.make_method}
    exec(of_test, test_names)
    (test,) = (value for name, value in test_names.items() if name.startswith("test_value_norm"))
    return test


def test_the_page_has_six_steps():
    assert re.findall(r"^## (\d)\. ", PAGE, flags=re.MULTILINE) == list("123456")


def test_the_page_s_test_passes_on_the_page_s_method(value_norm):
    value_norm()


def test_the_method_has_its_parameter_and_shares_budgets(value_norm):
    backbone = tiny_backbone()
    configs = {"long": {}, "short": {"power": -1.0}, "shared": {"share": "model"}}
    context = MethodContext(backbone.geometry)
    methods = {k: registry.make_method(MethodConfig(name="value_norm", params=v), context) for k, v in configs.items()}
    assert isinstance(methods["long"], EvictionMethod) and isinstance(methods["long"].selection, PerHead)
    done = prefill(backbone, random_ids(60), methods, sinks=0)
    assert not done.errors
    rows = {label: methods[label].compress(done.context, done.rankings_HL[label], 12.0) for label in methods}
    assert all(set(row.lengths(0)) == {12} for label, row in rows.items() if label != "shared")
    assert sum(sum(rows["shared"].lengths(layer)) for layer in range(3)) == 12 * 3 * backbone.geometry.kv_heads
    best, worst = rows["long"].kept_HK[0][0].tolist(), rows["short"].kept_HK[0][0].tolist()
    assert not set(best) & set(worst)
