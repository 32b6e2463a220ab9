"""A batch decoded through the attention kernel gives the texts that torch's attention gives."""

from copy import deepcopy

import pytest
import torch
from tiny_models import random_ids, tiny_model
from tiny_tokenizers import tiny_tokenizer

from indexmem.config.modules import IndexerConfig, MemoryConfig
from indexmem.config.schema import EvictionConfig, MethodConfig
from indexmem.engine import cache as engine_cache
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.lane_attention import BucketAttention, FusedAttention, kernel_runs, lane_attention
from indexmem.engine.lanes import Opened
from indexmem.engine.prefill import prefill
from indexmem.engine.recompress import Compression
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.memory.base import MemoryShape
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.kernels.decode_attention import SPAN
from indexmem.models.backbone import Backbone
from indexmem.models.geometry import Geometry

LENGTHS = (SPAN + 20, 80)  # the full cache of the first takes two programs a lane
WHILE_DECODING = EvictionConfig(decode_budget=32, decode_every=2, decode_window=8, sinks=4)


@pytest.fixture(scope="module")
def backbone(device):
    model = deepcopy(tiny_model("llama")).to(device)
    return Backbone(model, tiny_tokenizer(), Geometry.of(model.config), "tiny")


def methods_of(names, backbone, folder):
    torch.manual_seed(3)
    geometry = backbone.geometry
    slots = MemoryShape.of(MemoryConfig(features="slots", dim=24), geometry)
    modules = {
        "indexer": IndexerStack(IndexerShape.of(IndexerConfig(pair_term=True), geometry), geometry),
        "memory-snapkv": MemoryStack(slots, geometry),
    }
    context = MethodContext(geometry, str(backbone.device), str(save_modules(modules, folder)))
    return {name: make_method(MethodConfig(name=name), context) for name in names}


def rows_of(backbone, methods, policy):
    """Ragged over rows, heads (adakv), questions and limits."""
    rows = []
    for sample, length in enumerate(LENGTHS):
        done = prefill(backbone, random_ids(length, seed=sample), methods, sinks=4)
        assert not done.errors
        question = random_ids(2 + 2 * sample, seed=10 + sample)
        for name, method in methods.items():
            kept = length * (1.0 if name == "full" else 0.2)
            cache = method.compress(done.context, done.rankings_HL[name], kept)
            compression = None if policy is None else Compression(method, policy.decode_budget, policy)
            rows.append(DecodeRow(cache, length, question, 6 if sample else 2, compression))
    return rows


def texts_by(route, backbone, rows, monkeypatch):
    """Tokens of each row, with every batch attended to by this route."""
    monkeypatch.setattr(engine_cache, "lane_attention", lambda opened, *_: route(opened))
    return [answer.token_ids for answer in decode(backbone, rows, 2**34)]


@pytest.mark.parametrize(
    ("names", "policy"),
    [(("full", "adakv"), None), (("knorm", "snapkv+memory"), None), (("knorm", "snapkv+memory"), WHILE_DECODING)],
    ids=["ragged", "memory", "compressed while decoding"],
)
def test_the_kernel_gives_torch_s_texts(backbone, tmp_path, monkeypatch, names, policy):
    rows = rows_of(backbone, methods_of(names, backbone, tmp_path), policy)
    expected = texts_by(BucketAttention, backbone, rows, monkeypatch)
    assert len({tuple(text) for text in expected}) > 2, "the rows must not all agree, or this shows nothing"
    assert texts_by(FusedAttention, backbone, rows, monkeypatch) == expected


def test_the_kernel_is_taken_where_it_runs(device):
    opened = Opened(1, 8, torch.device(device))
    taken = [lane_attention(opened, torch.device(device), torch.float32, dim) for dim in (64, 512)]
    assert [type(attention) for attention in taken] == [FusedAttention, BucketAttention]


def test_a_kernel_that_cannot_be_launched_is_warned_of(device, monkeypatch):
    def fail(*_):
        raise OSError("no C compiler")

    monkeypatch.setattr("indexmem.kernels.decode_attention.decode_attention", fail)
    with pytest.warns(UserWarning, match="slow.*no C compiler"):
        assert not kernel_runs(torch.device(device), torch.float32, 48)
    kernel_runs.cache_clear()
