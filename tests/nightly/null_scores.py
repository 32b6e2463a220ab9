"""Made-up scores of nights on which nothing changed: easy, hard and wavering questions, as binary benchmarks have."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from indexmem.nightly.rows import NightCell

METHODS = tuple(f"method-{number}" for number in range(10))
BUDGETS = ("50%", "75%", "90%", "95%")
BENCHMARKS = ("niah_single_1", "niah_multikey_1")


def null_nights(nights: int, samples: int, wavering: float, rng: np.random.Generator) -> np.ndarray:
    """[C, S, nights] of 0 and 1. A share `wavering` of samples is answered differently from night to night.

    The budgets of a method go wrong together on hard samples: they answer the same questions.
    """
    cells = len(METHODS) * len(BENCHMARKS)
    ease_CS = rng.beta(0.5, 0.5, size=(cells, samples))
    wavers_CS = rng.random((cells, samples)) < wavering
    chance_CS = np.where(wavers_CS, ease_CS, np.rint(ease_CS))
    draws = rng.random((cells, 1, samples, nights)) * 0.5 + rng.random((cells, len(BUDGETS), samples, nights)) * 0.5
    return (draws < chance_CS[:, None, :, None]).astype(float).reshape(-1, samples, nights)


def wandering_nights(nights: int, samples: int, methods: int, spread: float, rng: np.random.Generator) -> np.ndarray:
    """[C, S, nights] of 0 and 1: each night moves all samples of a method together, by `spread` in mean score.

    As modules do that are trained anew; the other methods answer alike every night.
    """
    each = len(BENCHMARKS) * len(BUDGETS)
    latent = rng.normal(0.8, 1.0, size=(len(METHODS), each, samples, 1))
    per_point = NormalDist(0.8, 1.0).pdf(0.0)  # how many samples stand where a small move turns them
    moves = np.zeros((len(METHODS), 1, 1, nights))
    moves[:methods] = rng.normal(0.0, spread / per_point, size=(methods, 1, 1, nights))
    return (latent + moves > 0).astype(float).reshape(-1, samples, nights)


def cell_names() -> list[NightCell]:
    """Names for the cells of `null_nights`, in its order."""
    return [NightCell(m, budget, name, f"model-{name}") for m in METHODS for name in BENCHMARKS for budget in BUDGETS]


def as_scores(night_CS: np.ndarray) -> dict[NightCell, dict[str, float]]:
    return {
        cell: {f"{cell.benchmark}/{index}": float(score) for index, score in enumerate(scores)}
        for cell, scores in zip(cell_names(), night_CS)
    }
