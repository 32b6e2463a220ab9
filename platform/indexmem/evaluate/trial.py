"""A method's parameters tried on a tiny model, so that a wrong one is said before anything starts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import MEMORY_SUFFIX, PRETRAINED, TRAINED_BY_SPEC, base_name, make_method
from indexmem.models.attention import ATTENTION_NAME, register_attention
from indexmem.models.backbone import Backbone
from indexmem.models.geometry import Geometry

LENGTH = 96  # tokens of the context at least
RATIOS = (0.5, 0.9)
NEEDS_THE_MODEL = TRAINED_BY_SPEC | PRETRAINED | {"duo_attention"}  # built of weights or head scores for one geometry


def try_parameters(config: MethodConfig, context: MethodContext) -> None:
    """Raises UserError when the method with these parameters cannot rank and evict from a context long enough for it.

    Methods whose weights belong to one model, or that read a context again, are not tried: what they are given is
    checked where they are built.
    """
    config = MethodConfig(name=base_name(config), params=_of_scorer(config))
    if not config.params or _names(config) & NEEDS_THE_MODEL:
        return
    backbone = _tiny_backbone()
    method = make_method(config, replace(context, geometry=backbone.geometry, device="cpu"))
    if method.own_pass:
        return
    tokens = max(LENGTH, method.min_context + LENGTH // 2)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(backbone.geometry.vocab_size, (tokens,), generator=generator).tolist()
    done = prefill(backbone, ids, {"tried": method}, sinks=0)
    error = done.errors.get("tried")
    try:
        for ratio in RATIOS if error is None else ():
            method.compress(done.context, done.rankings_HL["tried"], tokens * (1 - ratio))
    except Exception as raised:  # whatever a method raises
        error = raised
    if error is not None:
        settings = ", ".join(f"{name}={value!r}" for name, value in config.params.items())
        raise UserError(
            f"Method '{config.label}' does not work with {settings}: on a context of {tokens} tokens it says "
            f"{type(error).__name__}: {error}. Expected values such as its defaults; leave parameters out to have them."
        )


def _of_scorer(config: MethodConfig) -> dict[str, Any]:
    """Its parameters without those of a memory."""
    with_memory = config.name.endswith(MEMORY_SUFFIX)
    return {name: value for name, value in config.params.items() if not (with_memory and name == "checkpoint")}


def _names(config: MethodConfig) -> set[str]:
    """The method's name, and those of what it is built on."""
    if "base" not in config.params:
        return {base_name(config)}
    return {config.name} | _names(MethodConfig.model_validate(config.params["base"]))


@cache
def _tiny_backbone() -> Backbone:
    """Three layers of random weights; nothing asks for its tokenizer."""
    register_attention()
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=2**20,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM._from_config(config, attn_implementation=ATTENTION_NAME)
    model.eval().requires_grad_(False)
    return Backbone(model, None, Geometry.of(model.config), "trial")  # type: ignore[arg-type]
