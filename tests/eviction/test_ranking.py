"""The eviction rule: properties that hold for every score."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from indexmem.eviction.ranking import keep, rank
from indexmem.eviction.selection import tokens_left

FEW_VALUES = st.sampled_from([-1.0, 0.0, 0.5, float("inf"), -float("inf"), 3e-39])  # many ties, extremes, a denormal
scores = st.tuples(st.integers(1, 3), st.integers(1, 40)).flatmap(lambda s: arrays("float32", s, elements=FEW_VALUES))


@given(scores=scores, sinks=st.integers(0, 6), ratio=st.floats(0, 1, exclude_max=True))
def test_kept_sets(scores, sinks, ratio):
    scores = torch.from_numpy(scores)
    heads, length = scores.shape
    count = tokens_left(length, ratio)
    assert 1 <= count <= length
    kept = keep(rank(scores, sinks), count)
    assert kept.shape == (heads, count)
    for head in range(heads):
        row = kept[head].tolist()
        assert row == sorted(set(row)), "ascending, no token twice"
        assert set(range(min(sinks, count, length))) <= set(row), "sinks stay"
        evictable = [t for t in range(length) if t >= sinks and t not in row]
        chosen = [t for t in row if t >= sinks]
        for lost in evictable:
            for won in chosen:
                better = scores[head, won] > scores[head, lost]
                tie = scores[head, won] == scores[head, lost] and won < lost
                assert better or tie, "nothing better was evicted; ties go to the earlier token"


@given(scores=scores, sinks=st.integers(0, 6))
def test_budgets_are_nested(scores, sinks):
    ranking = rank(torch.from_numpy(scores), sinks)
    smaller = set(keep(ranking, 1)[0].tolist())
    for count in range(2, ranking.shape[1] + 1):
        larger = set(keep(ranking, count)[0].tolist())
        assert smaller < larger
        smaller = larger


def test_tokens_left_is_the_kvpress_rule():
    from kvpress.utils import compute_n_kept

    for length in (1, 7, 100, 1053, 4096):
        for ratio in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
            assert tokens_left(length, ratio) == compute_n_kept(length, ratio)


def test_nan_scores_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        rank(torch.tensor([[0.0, float("nan")]]), 0)
