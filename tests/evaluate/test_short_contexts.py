"""Contexts too short for a method to rank: what keeps everything needs no ranking, what evicts says why it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from method_zoo import every_method
from tiny_models import random_ids, tiny_backbone
from tiny_tokenizers import tiny_tokenizer

from indexmem.benchmarks.base import Sample
from indexmem.config.budget import Budget
from indexmem.config.schema import EvictionConfig, Experiment, MethodConfig
from indexmem.errors import UserError
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.compress import compress_cells
from indexmem.evaluate.work import GridCell, Task
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method

SHORT = 20  # snapkv's window alone is 64


def prepared(config: EvictionConfig, **params):
    backbone = tiny_backbone("llama")
    snapkv = MethodConfig(name="snapkv", params=params)
    cells = [GridCell(f"{ratio}", snapkv, Budget.of_ratio(ratio), "b", "b", "") for ratio in (0.0, 0.5)]
    method = make_method(snapkv, MethodContext(backbone.geometry))
    return compress_cells(backbone, random_ids(SHORT), cells, {snapkv.label: method}, config)


@pytest.mark.parametrize("params", [{}, {"share": "layer"}, {"share": "model"}])
def test_all_of_a_short_context_is_kept_for_a_budget_that_holds_while_decoding(params):
    done = prepared(EvictionConfig(decode_budget=200), **params)
    assert done.ready.keys() == {"0.0"}
    cache = done.ready["0.0"].cache
    assert all(kept_HK.tolist() == [list(range(SHORT))] * 2 for kept_HK in cache.kept_HK)
    assert "ranks contexts of 65 tokens or more; this one has 20" in str(done.errors["0.5"])


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_context_of_a_token_or_a_few(length, tmp_path):
    """One token is kept by every method, since none keeps less; of more, what can be ranked is."""
    backbone = tiny_backbone()
    methods = {name: x for name, x in every_method(backbone.geometry, tmp_path).items() if name != "xkv"}
    cells = [GridCell(name, MethodConfig(name=name), Budget.of_ratio(0.5), "b", "b", "") for name in methods]
    done = compress_cells(backbone, random_ids(length), cells, methods, EvictionConfig())
    kept = max(1, length // 2)
    for name, error in done.errors.items():
        assert length > 1 and methods[name].min_context > length, (name, error)
        assert f"contexts of {methods[name].min_context} tokens or more; this one has {length}" in str(error)
    for name, ready in done.ready.items():
        lengths = [n for layer in range(3) for n in ready.cache.lengths(layer)]
        assert name == "full" or 6 * kept <= sum(lengths) <= max(6, 3 * length), name
    assert {"knorm", "random", "keydiff", "indexer"} <= done.ready.keys()


def test_a_budget_below_the_context_still_needs_a_ranking():
    done = prepared(EvictionConfig(sinks=2, decode_window=4, decode_budget=SHORT - 1))
    assert done.errors.keys() == {"0.0", "0.5"}


@pytest.mark.parametrize("part", ["context", "question"])
def test_a_sample_without_tokens_says_so(part):
    backbone = replace(tiny_backbone(), tokenizer=tiny_tokenizer(chat=False))
    evaluator = CellEvaluator(Experiment(), backbone, {}, {"git_commit": "", "versions": {}, "host": ""})
    texts = {"context": "a text", "question": "asked?"} | {part: ""}
    sample = Sample("mine/3", "mine", texts["context"], texts["question"], "", ("x",), 8, chat=False)
    with pytest.raises(UserError, match=f"The {part} of mine/3 has no tokens"):
        evaluator.evaluate([Task(sample, (), False)])
