"""Charts as coordinates: in the picture, in the right order, on round numbers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexmem.live.status import Curve, MethodScores, Scores
from indexmem.serve.charts import HEIGHT, WIDTH, curve_chart, score_chart

finite = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(st.integers(0, 10_000), finite), min_size=2, max_size=30, unique_by=lambda point: point[0]))
def test_every_point_of_a_curve_is_inside_and_higher_values_are_higher(points):
    chart = curve_chart(Curve("loss", tuple(sorted(points))))
    (piece,) = chart.lines[0].pieces
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in piece)
    by_value = sorted(zip((value for _, value in sorted(points)), (y for _, y in piece)))
    assert all(low[1] >= high[1] for low, high in itertools.pairwise(by_value))
    assert 2 <= len(chart.y_ticks) <= 7


def test_a_line_is_broken_where_nothing_is_known():
    scores = Scores(("50%", "75%", "90%"), (MethodScores("knorm", (0.9, None, 0.1), (1, 0, 1)),))
    chart = score_chart(scores)
    assert [len(piece) for piece in chart.lines[0].pieces] == [1, 1]
    assert [tick.text for tick in chart.x_ticks] == ["50%", "75%", "90%"]
    assert (chart.y_ticks[0].text, chart.y_ticks[-1].text) == ("0%", "100%")


@pytest.mark.parametrize("means", [(None, None), (0.0, 0.0), (1.0, 1.0)])
def test_scores_without_a_range(means):
    chart = score_chart(Scores(("50%", "75%"), (MethodScores("knorm", means, (0, 0)),)))
    assert (chart is None) == (means[0] is None)


def test_too_little_for_a_line_is_no_chart():
    assert score_chart(Scores(("50%",), (MethodScores("knorm", (0.5,), (1,)),))) is None
    assert curve_chart(Curve("loss", ((1, 0.5),))) is None
    assert curve_chart(Curve("loss", ((1, float("nan")), (2, 0.5)))) is None
