"""The Pareto front against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from indexmem.results.pareto import pareto_front


def dominates(a, b):
    return all(x <= y for x, y in zip(a, b)) and any(x < y for x, y in zip(a, b))


@given(st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(*[st.integers(0, 5)] * n), max_size=25)))
def test_it_holds_what_nothing_dominates(points):
    front = pareto_front(points)
    assert set(front) == {i for i, p in enumerate(points) if not any(dominates(q, p) for q in points)}
    assert [points[i][0] for i in front] == sorted(points[i][0] for i in front)
    assert len(set(front)) == len(front)


def test_of_one_objective_it_is_the_best():
    assert pareto_front([[3.0], [1.0], [2.0], [1.0]]) == [1, 3]
    assert pareto_front([]) == []
