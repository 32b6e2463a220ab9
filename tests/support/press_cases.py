"""Random checkpoints for presses, and a context and a question for the tiny models to run them on."""

import torch
from tiny_models import random_ids, tiny_backbone, tiny_config, tiny_model
from transformers import DynamicCache

from indexmem.config.modules import IndexerConfig, MemoryConfig
from indexmem.config.schema import MethodConfig
from indexmem.engine.cache import RaggedCache
from indexmem.engine.prefill import prefill
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.memory.base import MemoryShape
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.selection import tokens_left
from indexmem.models.geometry import Geometry

SINKS = 4
LENGTH = 150
MEMORIES = {
    "slots": {"dim": 7},
    "positive": {"features": "positive", "rotary": "pre"},
    "paper": {"features": "linear", "fusion": "add", "input": "model", "value": "model", "gate_bias": 1.0},
}


def geometry_of(family="llama", **changes):
    return Geometry.of(tiny_config(family, **changes))


def noisy(module):
    """Random parameters everywhere: a memory fresh from its constructor has maps of zeros."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    return module


def checkpoint(folder, geometry, memory="slots", trained=None, **indexer):
    """With both terms of the indexer, unless told otherwise."""
    torch.manual_seed(5)
    config = IndexerConfig(**{"pair_term": True} | indexer)
    indexers = IndexerStack(IndexerShape.of(config, geometry), geometry)
    shape = MemoryShape.of(MemoryConfig(**MEMORIES[memory]), geometry)
    modules = {"indexer": indexers}
    for base in ("indexer", "snapkv"):
        modules[f"memory-{base}"] = noisy(MemoryStack(shape, geometry))
    return save_modules(modules, folder, trained=trained or {"steps": 3})


def plain(family="llama", attention="sdpa"):
    return tiny_model(family, attention)


def hooks_of(model):
    return sum(len(layer.self_attn._forward_hooks) for layer in model.get_decoder().layers)


@torch.no_grad()
def filled(model, press, seed=0):
    """The cache of a context, compressed by a press (None: not at all)."""
    cache = DynamicCache()
    ids = torch.tensor([random_ids(LENGTH, seed)])
    if press is None:
        model.model(ids, past_key_values=cache)
    else:
        with press(model):
            model.model(ids, past_key_values=cache)
    return cache


def empty(cache):
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, :0], layer.values[:, :, :0]


@torch.no_grad()
def question_logits(model, cache, seed=9, tokens=6):
    """Logits of a question's tokens, and of one more token after it, as kvpress' pipeline feeds them."""
    ids = torch.tensor([random_ids(tokens + 1, seed)])
    positions = torch.arange(LENGTH, LENGTH + tokens + 1)[None]
    first = model(ids[:, :-1], past_key_values=cache, position_ids=positions[:, :-1]).logits
    second = model(ids[:, -1:], past_key_values=cache, position_ids=positions[:, -1:]).logits
    return torch.cat((first, second), dim=1)


def engine_row(family, folder, name, ratio, ids=None, **sharing):
    """What our engine keeps of a context (by default that of `filled`), with `share` and `floor` if given."""
    backbone = tiny_backbone(family)
    method = make_method(MethodConfig(name=name), MethodContext(backbone.geometry, checkpoint=str(folder), **sharing))
    done = prefill(backbone, random_ids(LENGTH) if ids is None else ids, {name: method}, SINKS)
    assert not done.errors
    return method.compress(done.context, done.rankings_HL[name], tokens_left(done.context.tokens, ratio))


@torch.inference_mode()
def engine_logits(family, folder, name, ratio, seed=9, tokens=6, **sharing):
    """What `question_logits` gives, by our engine."""
    backbone = tiny_backbone(family)
    cache = RaggedCache([engine_row(family, folder, name, ratio, **sharing)], room=tokens + 1)
    ids = torch.tensor([random_ids(tokens + 1, seed)])
    logits = []
    for begin, end in ((0, tokens), (tokens, tokens + 1)):
        cache.extend(torch.ones(1, end - begin, dtype=torch.bool))
        with cache.memories.adding_residuals(backbone.model):
            step = backbone.model(
                ids[:, begin:end],
                past_key_values=cache,
                position_ids=torch.arange(LENGTH + begin, LENGTH + end)[None],
                cache_position=torch.arange(end - begin),
                kv_view=cache,
            )
        logits.append(step.logits)
    return torch.cat(logits, dim=1)
