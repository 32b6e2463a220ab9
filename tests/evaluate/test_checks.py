"""Eviction settings reach the cells, or are refused with a word on what to do."""

import re

import pytest
import torch
import yaml
from tiny_models import save_tiny_model, tiny_backbone

from indexmem.benchmarks.base import Sample
from indexmem.cli import main
from indexmem.config.budget import Budget
from indexmem.config.load import validate
from indexmem.config.modules import IndexerConfig, MemoryConfig
from indexmem.config.schema import EvictionConfig, GridConfig, MethodConfig
from indexmem.errors import UserError
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.checks import check_trained_shape
from indexmem.evaluate.grid import plan
from indexmem.evaluate.settings import check_budgets, check_eviction
from indexmem.evaluate.work import GridCell, Task
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.memory.base import MemoryShape
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.models.backbone import inspect


def check(methods, indexer=None, **settings):
    configs = tuple(MethodConfig.model_validate(method) for method in methods)
    check_eviction(EvictionConfig(**settings), IndexerConfig(**(indexer or {})), configs)


@pytest.mark.parametrize(
    ("methods", "settings", "words"),
    [
        (["knorm"], {"decode_every": 64}, "decode_every=64 has no effect"),
        (["knorm"], {"decode_window": 0}, "decode_window=0 has no effect"),
        (["knorm"], {"decode_budget": 132}, "above 132"),
        (["full"], {"decode_budget": 512}, "no effect on 'full' alone"),
        (["full"], {"when": "before_prefill"}, "no effect on 'full' alone"),
        (["full", "pyramidkv", "knorm"], {"decode_budget": 512}, "pyramidkv cannot rank.*snapkv, tova"),
        (["locret+memory"], {"decode_budget": 512}, "locret.memory cannot"),
        (["full", "indexer", "snapkv"], {"when": "before_prefill"}, "snapkv needs K and V of all tokens"),
        (["indexmem"], {"when": "before_prefill"}, "indexmem needs"),
        (["indexer"], {"when": "before_prefill", "sinks": 0}, "sinks=1"),
        (
            ["indexer"],
            {"when": "before_prefill", "granularity": "model"},
            "layers cannot hold one set",
        ),
        (["full"], {"granularity": "layer"}, "no effect on 'full' alone"),
        ([{"name": "keydiff", "params": {"share": "model"}}], {"granularity": "model"}, "nothing to share out"),
        ([{"name": "keydiff", "params": {"share": "layer"}}], {"granularity": "layer"}, "nothing to share out"),
        (["knorm"], {"decode_budget": 159, "block": 16}, "in whole blocks of 16. Use a budget above 159"),
    ],
)
def test_refused(methods, settings, words):
    with pytest.raises(UserError, match=words):
        check(methods, **settings)


MODEL_WIDE = {"name": "indexer", "params": {"share": "model"}}


@pytest.mark.parametrize(
    ("methods", "indexer", "settings", "words"),
    [
        (["indexer"], {"share": "model"}, {"when": "before_prefill"}, "before later layers exist. Use .*share=layer"),
        ([MODEL_WIDE], {}, {"when": "before_prefill"}, r"indexer\(share=model\) shares .* Use indexer.share=layer"),
        (["indexer"], {"share": "head", "floor": 0.3}, {}, "floor=0.3 has no effect .* Use indexer.share=layer"),
    ],
)
def test_sharing_that_cannot_be_is_refused(methods, indexer, settings, words):
    with pytest.raises(UserError, match=words):
        check(methods, indexer, **settings)


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"ratios": [], "budgets": ["8 MiB"]}, "8 MiB is no number of tokens"),
        ({"ratios": [], "budgets": ["512 tokens", "132 tokens"]}, "132 tokens is filled .* above 132"),
    ],
)
def test_a_decode_budget_of_each_cell_is_refused_where_cells_have_none(grid, words):
    config = EvictionConfig(decode_budget="budget")
    with pytest.raises(UserError, match=words):
        check_budgets(config, GridConfig.model_validate({"methods": ["full", "knorm"], **grid}))
    check_budgets(config, GridConfig(methods=(MethodConfig(name="knorm"),), ratios=(), budgets=("200 tokens",)))


def test_accepted():
    check(["full", "indexer", "indexmem", "snapkv+memory", "tova", "random"], decode_budget=512, decode_every=64)
    check(["full", "indexer"], when="before_prefill")
    check(["indexer"], when="before_prefill", decode_budget=200)
    check(["pyramidkv", "xkv", "locret", "running_mean"])
    own = {"name": "indexer", "params": {"share": "head"}}
    check([own, "full"], {"share": "model"}, when="before_prefill")
    check(["indexer"], {"share": "layer", "floor": 0.3}, when="before_prefill", decode_budget=200)
    check([MODEL_WIDE, "indexmem", "snapkv"], {"share": "model"}, decode_budget=200)


def test_a_share_of_the_context_is_a_budget_while_decoding_too():
    check_budgets(EvictionConfig(decode_budget="budget"), GridConfig(methods=("knorm",), ratios=(0.5,)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    torch.manual_seed(3)
    model = save_tiny_model(tmp_path_factory.mktemp("model"))
    geometry = inspect(validate({"model": {"id": str(model)}}, "test").model)
    indexers = IndexerStack(IndexerShape.of(IndexerConfig(pair_term=True, heads=2, dim=4), geometry), geometry)
    return str(model), str(save_modules({"indexer": indexers}, tmp_path_factory.mktemp("modules")))


def rows_with(folders, methods, **eviction):
    """Rows of one sample, ratio 0.25."""
    model, checkpoint = folders
    spec = validate(
        {
            "model": {"id": model},
            "indexer": {"checkpoint": checkpoint},
            "eviction": eviction,
            "grid": {"methods": methods},
        },
        "test",
    )
    configs = {config.label: config for config in spec.grid.methods}
    evaluator = CellEvaluator.load(spec, configs, checkpoint, {"git_commit": "", "versions": {}, "host": ""})
    sample = Sample(
        "niah_single_1/0", "niah_single_1", "some words that go on for a while " * 12, "what was it?", "", ("x",), 20
    )
    cells = [
        GridCell(label, config, Budget.of_ratio(0.0 if label == "full" else 0.25), "niah_single_1", "build", "")
        for label, config in configs.items()
    ]
    rows, retention = evaluator.evaluate([Task(sample, tuple(cells), keep_retention=True)])
    assert [row["status"] for row in rows] == ["ok"] * len(rows), rows
    assert len(retention) == len(rows)
    return {row["method"]: row for row in rows}


def test_a_decode_budget_caps_the_prompt_of_all_but_the_full_cache(folders):
    rows = rows_with(folders, ["full", "indexer", "knorm"], decode_budget=20, decode_every=4, decode_window=4)
    assert rows["full"]["kept_max"] == rows["full"]["context_tokens"] > 30
    assert rows["indexer"]["kept_max"] == rows["knorm"]["kept_max"] == 20
    assert rows["knorm"]["measured_ratio"] == 1 - 20 / rows["full"]["context_tokens"]


def test_a_ratio_holds_while_decoding_with_the_recent_window_on_top(folders):
    """The paper's B_max: (1 - r) L tokens and the most recent ones."""
    rows = rows_with(folders, ["full", "knorm"], decode_budget="budget", decode_every=4, decode_window=6, sinks=2)
    granted = int(0.75 * rows["full"]["context_tokens"])
    assert rows["knorm"]["kept_max"] == granted
    assert rows["knorm"]["new_tokens"] > 6 + 2 * 4, "long enough to be compressed more than once"
    assert granted + 6 < rows["knorm"]["decode_kept_max"] <= granted + 6 + max(4, rows["knorm"]["question_tokens"])
    assert rows["full"]["measured_ratio"] == 0


def test_eviction_before_prefill_is_a_prefill_of_its_own(folders):
    late, early = (rows_with(folders, ["full", "indexer"], when=when) for when in ("after_prefill", "before_prefill"))
    assert late["indexer"]["prefill_seconds"] == late["full"]["prefill_seconds"]
    assert early["indexer"]["prefill_seconds"] != early["full"]["prefill_seconds"]
    for name in ("kept_min", "kept_max", "kv_bytes", "indexer_bytes", "measured_ratio", "full_kv_bytes"):
        assert early["indexer"][name] == late["indexer"][name]
    assert early["full"]["prediction"] == late["full"]["prediction"]


def test_the_plan_checks_before_anything_else():
    spec = validate(
        {"eviction": {"decode_every": 3}, "grid": {"methods": ["knorm"]}, "model": {"id": "./nowhere"}}, "test"
    )
    with pytest.raises(UserError, match="no effect"):
        plan(spec)


@pytest.mark.parametrize(
    ("methods", "settings", "words"),
    [
        (
            ["indexer"],
            {"indexer": {"share": "model"}, "eviction": {"when": "before_prefill"}},
            "Use indexer.share=layer",
        ),
        ([{"name": "tova", "params": {"share": "model"}}], {}, "same scores.*Leave `share` out"),
        ([{"name": "streaming_llm", "params": {"share": "layer"}}], {}, "same scores.*Leave `share` out"),
        ([{"name": "pyramidkv", "params": {"share": "layer"}}], {}, "decides by itself.*Leave `share` out"),
        ([{"name": "knorm", "params": {"floor": 0.5}}], {}, "give share: model or share: layer"),
        (["indexer"], {"indexer": {"share": "layer"}, "scope": "layer"}, "scope=layer.*Use indexer.share=head"),
        (["indexmem"], {"indexer": {"share": "model"}, "grid": {"budgets": ["1 MiB"]}}, "2 layers each.*share=layer"),
        ([{"name": "adakv"}], {"eviction": {"decode_budget": 300}}, "adakv cannot rank"),
        (["indexer"], {"indexer": {"share_every": 1}}, "share_every is 2 there and 1 here.*Use indexer.share_every=2"),
    ],
)
def test_commands_end_with_a_word_on_what_to_do(methods, settings, words, tmp_path, capsys):
    torch.manual_seed(3)
    model = save_tiny_model(tmp_path / "model")
    geometry = inspect(validate({"model": {"id": str(model)}}, "test").model)
    scope = settings.pop("scope", "kv_head")
    shape = IndexerShape.of(IndexerConfig(pair_term=True, heads=2, dim=4, share_every=2, scope=scope), geometry)
    memories = MemoryStack(MemoryShape.of(MemoryConfig(dim=5), geometry), geometry)
    modules = {"indexer": IndexerStack(shape, geometry), "memory-indexer": memories}
    folder = save_modules(modules, tmp_path / "modules")
    spec = {
        "model": {"id": str(model)},
        "indexer": {"checkpoint": str(folder)} | settings.get("indexer", {}),
        "eviction": settings.get("eviction", {}),
        "grid": {"methods": methods, "length": 256, "samples": 1} | settings.get("grid", {}),
        "run": {"root": str(tmp_path / "runs")},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    assert main(["eval", str(tmp_path / "spec.yaml")]) == 2
    assert re.search(words, " ".join(capsys.readouterr().err.split()))


@pytest.mark.parametrize(
    ("said", "differs"),
    [
        ({}, None),  # what the spec leaves open is the checkpoint's
        ({"scope": "layer", "share_every": 2, "pair_term": True, "token_term": 0}, None),
        ({"share_every": 1}, "share_every is 2 there and 1 here. Use indexer.share_every=2"),
        ({"scope": "kv_head"}, "scope is layer there and kv_head here. Use indexer.scope=layer"),
        ({"pair_term": False}, "pair_term is True there and False here. Use indexer.pair_term=true"),
        ({"token_term": 128}, "token_term is 0 there and 128 here"),
        ({"pair_term": True, "heads": 3, "dim": 4}, "heads is 2 there and 3 here. Use indexer.heads=2,"),
    ],
)
def test_a_spec_does_not_say_another_indexer_than_its_checkpoint_holds(said, differs, tmp_path):
    geometry = tiny_backbone().geometry
    trained = IndexerConfig(pair_term=True, token_term=0, heads=2, dim=4, share_every=2, scope="layer")
    save_modules({"indexer": IndexerStack(IndexerShape.of(trained, geometry), geometry)}, tmp_path)
    config = IndexerConfig(checkpoint=str(tmp_path), **said)
    if differs is None:
        check_trained_shape(config, str(tmp_path))
    else:
        with pytest.raises(UserError, match=differs):
            check_trained_shape(config, str(tmp_path))
