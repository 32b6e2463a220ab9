"""Scores of a bf16 model are computed in fp32: what is kept is the scores' choice, not that of ties."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from method_zoo import every_method, save_gates
from tiny_models import random_ids, tiny_backbone
from torch.nn import functional as F

from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import METHODS, make_method
from indexmem.models.attention import LayerTap, tapping

LENGTH = 300
RANKS = {"lagkv"}  # ranks within a lag, the same in every lag
NO_SCORES = {"full", "xkv", "duo_attention", "kvzip", "compactor"}  # the last two: of several or of other passes


@pytest.fixture(scope="module")
def bf16():
    backbone = tiny_backbone("qwen3")
    return replace(backbone, model=copy.deepcopy(backbone.model).to(torch.bfloat16))


@pytest.fixture(scope="module")
def methods(bf16, tmp_path_factory):
    return every_method(bf16.geometry, tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def taps(bf16) -> list[LayerTap]:
    seen: list[LayerTap] = []
    with torch.inference_mode(), tapping(bf16.model, seen.append) as kwargs:
        bf16.model(torch.tensor([random_ids(LENGTH)]), use_cache=False, **kwargs)
    return seen


@pytest.mark.parametrize("name", sorted({*METHODS} - NO_SCORES - RANKS))
def test_scores_of_different_tokens_differ(name, methods, taps):
    with torch.inference_mode():
        for tap in taps:
            scores_HL = methods[name].score(tap)[0].flatten(0, -2)
            assert scores_HL.dtype == torch.float32
            for scores_L in scores_HL:
                assert len(scores_L.unique()) > 0.97 * LENGTH


def test_gates_that_are_published_in_bf16_score_in_fp32(bf16, taps, tmp_path):
    save_gates(tmp_path / "fp32.pt", bf16.geometry)
    states = torch.load(tmp_path / "fp32.pt")["module"]
    half = [{name: tensor.bfloat16() for name, tensor in state.items()} for state in states]
    torch.save({"module": half}, tmp_path / "bf16.pt")
    config = MethodConfig(name="fastkvzip", params={"weights": str(tmp_path / "bf16.pt")})
    with torch.inference_mode():
        scores_HL = make_method(config, MethodContext(bf16.geometry)).score(taps[0])[0]
    assert all(len(scores_L.unique()) > 0.97 * LENGTH for scores_L in scores_HL)


def test_keydiff_of_bf16_keys_keeps_what_fp64_says(bf16, methods):
    done = prefill(bf16, random_ids(LENGTH), {"keydiff": methods["keydiff"]}, sinks=0)
    for ranking_HL, key_HLd in zip(done.rankings_HL["keydiff"], done.context.keys_HLd):
        assert key_HLd.dtype == torch.bfloat16
        key_HLd = key_HLd.double()
        anchor_H1d = F.normalize(key_HLd, dim=-1).mean(dim=1, keepdim=True)
        exact_HL = -F.cosine_similarity(key_HLd, anchor_H1d, dim=-1)
        for kept in (30, 150):
            theirs = exact_HL.topk(kept, dim=-1).indices.sort().values
            assert torch.equal(ranking_HL[:, :kept].long().sort().values, theirs)
