"""A budget smaller than what a scorer protects: the newest tokens of its window stay, in prefill and while decoding."""

from __future__ import annotations

import pytest
import torch
from kvpress_oracle import kept_mask
from method_zoo import save_gates
from tiny_models import random_ids, tiny_backbone
from torch import Tensor

from indexmem.config.schema import EvictionConfig, MethodConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.prefill import prefill
from indexmem.engine.recompress import Compression, Recompression
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.decode_scorer import CachedTokens, WindowAttention
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.ranking import newest_above_all, rank

LENGTH, SINKS, BUDGET = 240, 4, 14
NEWEST = [*range(SINKS), *range(LENGTH - BUDGET + SINKS, LENGTH)]

SCORERS: dict[str, dict] = {
    "snapkv": {},
    "pyramidkv": {},
    "lagkv": {"lag_size": 32},
    "lagkv(long)": {},  # no lag fits twice: all by recency
    "lagkv(across)": {"lag_size": 32, "cross_scoring": True},
    "fastkvzip": {"window_ratio": 0.2, "layerwise": True},
    "compactor": {"sink_size_start": 2, "sink_size_end": 20, "chunk_size": 64},
    "adakv": {},
    "running_mean": {"base": {"name": "snapkv"}},
    "snapkv(layer)": {"share": "layer"},
    "snapkv(model)": {"share": "model"},
    "lagkv(model)": {"lag_size": 32, "share": "model"},
    "streaming_llm": {},
}


@pytest.mark.parametrize("name", SCORERS)
def test_the_newest_of_a_window_stay(name, tmp_path):
    geometry = tiny_backbone().geometry
    params = dict(SCORERS[name])
    if name == "fastkvzip":
        save_gates(tmp_path / "gates.pt", geometry)
        params["weights"] = str(tmp_path / "gates.pt")
    method = make_method(MethodConfig(name=name.partition("(")[0], params=params), MethodContext(geometry))
    done = prefill(tiny_backbone(), random_ids(LENGTH), {"m": method}, SINKS)
    assert not done.errors, done.errors
    row = method.compress(done.context, done.rankings_HL["m"], BUDGET)
    for layer in range(geometry.layers):
        for kept_L in kept_mask(row, layer):
            assert kept_L.nonzero().flatten().tolist() == NEWEST


def test_a_scorer_s_own_first_tokens_come_before_its_window(tmp_path):
    save_gates(tmp_path / "gates.pt", tiny_backbone().geometry)
    gates = {"weights": str(tmp_path / "gates.pt"), "n_sink": 6, "window_ratio": 0.2, "layerwise": True}
    for name, params in {"lagkv": {"lag_size": 32, "n_sink": 6}, "fastkvzip": gates}.items():
        method = make_method(MethodConfig(name=name, params=params), MethodContext(tiny_backbone().geometry))
        done = prefill(tiny_backbone(), random_ids(LENGTH), {"m": method}, SINKS)
        row = method.compress(done.context, done.rankings_HL["m"], 10)
        for kept_L in kept_mask(row, 0):
            assert kept_L.nonzero().flatten().tolist() == [*range(6), *range(LENGTH - 4, LENGTH)]


def test_ages_are_above_all_scores_and_differ():
    above = newest_above_all(torch.arange(100_000))
    assert above.isfinite().all()
    assert (above.diff() < 0).all()
    assert above.min() > 1e38


def test_a_window_of_queries_ranks_its_newest_tokens_first():
    scorer = WindowAttention(window=64)
    tap = type("Tap", (), {"layer": 0, "query_BQLd": torch.randn(1, 4, 70, 8)})
    scorer.observe(tap, torch.tensor([0]), torch.ones(1, 70, dtype=torch.bool))
    position_HT = torch.cat((torch.arange(30), torch.arange(100, 170))).expand(2, -1)
    scores_HT = scorer.score(CachedTokens(0, 0, torch.randn(2, 100, 8), position_HT, 1.0))
    assert rank(scores_HT, 0)[:, :64].tolist() == [list(range(99, 35, -1))] * 2


@pytest.mark.parametrize("share", ["head", "layer", "model"])
def test_what_was_just_generated_stays_while_decoding(share, monkeypatch):
    """SnapKV's window of 64 is more than the budget of 40: it was the oldest of it that stayed."""
    backbone = tiny_backbone()
    monkeypatch.setattr(backbone.model.generation_config, "eos_token_id", [])
    config = EvictionConfig(decode_budget=40, decode_window=16, decode_every=8, sinks=SINKS)
    method = make_method(MethodConfig(name="snapkv", params={"share": share}), MethodContext(backbone.geometry))
    done = prefill(backbone, random_ids(120), {"m": method}, SINKS)
    cache = method.compress(done.context, done.rankings_HL["m"], 40)
    held: list[list[Tensor]] = []
    compress = Recompression.compress

    def spied(self, remaining):
        compress(self, remaining)
        held.append([layers.position_HT for layers in self._held[0]])

    monkeypatch.setattr(Recompression, "compress", spied)
    decode(
        backbone,
        [DecodeRow(cache, 120, random_ids(30, seed=5), 60, Compression(method, config.decode_budget, config))],
        2**34,
    )
    last = held[-1]
    newest = int(last[0][0, -1])
    assert newest > 190
    for position_HT in last:
        for position_T in position_HT:
            assert position_T.tolist() == [*range(SINKS), *range(newest - 35, newest + 1)]
