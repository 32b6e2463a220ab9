"""Cutting a grid into units: every missing row once, small units near the end, tiny messages."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexmem.cluster.connection import workers_on
from indexmem.evaluate.crew import Member, shares
from indexmem.evaluate.work import PIECES, SMALLEST_PIECE, Backlog, Unit


def masks(seed: int, samples: int, cells: dict[str, int], share: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.random((samples, count)) < share for name, count in cells.items()}


def rows_of(unit: Unit, cells: int) -> set[tuple[str, int, int]]:
    missing_SC = unit.missing_SC(cells)
    return {(unit.benchmark, unit.samples[i], int(c)) for i, c in np.argwhere(missing_SC)}


@given(
    seed=st.integers(0, 2**16),
    samples=st.integers(1, 9),
    cells=st.dictionaries(st.sampled_from("abc"), st.integers(1, 300), min_size=1),
    share=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    limit=st.integers(1, 4),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_units_cover_every_missing_row_once_whatever_their_size_and_however_often_they_come_back(
    seed, samples, cells, share, limit, data
):
    missing = masks(seed, samples, cells, share)
    backlog = Backlog(missing)
    expected = {(name, int(s), int(c)) for name, m in missing.items() for s, c in np.argwhere(m)}
    assert backlog.rows == len(expected)
    done: set[tuple[str, int, int]] = set()
    while backlog.rows:
        before = backlog.rows
        unit = backlog.take(limit, data.draw(st.integers(1, 500)))
        assert 1 <= len(unit.samples) <= limit  # each has a context of its own
        assert backlog.rows == before - unit.rows
        rows = rows_of(unit, cells[unit.benchmark])
        assert len(rows) == unit.rows > 0
        if data.draw(st.booleans()) and backlog.retry(unit, 2):
            assert backlog.rows == before
            continue
        assert not rows & done
        done |= rows
    assert done == expected
    assert backlog.samples == 0


def test_samples_come_in_order_over_all_benchmarks():
    backlog = Backlog({"a": np.ones((3, 2), bool), "b": np.ones((2, 5), bool)})
    units = [backlog.take(1, 1) for _ in range(5)]
    assert [(u.benchmark, u.samples) for u in units] == [
        ("a", (0,)),
        ("b", (0,)),
        ("a", (1,)),
        ("b", (1,)),
        ("a", (2,)),
    ]


def test_a_unit_is_as_large_as_asked_for_and_a_sample_is_cut_only_where_prefilling_again_is_cheap():
    many, few = 4000, SMALLEST_PIECE
    backlog = Backlog({"many": np.ones((6, many), bool), "few": np.ones((6, few), bool)})
    assert backlog.take(4, 3 * many).samples == (0, 1, 2)
    assert backlog.take(4, 10 * many).samples == (0, 1, 2, 3)  # of the few
    piece = backlog.take(4, 1)
    assert (piece.benchmark, piece.samples, piece.rows) == ("many", (3,), many // PIECES)
    rest = backlog.take(1, many)
    assert (rest.samples, rest.rows) == ((3,), many - many // PIECES)
    assert backlog.samples == 2 + 2
    backlog.take(2, 2 * many)
    assert [backlog.take(4, 1).rows for _ in range(2)] == [few, few], "too few to be cut"


@given(
    seed=st.integers(0, 2**16),
    questions=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    cells=st.integers(1, 200),
    share=st.sampled_from([0.3, 1.0]),
    limit=st.integers(1, 3),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_questions_about_one_context_stay_together(seed, questions, cells, share, limit, data):
    context_S = [context for context, count in enumerate(questions) for _ in range(count)]
    missing = masks(seed, len(context_S), {"a": cells}, share)
    backlog = Backlog(missing, {"a": context_S})
    taken: dict[int, int] = {}
    done: set[tuple[str, int, int]] = set()
    while backlog.rows:
        unit = backlog.take(limit, data.draw(st.integers(1, 3000)))
        rows = rows_of(unit, cells)
        assert len(rows) == unit.rows > 0
        assert not rows & done
        done |= rows
        contexts = {context_S[sample] for sample in unit.samples}
        assert len(contexts) <= limit
        for context in contexts:
            taken[context] = taken.get(context, 0) + 1
    assert done == {("a", int(s), int(c)) for s, c in np.argwhere(missing["a"])}
    assert max(taken.values(), default=0) <= PIECES, "a context is prefilled once, or once for each piece of its cells"
    if cells * max(questions) < SMALLEST_PIECE:
        assert max(taken.values(), default=0) <= 1


def test_a_unit_is_tried_whole_then_sample_by_sample_then_given_up():
    backlog = Backlog({"a": np.ones((3, 2), bool)})
    unit = backlog.take(3, 100)
    for attempt in (1, 2):
        assert backlog.retry(unit, 3)
        unit = backlog.take(3, 100)
        assert (unit.samples, unit.attempts) == ((0, 1, 2), attempt)
    assert backlog.retry(unit, 3)
    singles = [backlog.take(3, 100) for _ in range(3)]
    for sample, single in enumerate(singles):
        assert (single.samples, single.attempts, single.rows) == ((sample,), 0, 2)
        assert rows_of(single, 2) == {("a", sample, 0), ("a", sample, 1)}
        for _ in range(2):
            assert backlog.retry(single, 3)
            single = backlog.take(3, 100)
        assert not backlog.retry(single, 3)
    assert backlog.rows == 0


def test_a_unit_of_ten_thousand_cells_is_a_small_message():
    unit = Backlog({"a": np.ones((8, 10_000), bool)}).take(8, 80_000)
    assert unit.rows == 80_000
    assert len(pickle.dumps(unit)) < 11_000


def test_fast_members_get_the_larger_share():
    members = [Member(None, None, rate=rate) for rate in (30.0, 10.0, None)]
    assert shares(members) == pytest.approx([0.5, 1 / 6, 1 / 3])
    assert shares([Member(None, None)] * 4) == [0.25] * 4


@pytest.mark.parametrize(
    ("resources", "cpus", "gpus", "expected"),
    [
        ({"CPU": 8.0}, 3, 0.0, 2),
        ({"memory": 1.0}, 1, 0.0, 0),
        ({"CPU": 8.0}, 1, 1.0, 0),
        ({"CPU": 8.0, "GPU": 4.0}, 1, 2.0, 2),
        ({"CPU": 8.0, "GPU": 2.0}, 1, 0.4, 4),  # two on each GPU: a fifth would lie across both
        ({"CPU": 3.0, "GPU": 2.0}, 1, 0.5, 3),
    ],
)
def test_workers_on_one_node(resources, cpus, gpus, expected):
    assert workers_on(resources, cpus, gpus) == expected
