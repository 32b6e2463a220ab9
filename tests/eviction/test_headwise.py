"""Shared budgets against exhaustive loops: which pairs of head and token are kept, with ties and infinities."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from indexmem.eviction.kept import ragged, ragged_layers
from indexmem.eviction.ranking import best_of_all, two_stages

scores = st.tuples(st.integers(1, 4), st.integers(1, 12)).flatmap(
    lambda shape: arrays("float32", shape, elements=st.sampled_from([-1.5, 0.0, 0.25, 3.0, float("inf")]))
)


def best_first(scores_L):
    return sorted(range(len(scores_L)), key=lambda position: (-scores_L[position], position))


@given(scores=scores, data=st.data())
def test_best_of_all_takes_each_head_s_floor_and_then_the_best_pairs(scores, data):
    heads, tokens = scores.shape
    floor = data.draw(st.integers(1, tokens))
    total = data.draw(st.integers(heads * floor, heads * tokens))
    raised = scores.copy()
    for head in range(heads):
        raised[head, best_first(scores[head])[:floor]] = float("inf")
    pairs = sorted(
        ((head, position) for head in range(heads) for position in range(tokens)),
        key=lambda pair: (-raised[pair], pair[1], pair[0]),
    )
    expected = torch.zeros(heads, tokens, dtype=torch.bool)
    for head, position in pairs[:total]:
        expected[head, position] = True
    kept_XL = best_of_all(torch.from_numpy(scores), total, floor)
    assert torch.equal(kept_XL, expected)
    assert int(kept_XL.sum()) == total


@given(scores=scores, data=st.data())
def test_no_head_goes_empty_when_protected_tokens_exceed_the_budget(scores, data):
    sinks = data.draw(st.integers(1, scores.shape[1]))
    even = data.draw(st.integers(1, sinks))
    scores = scores.clip(max=3.0)
    scores[:, :sinks] = float("inf")
    kept_XL = best_of_all(torch.from_numpy(scores), even * len(scores), floor=1)
    assert kept_XL.sum(1).tolist() == [even] * len(scores)
    assert kept_XL[:, :even].all()


@given(first=scores, data=st.data())
def test_two_stages_take_the_sure_ones_and_then_the_second_ranking(first, data):
    second = data.draw(arrays("float32", first.shape, elements=st.sampled_from([0.0, 1.0, 2.0])))
    heads, tokens = first.shape
    counts = data.draw(st.lists(st.integers(1, tokens), min_size=heads, max_size=heads))
    sure = [data.draw(st.integers(0, count)) for count in counts]
    kept_HL = two_stages(torch.from_numpy(first), torch.from_numpy(second), torch.tensor(sure), torch.tensor(counts))
    for head in range(heads):
        taken = best_first(first[head])[: sure[head]]
        rest = [position for position in best_first(second[head]) if position not in taken]
        expected = sorted(taken + rest[: counts[head] - sure[head]])
        assert kept_HL[head].nonzero().squeeze(1).tolist() == expected


@given(data=st.data(), heads=st.integers(1, 4), tokens=st.integers(1, 9))
def test_ragged_positions_ascend_and_repeat_the_last_one(data, heads, tokens):
    rows = st.lists(st.booleans(), min_size=tokens, max_size=tokens).filter(any)
    marks = [data.draw(rows) for _ in range(heads)]
    positions_HK, counts_H = ragged(torch.tensor(marks))
    assert counts_H.tolist() == [sum(row) for row in marks]
    assert positions_HK.shape[1] == max(counts_H.tolist())
    for row, kept_K, count in zip(marks, positions_HK.tolist(), counts_H.tolist()):
        expected = [position for position, kept in enumerate(row) if kept]
        assert kept_K == expected + [expected[-1]] * (len(kept_K) - count)


def test_a_head_without_tokens_is_refused():
    with pytest.raises(AssertionError, match="no last position"):
        ragged(torch.tensor([[True], [False]]))


@given(shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9)), data=st.data())
def test_layers_at_once_are_as_one_by_one(shape, data):
    elements = st.sampled_from([-1.5, 0.0, 0.25, 3.0])
    scores_NHL = torch.from_numpy(data.draw(arrays("float32", shape, elements=elements)))
    _, heads, tokens = shape
    total = data.draw(st.integers(heads, heads * tokens))
    kept_NHL = best_of_all(scores_NHL, total, floor=1)
    for marks_HL, layer_HL, kept in zip(kept_NHL, scores_NHL, ragged_layers(kept_NHL), strict=True):
        assert torch.equal(marks_HL, best_of_all(layer_HL, total, floor=1))
        alone = ragged(marks_HL)
        assert torch.equal(kept.positions_HK, alone.positions_HK)
        assert torch.equal(kept.counts_H, alone.counts_H)
