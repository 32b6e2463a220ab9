"""largest_fit: the exactness that sample lengths rest on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from indexmem.benchmarks.ruler.fit import largest_fit

unit_tokens = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def growing(increments: list[int], base: int):
    """A cost function with the given cost for each added unit, cyclic, that counts its calls."""
    calls = []

    def cost(units: int) -> int:
        calls.append(units)
        cycles, rest = divmod(units, len(increments))
        return base + cycles * sum(increments) + sum(increments[:rest])

    return cost, calls


@given(estimates=unit_tokens, truth=unit_tokens, base=st.integers(0, 300), budget=st.integers(-50, 4000))
def test_one_more_unit_exceeds_however_wrong_the_estimates(estimates, truth, base, budget):
    cost, _ = growing(truth, base)
    units = largest_fit(estimates, cost, budget)
    assert cost(units + 1) > budget
    assert units == 0 or cost(units) <= budget


@given(tokens=unit_tokens, base=st.integers(0, 300), room=st.integers(0, 4000))
def test_additive_tokens_need_three_tokenisations(tokens, base, room):
    cost, calls = growing(tokens, base)
    largest_fit(tokens, cost, base + room)
    assert len(calls) <= 3


@given(tokens=unit_tokens, seam=st.integers(0, 20), base=st.integers(0, 300), room=st.integers(500, 100_000))
def test_a_cost_per_seam_is_learned_quickly(tokens, seam, base, room):
    cost, calls = growing([token + seam for token in tokens], base)
    largest_fit(tokens, cost, base + room)
    assert len(calls) <= 16


def test_a_text_that_shrinks_at_a_seam_is_still_bracketed():
    costs = [10, 30, 29, 55, 54, 80]
    units = largest_fit([20], lambda n: costs[min(n, 5)] + max(n - 5, 0) * 20, budget=54)
    assert costs[units] <= 54 < costs[units + 1]


def test_no_budget_means_no_units():
    assert largest_fit([5], lambda n: 40 + 5 * n, budget=0) == 0
    assert largest_fit([5], lambda n: 40 + 5 * n, budget=44) == 0
    assert largest_fit([5], lambda n: 40 + 5 * n, budget=45) == 1


@given(tokens=unit_tokens, base=st.integers(0, 300), budget=st.integers(0, 4000), most=st.integers(0, 50))
def test_no_more_units_than_there_are(tokens, base, budget, most):
    cost, calls = growing(tokens, base)
    fitting = largest_fit(tokens, cost, budget, most)
    assert max(calls) <= most
    assert fitting == min(most, largest_fit(tokens, cost, budget))
