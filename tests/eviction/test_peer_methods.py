"""Scorers and head-wise budgets of the field keep exactly the tokens that kvpress' own presses keep."""

import pytest
import torch
from kept_rows import kept_tokens
from kvpress import (
    AdaKVPress,
    CapPress,
    CompactorPress,
    CriticalAdaKVPress,
    CriticalKVPress,
    CURPress,
    ExpectedAttentionPress,
    KeyDiffPress,
    KnormPress,
    LagKVPress,
    LeverageScorePress,
    NonCausalAttnPress,
    ObservedAttentionPress,
    SnapKVPress,
)
from kvpress_oracle import kept_mask, kvpress_cache, kvpress_model, masked_kept, same_vectors
from tiny_models import FULL_FAMILIES, random_ids, tiny_backbone, tiny_model

from indexmem.config.modules import IndexerConfig
from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.methods import simple
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.compactor import seeded
from indexmem.eviction.methods.registry import make_method

LENGTH = 230
RATIOS = (0.25, 0.6, 0.9)


def compressed(name, family="llama", sinks=0, ids=None, ratios=RATIOS, context=None, **params):
    """Rows of one prefill at several ratios."""
    backbone = tiny_backbone(family)
    method = make_method(MethodConfig(name=name, params=params), context or MethodContext(backbone.geometry))
    done = prefill(backbone, ids or random_ids(LENGTH), {"m": method}, sinks)
    assert not done.errors, done.errors
    return [method.compress(done.context, done.rankings_HL["m"], done.context.tokens * (1 - r)) for r in ratios]


class SeededLeverage(LeverageScorePress):
    """kvpress' press with the random numbers that ours draws."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        class Tap:
            layer, key_BHLd = module.layer_idx, keys

        with seeded(0, Tap):
            return super().score(module, hidden_states, keys, values, attentions, kwargs)


class SeededCompactor(CompactorPress):
    def __post_init__(self):
        super().__post_init__()
        self._leverage_press = SeededLeverage(sketch_dimension=self.sketch_dimension)


SCORERS = {
    # In its default form LagKV's scores are ranks within a lag, and so full of ties; see the test below.
    "lagkv": (LagKVPress, {"lag_size": 16, "cross_scoring": True}),
    "leverage": (SeededLeverage, {}),
    "non_causal_attention": (NonCausalAttnPress, {"chunk_size": 64}),
    "compactor": (SeededCompactor, {"chunk_size": 64}),
    "cur": (CURPress, {}),
    "cap": (CapPress, {}),
}


@pytest.mark.parametrize("family", FULL_FAMILIES)
@pytest.mark.parametrize("name", SCORERS)
def test_kept_tokens_of_a_scorer_equal_kvpress(family, name):
    press, params = SCORERS[name]
    rows = compressed(name, family, **params)
    for row, ratio in zip(rows, RATIOS):
        theirs = kvpress_cache(kvpress_model(family), press(compression_ratio=ratio, **params), random_ids(LENGTH))
        for layer, cached in enumerate(theirs.layers):
            ours_HKd, _ = kept_tokens(row, layer)
            assert all(same_vectors(*pair) for pair in zip(ours_HKd, cached.keys[0])), (ratio, layer)


def test_lagkv_with_ties_keeps_tokens_of_the_same_scores():
    params = {"lag_size": 32}
    scores = {}

    class Watched(LagKVPress):
        def score(self, module, *args):
            scores[module.layer_idx] = super().score(module, *args)
            return scores[module.layer_idx].clone()

    ratio = RATIOS[1]
    kvpress_cache(kvpress_model("llama"), Watched(compression_ratio=ratio, **params), random_ids(LENGTH))
    (row,) = compressed("lagkv", ratios=(ratio,), **params)
    for layer, kept_HK in enumerate(row.kept_HK):
        best_HK = scores[layer][0].topk(kept_HK.shape[1]).values
        assert torch.equal(scores[layer][0].gather(1, kept_HK).sort(descending=True).values, best_HK)


@pytest.mark.parametrize("family", FULL_FAMILIES)
@pytest.mark.parametrize("block_logits", [2**25, 4 * LENGTH * 7])
def test_observed_attention_equals_kvpress_on_eager_attention(family, block_logits, monkeypatch):
    monkeypatch.setattr(simple, "BLOCK_LOGITS", block_logits)  # 7 queries at a time
    for row, ratio in zip(compressed("observed_attention", family), RATIOS):
        press = ObservedAttentionPress(compression_ratio=ratio)
        theirs = kvpress_cache(tiny_model(family, "eager"), press, random_ids(LENGTH))
        for layer, cached in enumerate(theirs.layers):
            ours_HKd, _ = kept_tokens(row, layer)
            assert all(same_vectors(*pair) for pair in zip(ours_HKd, cached.keys[0]))


# SnapKV's window of equal scores must fit into every budget, or ties decide.
BASES = {"snapkv": (SnapKVPress, {"window_size": 8}), "keydiff": (KeyDiffPress, {}), "knorm": (KnormPress, {})}
BASES |= {"expected_attention": (ExpectedAttentionPress, {})}


def base_of(name):
    return {"name": name, "params": BASES[name][1]}


def press_of(name, ratio):
    press, params = BASES[name]
    return press(compression_ratio=ratio, **params)


@pytest.mark.parametrize("family", FULL_FAMILIES)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("alpha", [0.2, 0.7])
def test_adakv_keeps_what_kvpress_does_not_mask(family, base, alpha):
    for row, ratio in zip(compressed("adakv", family, base=base_of(base), alpha_safeguard=alpha), RATIOS):
        model = kvpress_model(family)
        kvpress_cache(model, AdaKVPress(press_of(base, ratio), alpha), random_ids(LENGTH))
        for layer, theirs_HL in enumerate(masked_kept(model, LENGTH)):
            assert torch.equal(kept_mask(row, layer), theirs_HL), (ratio, layer)
        assert any(len(set(row.lengths(layer))) > 1 for layer in range(3)), "heads must differ, or nothing is shown"


@pytest.mark.parametrize("family", FULL_FAMILIES)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("first_stage", [0.5, 0.0])
def test_criticalkv_keeps_what_kvpress_keeps(family, base, first_stage):
    for row, ratio in zip(compressed("criticalkv", family, base=base_of(base), first_stage_ratio=first_stage), RATIOS):
        press = CriticalKVPress(press_of(base, ratio), first_stage_ratio=first_stage)
        theirs = kvpress_cache(kvpress_model(family), press, random_ids(LENGTH))
        assert row.counts_H is None
        for layer, cached in enumerate(theirs.layers):
            ours_HKd, _ = kept_tokens(row, layer)
            assert all(same_vectors(*pair) for pair in zip(ours_HKd, cached.keys[0])), (ratio, layer)


@pytest.mark.parametrize("family", FULL_FAMILIES)
@pytest.mark.parametrize("base", BASES)
def test_critical_adakv_keeps_what_kvpress_does_not_mask(family, base):
    for row, ratio in zip(compressed("critical_adakv", family, base=base_of(base)), RATIOS):
        model = kvpress_model(family)
        kvpress_cache(model, CriticalAdaKVPress(press_of(base, ratio)), random_ids(LENGTH))
        for layer, theirs_HL in enumerate(masked_kept(model, LENGTH)):
            assert torch.equal(kept_mask(row, layer), theirs_HL), (ratio, layer)


HEADWISE = ("adakv", "critical_adakv", "duo_attention", "kvzip")


@pytest.mark.parametrize("name", HEADWISE)
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 0.77, 0.9, 0.99])
def test_the_measured_budget_is_the_requested_one(name, ratio):
    (row,) = compressed(name, sinks=4, ratios=(ratio,))
    lengths = [length for layer in range(3) for length in row.lengths(layer)]
    assert min(lengths) >= 1
    target = max(1, LENGTH * (1 - ratio))
    mean = sum(lengths) / len(lengths)
    assert target - 1 < mean <= target + 1e-6, (target, mean)
    head_dim = row.keys_HLd[0].shape[-1]
    assert row.kv_bytes == sum(lengths) * 2 * head_dim * 4
    for layer in range(3):
        mask_HL = kept_mask(row, layer)
        assert mask_HL.sum(1).tolist() == row.lengths(layer)
        for head, length in enumerate(row.lengths(layer)):
            assert mask_HL[head, : min(4, length)].all(), "the first tokens come first"


def test_adakv_over_a_learned_indexer_needs_scores_of_single_heads(tmp_path):
    geometry = tiny_backbone().geometry
    for scope in ("kv_head", "layer"):
        torch.manual_seed(0)
        stack = IndexerStack(IndexerShape.of(IndexerConfig(scope=scope), geometry), geometry)
        context = MethodContext(geometry, checkpoint=str(save_modules({"indexer": stack}, tmp_path / scope)))
        if scope == "layer":
            with pytest.raises(UserError, match=r"same scores.*scope kv_head"):
                make_method(MethodConfig(name="adakv", params={"base": "indexer"}), context)
        else:
            method = make_method(MethodConfig(name="adakv", params={"base": "indexer"}), context)
            assert method.checkpoint
            (row,) = compressed("adakv", ratios=(0.6,), context=context, base="indexer")
            assert sum(map(sum, (row.lengths(layer) for layer in range(3)))) == 3 * 2 * int(LENGTH * 0.4)


@pytest.mark.parametrize("name", ["adakv", "criticalkv", "critical_adakv", "running_mean"])
@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("pyramidkv", "decides more than scores"),
        ("adakv", "decides more than scores"),
        ("compactor", "decides more than scores"),
        ("kvzip", "decides more than scores"),
        ("full", "has no scores"),
        ("snapvk", "Did you mean 'snapkv'"),
    ],
)
def test_bases_that_do_more_than_score_are_refused(name, base, words):
    with pytest.raises(UserError, match=words):
        make_method(MethodConfig(name=name, params={"base": base}), MethodContext(tiny_backbone().geometry))


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("adakv", {"alpha_safeguard": 1.5}, "parameter 'alpha_safeguard': .*less than or equal to 1"),
        ("adakv", {"epsilon": 0.1}, "unknown parameter 'epsilon'. Allowed: base, alpha_safeguard"),
        ("adakv", {"base": "tova"}, "nothing to share out"),
        ("criticalkv", {"first_stage_ratio": -1}, "parameter 'first_stage_ratio'"),
        ("compactor", {"sink_size_end": -1}, "0 or more"),
        ("leverage", {"sketch": 3}, "Allowed: sketch_dimension, seed"),
    ],
)
def test_wrong_parameters_are_named(name, params, words):
    with pytest.raises(UserError, match=words):
        make_method(MethodConfig(name=name, params=params), MethodContext(tiny_backbone().geometry))


def test_a_sketch_s_random_numbers_are_its_own():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second, other = (
        compressed("leverage", ratios=(0.6,), sketch_dimension=4, seed=seed)[0].kept_HK[0] for seed in (0, 0, 1)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
