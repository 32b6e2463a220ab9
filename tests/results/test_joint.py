"""The joint test: one error rate for a whole column, whoever was picked as its best."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from indexmem.results.comparison import max_t, paired_difference
from indexmem.results.units import Design


def share_marked(methods: int, *, picked: bool, trials: int = 300, reference: int | None = None) -> float:
    """How often some method is told from the reference, by default the best, where all are equal on 40 samples."""
    rng, marked = np.random.default_rng(methods), 0
    for trial in range(trials):
        ease = rng.random((40, 1))  # what makes a sample hard is common to all methods
        scores = (rng.random((40, methods)) < ease).astype(float)
        best = int(scores.mean(axis=0).argmax()) if reference is None else reference
        marked += bool((max_t(scores / 40, best, picked=picked, seed=trial, resamples=300) < 0.05).any())
    return marked / trials


@pytest.mark.parametrize("methods", [3, 11, 25])
def test_equal_methods_are_told_apart_no_more_often_than_the_level(methods: int) -> None:
    assert share_marked(methods, picked=True) <= 0.05 + 2 * (0.05 * 0.95 / 300) ** 0.5


def test_a_best_that_was_picked_must_not_be_tested_as_if_it_had_been_named() -> None:
    """The test above can fail: without the correction every tenth column has a loser."""
    assert share_marked(11, picked=False) > 0.08
    assert share_marked(11, picked=False, reference=0) <= 0.075


def test_bad_methods_do_not_shield_a_loser() -> None:
    """Step-down: a difference is judged among those that are not larger."""
    rng = np.random.default_rng(0)
    close = np.concatenate([np.ones((11, 1)), np.zeros((11, 1)), rng.random((80, 1)).repeat(2, 1)[:, :1]])
    good = close.copy()
    close[:9] = 0.0
    scores = np.hstack([good, close])
    alone = max_t(scores / 102, 0, picked=True)[1]
    crowd = np.hstack([scores, np.zeros((102, 30)) + 0.001 * rng.random((102, 30))])
    assert alone == pytest.approx(2 / 2**9, abs=0.003)
    assert max_t(crowd / 102, 0, picked=True)[1] < 0.05


def test_two_methods_get_the_p_value_of_a_sign_flip_test() -> None:
    a, b = np.random.default_rng(3).random((2, 12))
    exact = np.mean([abs(np.dot(signs, a - b)) >= abs((a - b).sum()) - 1e-9 for signs in product((1, -1), repeat=12)])
    joint = max_t(np.stack([a, b], axis=1) / 12, 0, picked=True, resamples=20_000)[1]
    assert joint == pytest.approx(exact, abs=0.01)
    assert paired_difference(a, b, resamples=20_000).p_value == pytest.approx(exact, abs=0.01)


def test_equal_columns_are_no_difference() -> None:
    scores = np.random.default_rng(4).random((20, 1)).repeat(3, axis=1)
    assert max_t(scores, 0, picked=True).tolist() == [1.0, 1.0, 1.0]
    assert max_t(scores[:, :1], 0, picked=True).tolist() == [1.0]


def test_whoever_is_closer_is_no_surer() -> None:
    scores = np.random.default_rng(5).random((30, 6)) + np.linspace(0.3, 0, 6)
    p = max_t(scores / 30, 0, picked=True)
    differences = scores[:, :1] - scores
    t = np.abs(differences.sum(axis=0)) / np.maximum(np.sqrt((differences**2).sum(axis=0)), 1e-12)
    order = np.argsort(-t[1:]) + 1
    assert (np.diff(p[order]) >= 0).all()


def test_signs_are_flipped_for_whole_clusters() -> None:
    """Four texts that one method wins wholly: p = 2/2^4, however many questions they have."""
    scores = np.stack([np.ones(40), np.zeros(40)], axis=1)
    clustered = Design.of(40, clusters=np.repeat(range(4), 10)).contributions(scores)
    assert max_t(clustered, 0, picked=True)[1] == pytest.approx(2 / 2**4, rel=0.2)
    assert max_t(Design.of(40).contributions(scores), 0, picked=True)[1] < 0.001
