"""One set of tokens for each head, layer or the model, in whole blocks: kept sets equal a slow fp64 choice."""

from fractions import Fraction
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tiny_models import random_ids, tiny_backbone

from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.footprint import check_kept
from indexmem.eviction.granularity import COARSENESS, SetsOfBlocks
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.selection import PER_HEAD, GrownLayer, Shared, whole_pairs

SINKS = 2
values = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 3.0])  # few: ties
scores = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(3, 14)).flatmap(
    lambda shape: arrays("float32", shape, elements=values)
)
granularities = st.sampled_from(["head", "layer", "model"])
blocks = st.sampled_from([1, 2, 3, 5])
budgets = st.sampled_from(
    [PER_HEAD, *(Shared(across, floor) for across in ("layer", "model") for floor in (0.0, 0.34, 1))]
)


def chosen(selection, scores_NHL, target, sinks=SINKS):
    """Kept positions, [layers][heads] sets."""
    kept = selection.choose([selection.rank(layer, sinks) for layer in scores_NHL], scores_NHL.shape[-1], target)
    return [sets_of(*layer) for layer in kept]


def sets_of(positions_HK, counts_H):
    counts = [positions_HK.shape[1]] * len(positions_HK) if counts_H is None else counts_H.tolist()
    return [set(row[:count].tolist()) for row, count in zip(positions_HK, counts, strict=True)]


def members(granularity, layers, heads):
    """The (layer, head) pairs of each set, by layer and then by head."""
    every = [[(n, h) for h in range(heads)] for n in range(layers)]
    if granularity == "head":
        return [[pair] for layer in every for pair in layer]
    return every if granularity == "layer" else [list(chain(*every))]


def sharing(sets, across):
    """Sets by whose budget they spend: each its own, those of a layer, or all."""
    if across == "head":
        return [[s] for s in sets]
    if across == "model":
        return [sets]
    layers = sorted({s[0][0] for s in sets})
    return [[s for s in sets if s[0][0] == n] for n in layers]


def slowly(score, held, granularity, across, block, floor, target):
    """Kept positions of each (layer, head): `score` of (layer, head, position) in fp64, `held` positions of each pair.

    One (set, block) after another, the best first, until the next does not fit.
    """
    layers, heads = 1 + max(n for n, _ in held), 1 + max(h for _, h in held)
    kept = {pair: set() for pair in held}
    across = max(across, granularity, key=COARSENESS.index)
    for group in sharing(members(granularity, layers, heads), across):
        total = whole_pairs(len(group) * target)
        queue = []
        for number, pairs in enumerate(group):
            tokens = sorted(held[pairs[0]])
            worth = {
                u: max(score(*pair, p) for pair in pairs for p in tokens if p // block == u)
                for u in {p // block for p in tokens}
            }
            size = {u: sum(p // block == u for p in tokens) for u in worth}
            spent, safe = 0, whole_pairs(floor * (total // len(group)))
            for place, u in enumerate(sorted(worth, key=lambda u: (-worth[u], u))):
                spent += size[u]
                first = place == 0 or spent <= safe or worth[u] == float("inf")
                queue.append((0 if first else 1, 0.0 if first else -worth[u], u, number, size[u], pairs, tokens))
        for *_, u, _, size, pairs, tokens in sorted(queue, key=lambda item: item[:4]):
            if size > total:
                break
            total -= size
            for pair in pairs:
                kept[pair] |= {p for p in tokens if p // block == u}
    return kept


def raised(scores_NHL, sinks):
    return lambda n, h, p: float("inf") if p < sinks else float(scores_NHL[n, h, p].double())


@given(scores=scores, granularity=granularities, block=blocks, budget=budgets, share=st.floats(0.05, 1.0))
def test_kept_sets_equal_a_slow_choice(scores, granularity, block, budget, share):
    scores_NHL = torch.from_numpy(scores)
    layers, heads, tokens = scores_NHL.shape
    target, selection = share * tokens, SetsOfBlocks.of(budget, granularity, block)
    least = min(block, tokens)
    if max(1, target) < least - 1e-3:
        with pytest.raises(ValueError, match="holds no whole block"):
            chosen(selection, scores_NHL, target)
        return
    if target < least + 1e-3:
        target = least
    found = chosen(selection, scores_NHL, target)
    held = {(n, h): range(tokens) for n in range(layers) for h in range(heads)}
    floor = budget.floor if isinstance(budget, Shared) else 0.0
    expected = slowly(raised(scores_NHL, SINKS), held, granularity, budget.across, block, floor, target)
    assert {(n, h): found[n][h] for n in range(layers) for h in range(heads)} == expected


@given(scores=scores, granularity=granularities, block=blocks, budget=budgets, share=st.floats(0.05, 1.0))
def test_sets_are_one_blocks_are_whole_and_the_budget_holds(scores, granularity, block, budget, share):
    scores_NHL = torch.from_numpy(scores)
    layers, heads, tokens = scores_NHL.shape
    target = max(share * tokens, min(block, tokens), 1)
    found = chosen(SetsOfBlocks.of(budget, granularity, block), scores_NHL, target)
    for pairs in members(granularity, layers, heads):
        assert len({frozenset(found[n][h]) for n, h in pairs}) == 1
    for kept in chain(*found):
        whole = {p for u in {p // block for p in kept} for p in range(u * block, min(tokens, (u + 1) * block))}
        assert kept == whole
        if -(-SINKS // block) * block <= target:
            assert set(range(min(SINKS, tokens))) <= kept
    mean = Fraction(sum(map(len, chain(*found))), layers * heads)
    assert target - block < mean <= Fraction(target) + Fraction(1, 10**6)


@given(scores=scores, budget=budgets, share=st.floats(0.05, 1.0))
def test_single_tokens_of_each_head_are_what_they_are_without(scores, budget, share):
    scores_NHL = torch.from_numpy(scores)
    tokens = scores_NHL.shape[-1]
    target = max(1.0, share * tokens) if budget is not PER_HEAD else float(max(1, int(share * tokens)))
    assert chosen(SetsOfBlocks.of(budget, "head", 1), scores_NHL, target) == chosen(budget, scores_NHL, target)


@given(scores=scores, granularity=granularities, block=blocks, share=st.floats(0.05, 0.9), more=st.floats(0, 0.5))
def test_a_larger_budget_keeps_all_that_a_smaller_one_does(scores, granularity, block, share, more):
    scores_NHL = torch.from_numpy(scores)
    tokens, selection = scores_NHL.shape[-1], SetsOfBlocks.of(PER_HEAD, granularity, block)
    least = min(block, tokens)
    small, large = (chosen(selection, scores_NHL, max(least, x * tokens)) for x in (share, min(1, share + more)))
    assert all(a <= b for some, many in zip(small, large) for a, b in zip(some, many))


@given(data=st.data(), granularity=granularities, block=blocks, budget=budgets)
def test_a_cache_that_has_grown(data, granularity, block, budget):
    """Ragged where heads have sets of their own; what always stays is at +inf."""
    layers, heads, longest = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(6, 14)))
    positions = st.sets(st.integers(0, longest + 5), min_size=3, max_size=longest).map(sorted)
    held = {}
    for pairs in members(granularity, layers, heads):
        held |= dict.fromkeys(pairs, data.draw(positions))
    score = {(n, h, p): data.draw(values) for (n, h), own in held.items() for p in own}
    target = data.draw(st.integers(max(block, 3), longest))
    always = {min(min(own) for own in held.values())} if target >= 2 * block else set()
    score = {key: float("inf") if key[2] in always else x for key, x in score.items()}
    grown = []
    for n in range(layers):
        width = max(len(held[n, h]) for h in range(heads))
        rows = [[held[n, h][0]] * (width - len(held[n, h])) + held[n, h] for h in range(heads)]
        scores_HT = torch.tensor([[score[n, h, p] for p in row] for h, row in enumerate(rows)])
        grown.append(GrownLayer(scores_HT, torch.tensor(rows), [len(held[n, h]) for h in range(heads)]))
    found = SetsOfBlocks.of(budget, granularity, block).choose_grown(grown, target, len(always))
    floor = budget.floor if isinstance(budget, Shared) else 0.0
    expected = slowly(lambda *key: score[key], held, granularity, budget.across, block, floor, target)
    for n, (columns_HK, counts_H) in enumerate(found):
        kept_HK = grown[n].position_HT.gather(1, columns_HK)
        assert sets_of(kept_HK, counts_H) == [expected[n, h] for h in range(heads)]


def context_of(granularity, block):
    return MethodContext(tiny_backbone().geometry, granularity=granularity, block=block)


@pytest.mark.parametrize("granularity", ["head", "layer", "model"])
@pytest.mark.parametrize("block", [1, 16])
@pytest.mark.parametrize("length", [90, 96])
def test_methods_keep_sets_of_blocks_on_a_model_with_grouped_queries(granularity, block, length):
    configs = [MethodConfig(name=name) for name in ("keydiff", "knorm", "tova", "streaming_llm", "random")]
    configs += [MethodConfig(name="snapkv", params={"window_size": 8})]
    configs += [MethodConfig(name="running_mean", params={"base": "knorm"})]
    configs += [MethodConfig(name="keydiff", params={"share": "model"})] if granularity != "model" else []
    methods = {config.label: make_method(config, context_of(granularity, block)) for config in configs}
    done = prefill(tiny_backbone(), random_ids(length), methods, sinks=4)
    assert not done.errors
    for label, method in methods.items():
        for target in (length * 0.5, length * 0.25, 33):
            row = method.compress(done.context, done.rankings_HL[label], target)
            check_kept(row, target, method.selection.slack, method.selection.step)
            sets = [
                frozenset(kept_K[:count].tolist())
                for layer, kept_HK in enumerate(row.kept_HK)
                for kept_K, count in zip(kept_HK, row.lengths(layer))
            ]
            assert all(set(range(4)) <= kept for kept in sets)
            assert all(len(set(sets[2 * n : 2 * n + 2])) == 1 for n in range(3)) or granularity == "head"
            assert len(set(sets)) == 1 or granularity != "model"
            for kept in sets:
                pages = {p // block for p in kept}
                assert kept == {p for p in range(length) if p // block in pages}


def test_the_newest_tokens_of_a_window_stay_in_their_blocks():
    method = make_method(MethodConfig(name="snapkv", params={"window_size": 8}), context_of("layer", 16))
    done = prefill(tiny_backbone(), random_ids(92), {"snapkv": method}, sinks=4)
    row = method.compress(done.context, done.rankings_HL["snapkv"], 30)
    assert all(set(range(84, 92)) <= set(kept_K.tolist()) for kept_HK in row.kept_HK for kept_K in kept_HK)


@pytest.mark.parametrize("name", ["pyramidkv", "adakv", "criticalkv", "critical_adakv", "compactor", "xkv"])
def test_methods_that_decide_by_themselves_are_refused(name):
    with pytest.raises(
        UserError, match=f"'{name}': eviction.granularity=layer eviction.block=16: .* decides by itself"
    ):
        make_method(MethodConfig(name=name), context_of("layer", 16))


def test_defaults_leave_methods_as_they_are():
    assert make_method(MethodConfig(name="keydiff"), context_of("head", 1)).selection is PER_HEAD
    shared = MethodConfig(name="keydiff", params={"share": "model"})
    assert type(make_method(shared, context_of("head", 1)).selection) is Shared
