"""docs/methods.md and `indexmem methods` name every registered method and say of it what its code does."""

from dataclasses import replace
from pathlib import Path

import pytest
from method_zoo import PRETRAINED as WITH_WEIGHTS
from method_zoo import every_method
from tiny_models import random_ids, tiny_backbone

from indexmem.cli import main
from indexmem.engine.prefill import prefill
from indexmem.eviction.methods.listing import OWN_PASS, method_notes
from indexmem.eviction.methods.names import DECODING, EVICTS_NOTHING, FULL_CACHE, PRETRAINED, SHIPPED, TRAINED_BY_SPEC
from indexmem.eviction.methods.registry import METHODS

DOCS = Path(__file__).parents[2] / "docs" / "methods.md"
COLUMNS = ("paper", "scores", "budget", "passes", "decoding", "weights")
LENGTH = 240


def documented():
    rows = [line.strip("|").split("|") for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    return {cells[0].strip().strip("`"): dict(zip(COLUMNS, map(str.strip, cells[1:]), strict=True)) for cells in rows}


def budget_of(name, row):
    """Who keeps a different number of tokens, from what is kept."""
    if name == FULL_CACHE:
        return "none"
    if row.representation_bytes is not None:
        return "bytes"
    totals = {sum(row.lengths(layer)) for layer in range(3)}
    if row.counts_H is None:
        return "token" if len(totals) == 1 else "layer"
    return "head" if len(totals) == 1 else "all heads"


def test_the_table_is_complete_and_in_order():
    assert list(documented()) == list(METHODS)
    assert set(METHODS) == SHIPPED
    assert all(row["scores"] for row in documented().values())


def test_the_table_says_what_the_code_does(tmp_path):
    backbone, rows = tiny_backbone(), documented()
    methods = every_method(backbone.geometry, tmp_path)
    duo = methods["duo_attention"]
    duo.selection = replace(duo.selection, sink_size=4, recent_size=16)  # windows smaller than the context
    done = prefill(backbone, random_ids(LENGTH), methods, sinks=4)
    assert not done.errors
    for name, method in methods.items():
        # Half of the context: PyramidKV is even unless its window fits into every layer's budget.
        row = method.compress(done.context, done.rankings_HL[name], LENGTH * 0.5)
        assert rows[name]["budget"] == budget_of(name, row), name
        assert ("own pass" in rows[name]["passes"]) == method.own_pass == (OWN_PASS in method_notes(name)), name
        assert rows[name]["passes"] == "1" or method.own_pass, name
        assert (rows[name]["decoding"] == "yes") == (name in DECODING), name
        weights = "this spec's" if name in TRAINED_BY_SPEC else "published" if name in PRETRAINED else ""
        over_base = "the base's" if hasattr(method, "base") else ""
        assert rows[name]["weights"] == (weights or over_base), name
    assert set(PRETRAINED) == set(WITH_WEIGHTS)
    assert {FULL_CACHE, "xkv"} == EVICTS_NOTHING


def test_the_command_lists_every_method(capsys):
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0]: line for line in lines if line}
    assert set(METHODS) <= set(listed)
    assert OWN_PASS in listed["kvzip"]
    assert all("needs weights" in listed[name] for name in PRETRAINED)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_described_in_a_line(name):
    assert 3 <= len(METHODS[name].scores) <= 70
