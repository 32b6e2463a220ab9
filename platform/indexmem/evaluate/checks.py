"""What a grid is refused for once its model is known: budgets that do not fit, parameters with which a method fails."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from indexmem.config.modules import TRAINED, IndexerConfig
from indexmem.config.schema import EvictionConfig, GridConfig, MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import read_config
from indexmem.eviction.footprint import BudgetError, Footprint
from indexmem.eviction.indexer import INDEXER, IndexerShape
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.names import MEMORY_SUFFIX, base_name
from indexmem.eviction.methods.registry import METHODS, entry_of, make_method
from indexmem.models.attention import ATTENTION_NAME, register_attention
from indexmem.models.backbone import Backbone
from indexmem.models.geometry import Geometry

TRIED_LENGTH = 96  # tokens at least of the context that parameters are tried on
TRIED_RATIOS = (0.5, 0.9)


def check_model(config: EvictionConfig, geometry: Geometry) -> None:
    """Raises UserError for settings that do not go with the model's layers."""
    if config.when == "before_prefill" and geometry.window is not None:
        raise UserError(
            f"eviction.when=before_prefill needs full attention in every layer, and {geometry.sliding_layers} of this "
            "model's layers have a sliding window. Use eviction.when=after_prefill."
        )


def check_trained_shape(config: IndexerConfig, folder: str) -> None:
    """Raises UserError where the spec says what an indexer is and its checkpoint holds another one.

    What the spec leaves open is the checkpoint's.
    """
    held = read_config(folder)["modules"].get(INDEXER)
    if held is None:
        return  # `make_method` says so where an indexer is asked for
    shape = IndexerShape(**held["shape"])
    said = {name: getattr(config, name) for name in TRAINED if name in config.model_fields_set}
    differs = {name: value for name, value in said.items() if value not in (None, getattr(shape, name))}
    if differs:
        pairs = ", ".join(f"{name} is {getattr(shape, name)} there and {value} here" for name, value in differs.items())
        typed = " ".join(f"indexer.{name}={str(getattr(shape, name)).lower()}" for name in differs)
        raise UserError(
            f"indexer.checkpoint={config.checkpoint} was trained as another indexer than the spec describes: {pairs}. "
            f"Use {typed}, leave that out of the spec, or name another checkpoint."
        )


def check_bytes_suffice(method: MethodConfig, footprint: Footprint, grid: GridConfig, config: EvictionConfig) -> None:
    """Raises UserError for bytes that do not hold the method's own state and one token, and for less than one block."""
    for budget in grid.requested:
        try:
            granted = footprint.granted(budget, grid.length, config.equal_bytes)
        except BudgetError as error:
            raise UserError(f"grid.budgets: for method '{method.label}', {error}.") from None
        if config.block > 1 and granted < config.block:
            raise UserError(
                f"eviction.block={config.block}: for method '{method.label}', a budget of {budget} holds "
                f"{granted:,.1f} of {grid.length} tokens, less than one block. Use a larger budget, or a smaller block."
            )


def check_layers_alike(
    config: MethodConfig, method: EvictionMethod, geometry: Geometry, grid: GridConfig, equal_bytes: bool
) -> None:
    """Raises UserError for bytes that all layers share where a token costs more indexer keys in some than in others."""
    sizes = [str(budget) for budget in grid.requested if equal_bytes or budget.kind == "bytes"]
    if sizes and method.selection.across == "model" and geometry.layers % method.layers_alike:
        raise UserError(
            f"grid.budgets: {sizes[0]} has no exact meaning in bytes for '{config.label}': its layers share a budget, "
            f"its indexers serve {method.layers_alike} layers each, and the last of {geometry.layers} layers fewer. "
            "Use indexer.share=layer, or budgets in tokens without eviction.equal_bytes."
        )


def check_parameters(config: MethodConfig, context: MethodContext) -> None:
    """Raises UserError when the method with these parameters cannot rank and evict from a context long enough for it.

    They are tried on a tiny model, and so is somebody's own method without any. Methods whose weights belong to one
    model, or that read a context again, are not tried: what they are given is checked where they are built.
    """
    config = MethodConfig(name=base_name(config), params=_of_scorer(config))
    ours = config.name in METHODS
    if (ours and not config.params) or _of_model(config):
        return
    backbone = _tiny_backbone()
    method = make_method(
        config, replace(context, geometry=backbone.geometry, device="cpu", granularity="head", block=1)
    )
    if method.own_pass:
        return
    tokens = max(TRIED_LENGTH, method.min_context + TRIED_LENGTH // 2)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(backbone.geometry.vocab_size, (tokens,), generator=generator).tolist()
    done = prefill(backbone, ids, {"tried": method}, sinks=0)
    error = done.errors.get("tried")
    try:
        for ratio in TRIED_RATIOS if error is None else ():
            method.compress(done.context, done.rankings_HL["tried"], tokens * (1 - ratio))
    except Exception as raised:  # whatever a method raises
        error = raised
    if error is not None:
        settings = ", ".join(f"{name}={value!r}" for name, value in config.params.items())
        failure = f"on a context of {tokens} tokens it says {type(error).__name__}: {error}"
        if not config.params:
            raise UserError(f"Method '{config.label}' does not work: {failure}")
        raise UserError(
            f"Method '{config.label}' does not work with {settings}: {failure}. "
            "Expected values such as its defaults; leave parameters out to have them."
        )


def _of_scorer(config: MethodConfig) -> dict[str, Any]:
    """Its parameters without those of a memory."""
    with_memory = config.name.endswith(MEMORY_SUFFIX)
    return {name: value for name, value in config.params.items() if not (with_memory and name == "checkpoint")}


def _of_model(config: MethodConfig) -> bool:
    """Whether the method, or what it is built on, is made for the geometry of one model."""
    if "base" in config.params:
        return _of_model(MethodConfig.model_validate(config.params["base"]))
    return entry_of(config).of_model


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
