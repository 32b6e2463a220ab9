"""Budgets that heads share: exact sizes, floors, the best pairs; and which methods take `share` and `floor`."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from method_zoo import PRETRAINED, save_gates, save_weights
from tiny_models import random_ids, tiny_backbone

from indexmem.config.modules import IndexerConfig
from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.locret import LocretShape, LocretStack
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.ranking import keep, rank
from indexmem.eviction.selection import PER_HEAD, Shared

SINKS = 2
values = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 3.0])  # few: ties
scores = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(3, 9)).flatmap(
    lambda shape: arrays("float32", shape, elements=values)
)
acrosses = st.sampled_from(["layer", "model"])
floors = st.sampled_from([0.0, 0.1, 0.34, 0.5, 1.0])


def chosen(sharing, scores_NHL, target, sinks=SINKS):
    """Kept positions, [layers][heads] sets."""
    kept = sharing.choose([sharing.rank(layer, sinks) for layer in scores_NHL], scores_NHL.shape[-1], target)
    return [
        [set(row[:count].tolist()) for row, count in zip(positions_HK, counts_H.tolist(), strict=True)]
        for positions_HK, counts_H in kept
    ]


def groups(across, scores_NHL, kept):
    """Scores [X, L] and kept sets of the heads that share a budget."""
    if across == "layer":
        return list(zip(scores_NHL, kept, strict=True))
    return [(scores_NHL.flatten(0, 1), [sets for layer in kept for sets in layer])]


def budget(heads, tokens, target):
    return max(heads, min(heads * tokens, int(heads * target + 1e-6)))


@given(scores=scores, across=acrosses, floor=floors, share=st.floats(0.05, 1.0))
def test_each_group_keeps_its_budget_and_each_head_its_floor(scores, across, floor, share):
    scores_NHL = torch.from_numpy(scores)
    tokens = scores_NHL.shape[-1]
    target = share * tokens
    kept = chosen(Shared(across, floor), scores_NHL, target)
    for scores_XL, sets in groups(across, scores_NHL, kept):
        heads = len(scores_XL)
        total = budget(heads, tokens, target)
        assert sum(map(len, sets)) == total
        assert min(map(len, sets)) >= max(1, int(floor * (total // heads) + 1e-6))
        if total >= heads * SINKS:
            assert all(set(range(SINKS)) <= positions for positions in sets)


@given(scores=scores, across=acrosses, data=st.data())
def test_a_floor_of_1_is_an_even_split(scores, across, data):
    scores_NHL = torch.from_numpy(scores)
    count = data.draw(st.integers(1, scores_NHL.shape[-1]))
    expected = [[set(row.tolist()) for row in keep(rank(layer, SINKS), count)] for layer in scores_NHL]
    assert chosen(Shared(across, 1.0), scores_NHL, float(count)) == expected


@given(scores=scores, across=acrosses, floor=floors, share=st.floats(0.05, 1.0))
def test_the_rest_goes_to_the_best_pairs_of_all(scores, across, floor, share):
    """By sorting: a head's safe tokens and sinks first, then by score, the earlier position, the earlier head."""
    scores_NHL = torch.from_numpy(scores)
    tokens = scores_NHL.shape[-1]
    kept = chosen(Shared(across, floor), scores_NHL, share * tokens)
    for scores_XL, sets in groups(across, scores_NHL, kept):
        heads = len(scores_XL)
        total = budget(heads, tokens, share * tokens)
        safe = max(1, int(floor * (total // heads) + 1e-6))
        raised = scores_XL.clone()
        raised[:, :SINKS] = torch.inf
        for row in raised:
            row[sorted(range(tokens), key=lambda position: (-row[position], position))[:safe]] = torch.inf
        pairs = [(head, position) for head in range(heads) for position in range(tokens)]
        pairs.sort(key=lambda pair: (-raised[pair], pair[1], pair[0]))
        assert {(head, position) for head, row in enumerate(sets) for position in row} == set(pairs[:total])


@given(scores=scores, across=acrosses, floor=floors, share=st.floats(0.05, 0.9), more=st.floats(0, 0.5))
def test_a_larger_budget_keeps_all_that_a_smaller_one_does(scores, across, floor, share, more):
    scores_NHL = torch.from_numpy(scores)
    tokens, sharing = scores_NHL.shape[-1], Shared(across, floor)
    small = chosen(sharing, scores_NHL, share * tokens)
    large = chosen(sharing, scores_NHL, min(1.0, share + more) * tokens)
    if floor in (0.0, 1.0):
        assert all(a <= b for some, many in zip(small, large) for a, b in zip(some, many))
    for some, many in zip(small, large):  # a floor in between grows with the budget, and may take pairs from others
        for a, b in zip(some, many):
            assert a <= b or b <= a, "what a head keeps is always the best of its own"


@given(data=st.data(), across=acrosses, floor=floors, share=st.floats(0.05, 1.0))
def test_no_head_is_preferred(data, across, floor, share):
    """Without ties, heads in another order keep what they kept."""
    layers, heads, tokens = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(3, 8)))
    order = data.draw(st.permutations(range(layers * heads * (tokens - SINKS))))
    scores_NHL = torch.zeros(layers, heads, tokens)
    scores_NHL[..., SINKS:] = torch.tensor(order, dtype=torch.float32).view(layers, heads, tokens - SINKS)
    swap = data.draw(st.permutations(range(heads)))
    target = max(share * tokens, SINKS)  # below, sinks tie
    kept = chosen(Shared(across, floor), scores_NHL, target)
    swapped = chosen(Shared(across, floor), scores_NHL[:, swap], target)
    assert swapped == [[sets[head] for head in swap] for sets in kept]


def test_rounding_of_a_ratio_loses_no_pair():
    scores_NHL = torch.arange(480.0).view(1, 2, 240)
    for across in ("layer", "model"):
        assert sum(map(len, chosen(Shared(across), scores_NHL, 240 * (1 - 0.9))[0])) == 48


SCORERS = {
    **{name: {} for name in ("keydiff", "knorm", "expected_attention", "kvzap", "indexer", "locret", "random")},
    "snapkv": {"window_size": 8},
    "lagkv": {"lag_size": 16, "cross_scoring": True},  # else it gives all heads the same scores in another order
}
OWN_RULE, ONE_RANKING = "decides by itself what each head keeps", "gives all KV heads of a layer the same scores"
REFUSED = {
    **dict.fromkeys(("full", "xkv", "pyramidkv", "adakv", "criticalkv", "duo_attention", "compactor"), OWN_RULE),
    **dict.fromkeys(("tova", "streaming_llm", "running_mean"), ONE_RANKING),
}


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    torch.manual_seed(0)
    geometry = tiny_backbone().geometry
    trained = {
        "indexer": IndexerStack(IndexerShape.of(IndexerConfig(token_term=8), geometry), geometry),
        "locret": LocretStack(LocretShape(16), geometry),
    }
    folder = save_modules(trained, tmp_path_factory.mktemp("modules") / "trained")
    return MethodContext(geometry, checkpoint=str(folder))


def build(name, context, tmp_path, **params):
    if name in PRETRAINED:
        params["weights"] = save_weights(name, context.geometry, tmp_path / name)
    return make_method(MethodConfig(name=name, params=params), context)


@pytest.mark.parametrize("name", SCORERS)
def test_methods_that_score_heads_apart_can_share(name, context, tmp_path):
    settings = {"plain": {}, "even": {"share": "head"}, "floor": {"share": "model", "floor": 1.0}}
    settings |= {"layer": {"share": "layer"}, "model": {"share": "model", "floor": 0.2}}
    methods = {label: build(name, context, tmp_path, **SCORERS[name], **params) for label, params in settings.items()}
    assert methods["plain"].selection == methods["even"].selection == PER_HEAD
    assert methods["layer"].selection == Shared("layer", 0.1)
    done = prefill(tiny_backbone(), random_ids(90), methods, sinks=4)
    assert not done.errors
    rows = {label: method.compress(done.context, done.rankings_HL[label], 30.0) for label, method in methods.items()}
    counts = {label: torch.tensor([row.lengths(layer) for layer in range(3)]) for label, row in rows.items()}
    for label in ("plain", "even", "floor"):
        assert counts[label].eq(30).all()
        for ours, plain in zip(rows[label].kept_HK, rows["plain"].kept_HK, strict=True):
            assert torch.equal(ours, plain)
    assert counts["layer"].sum(1).tolist() == [60] * 3
    assert counts["layer"].min() >= 3
    assert counts["model"].sum() == 180
    assert counts["model"].min() >= 6
    assert not counts["layer"].eq(30).all() and not counts["model"].eq(30).all()
    assert rows["model"].kv_bytes == rows["plain"].kv_bytes


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("across", ["layer", "model"])
def test_methods_with_nothing_to_share_out_say_so(name, across, context, tmp_path):
    with pytest.raises(UserError, match=f"Method '{name}.*share={across}: the method {REFUSED[name]}.*Leave `share`"):
        build(name, context, tmp_path, share=across)


@pytest.mark.parametrize("name", ["adakv", "duo_attention"])
def test_a_shared_budget_with_a_rule_of_its_own_is_not_made_even(name, context, tmp_path):
    with pytest.raises(UserError, match="decides by itself"):
        build(name, context, tmp_path, share="head")


def test_gates_share_as_they_are_told(context, tmp_path):
    save_gates(tmp_path / "gates.pt", context.geometry)
    weights = str(tmp_path / "gates.pt")
    for params, sharing in (
        ({}, Shared("model")),
        ({"layerwise": True}, Shared("layer")),
        ({"share": "layer", "floor": 0.5}, Shared("layer", 0.5)),
        ({"share": "head"}, PER_HEAD),
    ):
        method = make_method(MethodConfig(name="fastkvzip", params={"weights": weights, **params}), context)
        assert method.selection == sharing


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"share": "group"}, "share.*'head', 'layer' or 'model'"),
        ({"share": "model", "floor": 1.5}, "floor.*less than or equal to 1"),
        ({"floor": 0.2}, "give share: model or share: layer with it"),
        ({"share": "head", "floor": 0.2}, "give share: model or share: layer with it"),
    ],
)
def test_mistakes_are_named(params, message, context, tmp_path):
    with pytest.raises(UserError, match=message):
        build("snapkv", context, tmp_path, **params)


def test_a_base_that_shares_is_refused(context, tmp_path):
    base = {"name": "snapkv", "params": {"share": "layer"}}
    with pytest.raises(UserError, match=r"base .* decides more than scores"):
        build("running_mean", context, tmp_path, base=base)
