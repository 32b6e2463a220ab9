"""Every registered method on a tiny model: random trained modules and, for the pretrained ones, random weights."""

from __future__ import annotations

from pathlib import Path

import torch
from kvpress.presses.expected_attention_with_stats import ExpectedAttentionStats
from kvpress.presses.fastkvzip_press import FastKVzipGate
from kvpress.presses.kvzap_press import KVzapConfig, KVzapModel
from kvpress.presses.qfilter_press import QFilters

from indexmem.config.modules import IndexerConfig
from indexmem.config.schema import MethodConfig
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.locret import LocretShape, LocretStack
from indexmem.eviction.methods.registry import METHODS, make_method
from indexmem.models.geometry import Geometry

PRETRAINED = ("kvzap", "fastkvzip", "qfilter", "expected_attention_stats")


def every_method(geometry: Geometry, folder: Path) -> dict[str, EvictionMethod]:
    """All of METHODS by name; `folder` takes what some of them load."""
    indexers = IndexerStack(IndexerShape.of(IndexerConfig(pair_term=True), geometry), geometry)
    trained = {"indexer": indexers, "locret": LocretStack(LocretShape(), geometry)}
    calibrated = {"target": {"loss": "bce"}}  # as by default: all heads share a budget
    context = MethodContext(geometry, checkpoint=str(save_modules(trained, folder / "trained", calibrated)))
    params: dict[str, dict] = {name: {} for name in METHODS}
    for name in PRETRAINED:
        if name == "fastkvzip":
            save_gates(folder / "gates.pt", geometry)
        params[name] = {
            "weights": str(folder / "gates.pt") if name == "fastkvzip" else save_weights(name, geometry, folder / name)
        }
    return {name: make_method(MethodConfig(name=name, params=params[name]), context) for name in METHODS}


def save_gates(path: Path, geometry: Geometry, seed: int = 0) -> list[FastKVzipGate]:
    """Random Fast KVzip gates in the published layout."""
    torch.manual_seed(seed)
    layers, group = geometry.layers + geometry.sliding_layers, geometry.group
    gates = [FastKVzipGate(i, geometry.hidden_size, geometry.kv_heads, group, torch.float32) for i in range(layers)]
    for gate in gates:
        torch.nn.init.normal_(gate.k_base)
        torch.nn.init.normal_(gate.b)
    torch.save({"module": [gate.state_dict() for gate in gates]}, path)
    return gates


def save_weights(name: str, geometry: Geometry, folder: Path, seed: int = 0) -> str:
    """Random weights of a method, in the layout that kvpress loads; the folder."""
    torch.manual_seed(seed)
    layers = geometry.layers + geometry.sliding_layers
    if name == "kvzap":
        sizes = {"input_dim": geometry.hidden_size, "output_dim": geometry.kv_heads, "n_modules": layers}
        weights = KVzapModel(KVzapConfig(**sizes, hidden_dim=8))
    elif name == "qfilter":
        weights = QFilters(layers, geometry.kv_heads, geometry.head_dim)
    else:
        source = {"dataset_name": "d", "model_name": "m", "num_samples": 1, "sample_seq_len": 1, "n_sink": 4}
        weights = ExpectedAttentionStats(layers, geometry.heads, geometry.head_dim, **source)
        torch.nn.init.normal_(weights.query_mean)
        roots = torch.randn(weights.query_cov.shape)
        weights.query_cov.data = 0.1 * roots @ roots.transpose(-1, -2)
    weights.save_pretrained(folder)
    return str(folder)
