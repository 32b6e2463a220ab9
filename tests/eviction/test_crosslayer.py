"""Cross-layer aggregation against loops in fp64, its properties, and the method on a tiny model."""

import math
import warnings

import pytest
import torch
from dense_reference import slow_entropy, slow_gated_mean, slow_probabilities
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tiny_models import random_ids, tiny_backbone

from indexmem.config.modules import IndexerConfig
from indexmem.config.schema import MethodConfig
from indexmem.config.spec import content_hash
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import save_modules, weights_hash
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.methods.running_mean import (
    GATES,
    RunningMean,
    RunningMeanConfig,
    gated_mean,
    layer_scores,
    negonly_probabilities,
    normalised_entropy,
    peak,
    softmax_probabilities,
)
from indexmem.eviction.methods.simple import Random
from indexmem.eviction.ranking import rank

ENTROPY_GATES = ("entropy_skip_high", "entropy_skip_low")
PROBABILITIES = {"softmax": softmax_probabilities, "negonly": lambda scores, temperature: negonly_probabilities(scores)}

values = st.sampled_from([-2.0, 0.0, 0.25, 3.0]) | st.floats(-50, 50, width=32)  # ties, negatives, anything
score_matrix = st.tuples(st.integers(1, 5), st.integers(2, 24)).flatmap(lambda s: arrays("float64", s, elements=values))
probability = st.sampled_from(sorted(PROBABILITIES))
temperature = st.sampled_from([0.05, 1.0, 7.0])
same = lambda got, expected: torch.testing.assert_close(got, expected, atol=1e-9, rtol=1e-9)  # noqa: E731


def running_mean(**params) -> RunningMean:
    return RunningMean(Random(), RunningMeanConfig.of({"base": "random", **params}))


def layers_of(*rows: list[float]) -> list[torch.Tensor]:
    """Two heads with the same scores, per layer."""
    return [torch.tensor([row, row]) for row in rows]


@given(scores=score_matrix, probability=probability, temperature=temperature)
def test_distribution_and_statistics_equal_the_loops(scores, probability, temperature):
    scores = torch.from_numpy(scores)
    p = PROBABILITIES[probability](scores, temperature)
    slow = [slow_probabilities(layer, probability, temperature) for layer in scores]
    same(p, torch.tensor(slow, dtype=torch.float64))
    same(normalised_entropy(p), torch.tensor([slow_entropy(layer) for layer in slow], dtype=torch.float64))
    same(peak(p), torch.tensor([max(layer) for layer in slow], dtype=torch.float64))
    for statistic in (normalised_entropy(p), peak(p)):
        assert ((statistic >= 0) & (statistic <= 1 + 1e-12)).all()


@given(scores=score_matrix, data=st.data(), delta=st.sampled_from([1e-8, 0.5]))
def test_gated_mean_equals_the_loop_in_any_order_of_layers(scores, data, delta):
    scores = torch.from_numpy(scores)
    passed = data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    mean = gated_mean(scores, torch.tensor(passed), delta)
    same(mean, torch.tensor(slow_gated_mean(scores, passed, delta), dtype=torch.float64))
    order = data.draw(st.permutations(range(len(scores))))
    same(gated_mean(scores[order], torch.tensor(passed)[order], delta), mean)


@given(scores=score_matrix, factor=st.floats(0.01, 100), shift=st.floats(-20, 20), temperature=temperature)
def test_scaling_and_shifting(scores, factor, shift, temperature):
    scores = torch.from_numpy(scores)
    # Softmax knows no offset, and a temperature in units of the scores scales with them.
    p = softmax_probabilities(scores, temperature)
    same(softmax_probabilities((scores + shift) * factor, temperature * factor), p)
    # L1 knows no scale, as long as the sum stays far above epsilon.
    spread = scores - scores.amin(-1, keepdim=True).clamp(max=0)
    assume((spread.sum(-1) > 1e-2).all())
    torch.testing.assert_close(negonly_probabilities(scores * factor), negonly_probabilities(scores), atol=1e-7, rtol=0)


def test_the_shift_is_only_for_negative_layers():
    scores = torch.tensor([[1.0, 2.0, 5.0], [-1.0, 2.0, 5.0]], dtype=torch.float64)
    expected = torch.tensor([[1 / 8, 2 / 8, 5 / 8], [0, 3 / 9, 6 / 9]], dtype=torch.float64)
    same(negonly_probabilities(scores), expected)


def test_extremes_of_the_statistics():
    flat, one = torch.full((1, 50), 0.02, dtype=torch.float64), torch.eye(50, dtype=torch.float64)[:1]
    assert normalised_entropy(flat).item() == pytest.approx(1.0)
    assert normalised_entropy(one).item() == pytest.approx(0.0)
    assert (peak(flat).item(), peak(one).item()) == (pytest.approx(0.02), 1.0)
    single = softmax_probabilities(torch.zeros(1, 1, dtype=torch.float64), 1.0)
    assert normalised_entropy(single).item() == pytest.approx(0.0, abs=1e-9)
    assert normalised_entropy(torch.zeros(1, 1)).item() == 0.0
    for extreme in (1e-300, 1e300):
        p = softmax_probabilities(torch.tensor([[1e30, -1e30, 1e30]], dtype=torch.float64), extreme)
        assert p.isfinite().all()
        assert p.sum().item() == pytest.approx(1.0)


def test_gates_come_in_opposite_pairs():
    statistic = torch.tensor([0.1, 0.5, 0.9])
    passes = {name: gate.passes(statistic, 0.5).tolist() for name, gate in GATES.items()}
    assert passes == {
        "entropy_skip_high": [True, True, False],
        "entropy_skip_low": [False, True, True],
        "peak": [True, True, False],
        "peak_keep_high": [False, True, True],
    }


@given(scores=arrays("float32", (3, 2, 12), elements=values), heads=st.sampled_from(["mean", "max"]))
def test_no_gate_is_the_plain_mean_and_an_open_gate_too(scores, heads):
    scores = list(torch.from_numpy(scores))
    plain = torch.stack([s.double().mean(0) if heads == "mean" else s.double().max(0).values for s in scores]).mean(0)
    for row in running_mean(heads=heads).combine(scores):
        same(row, plain.expand(2, -1))
    opened = running_mean(heads=heads, gate="entropy_skip_high", gamma=1.0, delta=1e-9).combine(scores)
    torch.testing.assert_close(opened[0][0], plain, atol=1e-7, rtol=1e-7)


@given(
    scores=arrays("float32", (4, 2, 12), elements=values),
    gate=st.sampled_from(sorted(GATES)),
    probability=probability,
    heads=st.sampled_from(["mean", "max"]),
    sinks=st.integers(0, 4),
    gamma=st.floats(0, 1),
)
def test_combine_equals_the_loops(scores, gate, probability, heads, sinks, gamma):
    scores = list(torch.from_numpy(scores))
    layers = torch.stack([layer_scores(layer, heads) for layer in scores])
    statistics = []
    for layer in layers:
        p = slow_probabilities(layer[sinks:], probability, 1.0)
        statistics.append(slow_entropy(p) if gate in ENTROPY_GATES else max(p))
    assume(all(abs(s - gamma) > 1e-9 for s in statistics))
    low_passes = gate in ("entropy_skip_high", "peak")
    passed = [(s < gamma) == low_passes for s in statistics]
    method = running_mean(gate=gate, probability=probability, heads=heads, sinks=sinks, gamma=gamma, delta=0.25)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        combined = method.combine(scores)
    assert bool(caught) == (not any(passed))
    expected = torch.tensor(slow_gated_mean(layers, passed, 0.25), dtype=torch.float64)
    for row in combined:
        same(row, expected.expand(2, -1))


def test_selective_layers_decide_and_flat_ones_are_left_out():
    flat, selective = [0, 0, 0, 0, 1.0, 1.1, 1.2, 1.3], [0, 0, 0, 0, 9.0, 0.1, 0.0, 0.2]
    best = lambda **params: running_mean(**params).combine(layers_of(flat, flat, flat, selective))[0][0].argmax().item()  # noqa: E731
    assert best(gate="entropy_skip_high", gamma=0.5) == 4
    assert best(gate="entropy_skip_low", gamma=0.5) == 7
    assert best(gate="peak_keep_high", gamma=0.5) == 4
    assert best(gate="peak", gamma=0.5) == 7


def test_the_gate_does_not_look_at_the_sinks():
    """Two layers that differ only in how strongly they protect the first tokens look alike, unless sinks=0."""
    tokens = [1.0, 2.0, 3.0, 4.0]
    layers = layers_of([0.0] * 4 + tokens, [90.0] + [0.0] * 3 + tokens)
    kept = running_mean(gate="entropy_skip_high", gamma=0.95).combine(layers)[0][0]
    assert kept[0].item() == pytest.approx(45.0)
    printed = running_mean(gate="entropy_skip_high", gamma=0.4, sinks=0).combine(layers)[0][0]
    assert printed[0].item() == pytest.approx(90.0)


def test_all_layers_left_out_is_said():
    layers = layers_of([0.0] * 4 + [1.0, 1.0, 1.0], [0.0] * 4 + [2.0, 2.0, 2.0])
    method = running_mean(gate="entropy_skip_high", gamma=0.25)
    message = (
        r"running_mean of 'random': gate entropy_skip_high with gamma=0.25 left out every layer "
        r"\(normalised_entropy from 1.00 to 1.00\); tokens are kept by position alone"
    )
    with pytest.warns(RuntimeWarning, match=message):
        combined = method.combine(layers)
    assert all((row == 0).all() for row in combined)
    assert rank(combined[0], sinks=0)[0].tolist() == list(range(7))


def test_scores_without_a_mean_are_refused():
    layers = layers_of([1.0] * 6, [1.0] * 5 + [math.inf])
    with pytest.raises(ValueError, match=r"scores of base 'random' are not finite in layers \[1\]"):
        running_mean().combine(layers)
    with pytest.raises(ValueError, match="a context of 4 tokens has none after the 4 sinks"):
        running_mean(gate="peak", gamma=0.5).combine(layers_of([1.0] * 4))


@pytest.mark.parametrize("base", ["expected_attention", "knorm", {"name": "snapkv", "params": {"window_size": 16}}])
@pytest.mark.parametrize("gate", ["none", "peak"])
def test_through_the_engine_equals_by_hand(base, gate):
    backbone, ids, scores = tiny_backbone(), random_ids(90), []
    context = MethodContext(backbone.geometry)
    spy = make_method(MethodConfig.model_validate(base), context)
    spy.last_queries, spied = None, spy.score  # layer by layer
    spy.score = lambda tap: scores.append(spied(tap)) or scores[-1]
    alone = prefill(backbone, ids, {"base": spy}, sinks=4).rankings_HL["base"]
    by_head = torch.stack([layer[0].double() for layer in scores])

    if gate == "none":
        params, layers, passed, delta = {}, by_head.mean(1), [True] * len(by_head), 0.0
    else:
        layers, delta = by_head.amax(1), 0.25
        peaks = [max(slow_probabilities(layer[4:], "negonly", 1.0)) for layer in layers]
        gamma = (min(peaks) + max(peaks)) / 2
        passed = [p <= gamma for p in peaks]
        assert any(passed)
        assert not all(passed)
        params = {"gate": gate, "gamma": gamma, "probability": "negonly", "heads": "max", "delta": delta}
    method = make_method(MethodConfig(name="running_mean", params={"base": base} | params), context)
    done = prefill(backbone, ids, {"mean": method}, sinks=4)
    assert not done.errors
    expected = rank(torch.tensor(slow_gated_mean(layers, passed, delta))[None], sinks=4)[0]
    for ranking in done.rankings_HL["mean"]:
        assert ranking.shape == (backbone.geometry.kv_heads, len(ids))
        assert (ranking == expected).all()
    assert any(not torch.equal(a, b) for a, b in zip(alone, done.rankings_HL["mean"]))

    kept = method.compress(done.context, done.rankings_HL["mean"], done.context.tokens * (1 - 0.5)).kept_HK
    assert all(torch.equal(layer, kept[0]) for layer in kept), "every layer keeps the same tokens"
    assert kept[0].shape[1] == 45


def test_a_learned_base_keeps_its_identity_and_its_bytes(tmp_path):
    geometry = tiny_backbone().geometry
    stack = IndexerStack(IndexerShape.of(IndexerConfig(), geometry), geometry)
    folder = str(save_modules({"indexer": stack}, tmp_path / "c"))
    context = MethodContext(geometry, checkpoint=folder)
    base = make_method(MethodConfig(name="indexer"), context)
    mean = make_method(MethodConfig(name="running_mean", params={"base": "indexer"}), context)
    assert mean.checkpoint == weights_hash(folder, "indexer")
    assert mean.indexer_bytes([[10, 10]] * 3, 4) == base.indexer_bytes([[10, 10]] * 3, 4) > 0


def test_shortest_context_label_and_hash():
    context = MethodContext(tiny_backbone().geometry)
    build = lambda **params: make_method(MethodConfig(name="running_mean", params=params), context)  # noqa: E731
    assert build(base="snapkv").min_context == 65
    assert build(base="knorm").min_context == 1
    assert build(base="knorm", gate="peak", gamma=0.5, sinks=9).min_context == 10
    assert build().config.base.name == "expected_attention"
    configs = [
        MethodConfig(name="running_mean", params={"base": base, "gate": "peak", "gamma": gamma})
        for base in ("knorm", {"name": "snapkv", "params": {"window_size": 16}})
        for gamma in (0.5, 0.75)
    ]
    assert configs[0].label == "running_mean(base=knorm,gamma=0.5,gate=peak)"
    assert len({config.label for config in configs}) == 4
    assert len({content_hash([config.name, config.params]) for config in configs}) == 4


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"bases": "knorm"}, "unknown parameter 'bases'. Allowed: base, heads, gate, gamma, probability, temperature"),
        ({"base": "knrom"}, "Unknown method 'knrom'. Did you mean 'knorm'"),
        ({"base": 3}, "parameter 'base': .*got 3"),
        ({"base": {"name": "snapkv", "parms": {}}}, r"parameter 'base\.parms': "),
        ({"base": {"name": "snapkv", "params": {"windowsize": 3}}}, "'windowsize'. Allowed: window_size"),
        ({"base": "indexer"}, "needs a trained checkpoint"),
        ({"base": "running_mean"}, "base 'running_mean' has no scores for each layer"),
        ({"base": "full"}, "base 'full' has no scores for each layer"),
        ({"base": "pyramidkv"}, "base 'pyramidkv' decides more than scores"),
        ({"base": "xkv"}, "base 'xkv' decides more than scores"),
        ({"gate": "entropy"}, "parameter 'gate': .*'entropy_skip_high'.*got 'entropy'"),
        ({"gate": "peak"}, "gate 'peak' needs a threshold gamma"),
        ({"gate": "peak", "gamma": 1.5}, "parameter 'gamma': .*less than or equal to 1, got 1.5"),
        ({"gate": "peak", "gamma": 0.5, "temperature": 0}, "parameter 'temperature': .*greater than 0, got 0"),
        (
            {"gate": "peak", "gamma": 0.5, "probability": "negonly", "temperature": 1},
            "belongs to probability 'softmax'",
        ),
        ({"gamma": 0.5, "delta": 1}, "delta, gamma has no effect without a gate; set gate to one of entropy_skip_high"),
        ({"heads": "median"}, "parameter 'heads': .*got 'median'"),
    ],
)
def test_mistakes_in_the_parameters_are_named(params, message):
    config = MethodConfig(name="running_mean", params=params)
    with pytest.raises(UserError, match=message) as raised:
        make_method(config, MethodContext(tiny_backbone().geometry))
    assert str(raised.value).startswith("Method 'running_mean")
