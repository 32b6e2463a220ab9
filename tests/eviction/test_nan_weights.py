"""Trained weights that are not finite: refused when they are loaded, and seen in scores however they came there."""

from __future__ import annotations

import pytest
import torch
from method_zoo import save_gates, save_weights
from safetensors.torch import load_file, save_file
from tiny_models import random_ids, tiny_backbone

from indexmem.config.modules import IndexerConfig, MemoryConfig
from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import Indexer, IndexerShape, IndexerStack
from indexmem.eviction.memory.base import MemoryShape
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.learned import IndexerScores
from indexmem.eviction.methods.locret import LocretShape, LocretStack
from indexmem.eviction.methods.registry import make_method

GEOMETRY = tiny_backbone().geometry
NAN, INF = float("nan"), float("inf")


def indexers(**terms) -> IndexerStack:
    settings = IndexerConfig(**({"pair_term": True, "token_term": 6} | terms))
    return IndexerStack(IndexerShape.of(settings, GEOMETRY), GEOMETRY)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("method", "module"), [("indexer", "indexer"), ("locret", "locret"), ("indexmem", "memory-indexer")]
)
def test_a_checkpoint_s_tensor_is_named(method, module, value, tmp_path):
    memories = MemoryStack(MemoryShape.of(MemoryConfig(dim=5), GEOMETRY), GEOMETRY)
    trained = {"indexer": indexers(), "locret": LocretStack(LocretShape(8), GEOMETRY), "memory-indexer": memories}
    save_modules(trained, tmp_path)
    path = tmp_path / f"{module}.safetensors"
    state = load_file(path)
    name = sorted(state)[-1]
    state[name].view(-1)[-1] = value
    save_file(state, path)
    with pytest.raises(UserError, match=rf"{module}\.safetensors: tensor '{name}' holds NaN or infinity"):
        make_method(MethodConfig(name=method), MethodContext(GEOMETRY, checkpoint=str(tmp_path)))


def test_published_weights_are_looked_at_too(tmp_path):
    gates = save_gates(tmp_path / "gates.pt", GEOMETRY)
    torch.nn.init.constant_(gates[1].b, NAN)
    torch.save({"module": [gate.state_dict() for gate in gates]}, tmp_path / "gates.pt")
    folder = save_weights("qfilter", GEOMETRY, tmp_path / "filters")
    state = load_file(f"{folder}/model.safetensors")
    state["q_filters"][0, 0, 0] = INF
    save_file(state, f"{folder}/model.safetensors")
    for name, weights, tensor in (
        ("fastkvzip", tmp_path / "gates.pt", "1.b"),
        ("qfilter", folder, "q_filters"),
    ):
        with pytest.raises(UserError, match=f"tensor '{tensor}' holds NaN"):
            make_method(MethodConfig(name=name, params={"weights": str(weights)}), MethodContext(GEOMETRY))


@pytest.mark.parametrize("terms", [{}, {"token_term": 0}, {"pair_term": False}])
def test_an_indexer_of_nan_ranks_nothing(terms):
    broken = indexers(**terms).eval().requires_grad_(False)
    for parameter in broken.parameters():
        parameter.fill_(NAN)
    done = prefill(tiny_backbone(), random_ids(40), {"m": IndexerScores(broken)}, sinks=4)
    assert "scores contain NaN" in str(done.errors["m"])


def test_a_maximum_that_dropped_nan_is_no_score(monkeypatch):
    """As that of the GPU's kernel does, which compares with NaN."""
    monkeypatch.setattr(Indexer, "_maxima", lambda *_: (torch.full((1, 2, 40), -INF), torch.zeros(1, 2, 40).long()))
    done = prefill(tiny_backbone(), random_ids(40), {"m": IndexerScores(indexers().eval())}, sinks=4)
    assert "scores contain NaN" in str(done.errors["m"])
