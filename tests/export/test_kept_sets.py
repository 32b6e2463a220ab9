"""What an exported folder keeps is what the engine keeps: for any terms, budgets, lengths, heads; on both models."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tiny_models import random_ids, tiny_backbone

from indexmem.config.modules import FLOOR, IndexerConfig
from indexmem.config.schema import MethodConfig, ModelConfig
from indexmem.engine.prefill import prefill
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.reads import READS
from indexmem.eviction.selection import PER_HEAD, Shared, whole_tokens
from indexmem.export.folder import MODULE, export_checkpoint
from indexmem.export.portable import ExportedIndexer
from indexmem.models.attention import tapping
from indexmem.models.backbone import load_backbone

SINKS = 4
TERMS = {
    "token": {},
    "pair": {"pair_term": True, "token_term": 0},
    "both": {"pair_term": True, "token_term": 8},
    "every second layer": {"share_every": 2, "pair_term": True},
    "one row for all heads": {"scope": "layer"},
    "K": {"reads": "key"},
    "K before RoPE": {"reads": "key_pre"},
    "K and V": {"reads": "key_value"},
}
values = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 3.0])  # few: ties
scores = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 12)).flatmap(
    lambda shape: arrays("float32", shape, elements=values)
)


def exported(folder, to) -> ExportedIndexer:
    """The indexer as the exported file itself gives it."""
    spec = spec_from_file_location("exported_file", export_checkpoint(str(folder), to) / MODULE)
    module = module_from_spec(spec)
    sys.modules["exported_file"] = module
    spec.loader.exec_module(module)
    return module.ExportedIndexer.load(to)


def engine_keeps(backbone, ids, folder, ratios) -> list[list[list[list[int]]]]:
    """By ratio, layer and head."""
    context = MethodContext(backbone.geometry, checkpoint=str(folder), floor=FLOOR)
    method = make_method(MethodConfig(name="indexer"), context)
    filled = prefill(backbone, ids, {"indexer": method}, SINKS)
    found = []
    for ratio in ratios:
        target = len(ids) * (1 - ratio)
        target = whole_tokens(target, len(ids)) if method.selection.shares else target  # as evaluate/compress.py
        row = method.compress(filled.context, filled.rankings_HL["indexer"], target)
        kept = enumerate(row.kept_HK)
        found.append([[heads[h, :k].tolist() for h, k in enumerate(row.lengths(n))] for n, heads in kept])
    return found


def export_keeps(backbone, ids, indexer, ratios) -> list[list[list[list[int]]]]:
    """The same from what a forward pass shows of each layer."""
    states, queries = [], []

    def visit(tap) -> None:
        states.append(READS[indexer.reads].of(tap)[0])
        queries.append(tap.query_pre_BQLd[0])

    with torch.inference_mode(), tapping(backbone.model, visit) as kwargs:
        backbone.model.get_decoder()(torch.tensor([ids]), use_cache=False, **kwargs)
    scores_NHT = indexer.scores_of_all(states, queries)
    return [
        [[kept_K.tolist() for kept_K in layer] for layer in indexer.keep(scores_NHT, ratio=ratio)] for ratio in ratios
    ]


def checkpoint(folder, geometry, loss, **config):
    torch.manual_seed(3)
    stack = IndexerStack(IndexerShape.of(IndexerConfig(**config), geometry), geometry)
    return save_modules({"indexer": stack}, folder, {"target": {"loss": loss}, "backbone": "tiny"})


@pytest.mark.parametrize("loss", ["kl", "bce"])  # heads have budgets of their own; all heads share one
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_the_exported_file_keeps_what_the_engine_keeps(family, terms, loss, tmp_path):
    backbone = tiny_backbone(family)
    folder = checkpoint(tmp_path / "trained", backbone.geometry, loss, **TERMS[terms])
    indexer, ratios = exported(folder, tmp_path / "export"), [0.0, 0.3, 0.5, 0.9, 0.99]
    for length in (1, 7, 64, 301):
        ids = random_ids(length, seed=length)
        expected = engine_keeps(backbone, ids, folder, ratios)
        assert export_keeps(backbone, ids, indexer, ratios) == expected
        assert length < 7 or expected[2] != expected[3], "budgets differ, so kept sets do"


@pytest.mark.model
@pytest.mark.parametrize(
    ("model", "modules"), [("testbed", "testbed-modules"), ("smollm2-135m-instruct", "smollm2-modules")]
)
def test_of_the_shipped_modules_too(model, modules, tmp_path):
    from indexmem.models.assets import modules_folder

    backbone = load_backbone(ModelConfig(id=model, dtype="float32"))
    indexer, ratios = exported(modules, tmp_path / "export"), [0.25, 0.5, 0.75, 0.9, 0.95]
    assert indexer.rule == {"share": "model", "floor": 0.1, "sinks": SINKS}
    generator = torch.Generator().manual_seed(0)
    for length in (130, 517):
        ids = torch.randint(3, backbone.geometry.vocab_size, (length,), generator=generator).tolist()
        expected = engine_keeps(backbone, ids, modules_folder(modules), ratios)
        assert export_keeps(backbone, ids, indexer, ratios) == expected
        assert len({len(head) for layer in expected[3] for head in layer}) > 1, "heads share a budget"


@given(
    scores=scores,
    share=st.sampled_from(["head", "layer", "model"]),
    floor=st.sampled_from([0.0, 0.1, 0.34, 1.0]),
    sinks=st.integers(0, 3),
    every=st.sampled_from([1, 2]),
    target=st.floats(0.01, 13.0),
)
@settings(max_examples=300)
def test_the_rule_is_the_engines_for_any_scores(scores, share, floor, sinks, every, target):
    scores_NHT = torch.from_numpy(scores)
    layers, heads, tokens = scores_NHT.shape
    if every == 2:  # layers that share an indexer have the same scores
        scores_NHT = scores_NHT[[layer - layer % 2 for layer in range(layers)]]
    model = {"layers": layers, "hidden_size": 2, "heads": heads, "kv_heads": heads, "head_dim": 2}
    shape = {"rows": heads, "heads": 0, "dim": 0, "pair_term": False, "token_term": 1, "share_every": every}
    rule = {"share": "head", "floor": 0.1, "sinks": sinks}
    indexer = ExportedIndexer({"model": model, "indexer": shape | {"reads": "hidden"}, "keep": rule})
    selection = PER_HEAD if share == "head" else Shared(share, floor, alike=every)
    ranked = [selection.rank(layer_HT, sinks) for layer_HT in scores_NHT]
    if heads == 1 and share != "head":
        return  # one score row: nothing to share out
    kept = selection.choose(ranked, tokens, min(tokens, target))
    expected = [
        [row[: row.numel() if counts is None else counts[head]].tolist() for head, row in enumerate(positions)]
        for positions, counts in kept
    ]
    found = indexer.keep(scores_NHT, tokens=target, share=share, floor=floor)
    assert [[head.tolist() for head in layer] for layer in found] == expected


def test_mistakes_are_refused(tmp_path):
    backbone = tiny_backbone()
    indexer = exported(checkpoint(tmp_path / "a", backbone.geometry, "kl", scope="layer"), tmp_path / "b")
    scores_NHT = torch.zeros(3, 2, 5)
    with pytest.raises(ValueError, match="same scores"):
        indexer.keep(scores_NHT, ratio=0.5, share="model")
    with pytest.raises(ValueError, match="ratio"):
        indexer.keep(scores_NHT)
    with pytest.raises(ValueError, match="NaN"):
        indexer.keep(scores_NHT * float("nan"), ratio=0.5)
    paired = exported(checkpoint(tmp_path / "c", backbone.geometry, "kl", pair_term=True), tmp_path / "d")
    with pytest.raises(ValueError, match="queries before RoPE"):
        paired.scores(0, torch.zeros(5, backbone.geometry.hidden_size))
