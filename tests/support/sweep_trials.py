"""Made-up trials of a sweep in which one axis decides. Deterministic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from indexmem.config.sweep import Objective
from indexmem.results.sweeps import COMPLETE, FAILED, STOPPED, Spread, Sweep, Trial

OBJECTIVES = tuple(Objective.model_validate(name) for name in ("score", "bytes", "ms"))
DIMS, SHARED, REQUESTS = [4, 8, 16, 32], [1, 2, 5], ["", " Repeat the previous context exactly."]
AXES = {
    "indexer.dim": DIMS,
    "indexer.share_every": SHARED,
    "distill.schedule.peak_lr": {"low": 3e-4, "high": 3e-2, "log": True},
    "target.request": REQUESTS,
}
SAMPLES = 40


def made_sweep(objectives: int = 1, *, count: int = 18, seed: int = 1, effect: float = 0.15) -> Sweep:
    """Complete trials, some that were ended early, and a failed one. Each step of `indexer.dim` adds `effect`."""
    rng = np.random.default_rng(seed)
    ease = rng.random(SAMPLES)
    trials = tuple(_trial(rng, number, ease, effect) for number in range(count))
    sweep = Sweep("id", "tune-indexer", "a-model", AXES, OBJECTIVES[:objectives], count + 2, trials, evaluates=True)
    winners = {trial.id for trial in sweep.winners}
    return replace(sweep, trials=tuple(_reported(trial) if trial.id in winners else trial for trial in trials))


def _trial(rng: np.random.Generator, number: int, ease: np.ndarray, effect: float) -> Trial:
    step, share = int(rng.integers(4)), int(rng.choice(SHARED))
    params = {
        "indexer.dim": DIMS[step],
        "indexer.share_every": share,
        "distill.schedule.peak_lr": float(10 ** rng.uniform(-3.5, -1.5)),
        "target.request": REQUESTS[int(rng.integers(2))],
    }
    right = (rng.random(SAMPLES) < np.clip(0.3 + effect * step + 0.4 * (ease - 0.5), 0, 1)).astype(float)
    curve = tuple({"step": s, "loss": float(1.2 * np.exp(-s / 25) - effect * step + 1)} for s in range(10, 90, 10))
    if number % 5 == 4:
        return Trial(f"t{number}", number, STOPPED, params, {"loss": curve[2]["loss"]}, curve[:3], seconds=9.0)
    if number == 7:
        return Trial(f"t{number}", number, FAILED, params, error="RuntimeError: </script><b>no memory</b>", seconds=2.0)
    mean = float(right.mean())
    metrics = {"loss": curve[-1]["loss"], "score": mean, "bytes": 2.0**20 * (1 + step / share), "ms": 90.0 + step}
    half = 1.96 * (mean * (1 - mean) / SAMPLES) ** 0.5
    spread = Spread(max(0.0, mean - half), min(1.0, mean + half), tuple(right / SAMPLES))
    return Trial(f"t{number}", number, COMPLETE, params, metrics, curve, seconds=31.0, spread={"score": spread})


def _reported(trial: Trial) -> Trial:
    fresh = {**trial.metrics, "score": 0.9 * trial.metrics["score"]}
    known = trial.spread["score"]
    return replace(trial, fresh=fresh, fresh_spread={"score": Spread(0.9 * known.low, 0.9 * known.high)})
