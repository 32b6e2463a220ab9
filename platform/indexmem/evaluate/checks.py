"""What a grid is refused for before it starts: settings without effect, budgets that cannot be given, methods that do
not fit, parameters with which a method fails.
"""

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
from indexmem.eviction.methods.registry import (
    DECODING,
    FULL_CACHE,
    MEMORY_SUFFIX,
    METHODS,
    base_name,
    can_decode,
    entry_of,
    make_method,
)
from indexmem.models.attention import ATTENTION_NAME, register_attention
from indexmem.models.backbone import Backbone
from indexmem.models.geometry import Geometry

DECODE_DETAILS = ("decode_every", "decode_window")
SPARSE = ("indexer",)  # methods that can choose tokens before their K and V exist
TRIED_LENGTH = 96  # tokens at least of the context that parameters are tried on
TRIED_RATIOS = (0.5, 0.9)


def check_eviction(config: EvictionConfig, indexer: IndexerConfig, methods: tuple[MethodConfig, ...]) -> None:
    """Raises UserError for settings without effect, budgets that cannot hold what always stays, unfit methods.

    The full cache fits every setting: it is the reference, and nothing compresses it.
    """
    evicting = [method for method in methods if method.name != FULL_CACHE]
    if not evicting and config.model_dump(exclude={"sinks"}) != EvictionConfig().model_dump(exclude={"sinks"}):
        raise UserError(f"eviction settings have no effect on '{FULL_CACHE}' alone. Add a method, or leave them out.")
    _check_decoding(config, evicting)
    _check_order(config, evicting)
    _check_sharing(config, indexer, evicting)


def check_model(config: EvictionConfig, geometry: Geometry) -> None:
    """Raises UserError for settings that do not go with the model's layers."""
    if config.when == "before_prefill" and geometry.window is not None:
        raise UserError(
            f"eviction.when=before_prefill needs full attention in every layer, and {geometry.sliding_layers} of this "
            "model's layers have a sliding window. Use eviction.when=after_prefill."
        )


def check_budgets(config: EvictionConfig, grid: GridConfig) -> None:
    """Raises UserError when there is no budget to evict by, or two ways to equal bytes at once."""
    evicting = [method for method in grid.methods if method.name != FULL_CACHE]
    if evicting and not grid.requested:
        raise UserError("grid.ratios and grid.budgets are empty. Example: grid.budgets='[0.5, 512 tokens, 8 MiB]'")
    if config.decode_budget == "budget":
        sizes = [str(budget) for budget in grid.requested if budget.kind == "bytes"]
        if sizes:
            raise UserError(
                f"eviction.decode_budget=budget takes B_max from each cell's budget, and {sizes[0]} is no number of "
                "tokens. Use ratios or tokens. Example: grid.ratios='[]' grid.budgets='[512 tokens, 1024 tokens]'"
            )
        for budget in grid.requested:
            if budget.kind == "tokens":
                _check_room(config, int(budget.amount), f"grid.budgets: {budget}")
    if config.equal_bytes and all(budget.kind == "bytes" for budget in grid.requested):
        raise UserError(
            "eviction.equal_bytes has no effect on budgets in bytes, which make methods equal by themselves. "
            "Leave it out."
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


def _check_sharing(config: EvictionConfig, indexer: IndexerConfig, methods: list[MethodConfig]) -> None:
    floor = indexer.floor
    if indexer.share == "head" and floor != IndexerConfig.model_fields["floor"].default:
        raise UserError(
            f"indexer.floor={floor} has no effect with indexer.share=head: no heads share a budget. "
            "Use indexer.share=layer or indexer.share=model, or leave indexer.floor out."
        )
    pointless = {"head": (), "layer": ("layer",), "model": ("layer", "model")}[config.granularity]
    of_sets = [m.label for m in methods if _said_share(m, indexer) in pointless]
    if of_sets:
        raise UserError(
            f"eviction.granularity={config.granularity}: {', '.join(of_sets)} shares a budget among heads that "
            "hold one set of tokens, so there is nothing to share out. Leave `share` out, or use a finer granularity."
        )
    if config.when == "before_prefill" and config.granularity == "model":
        raise UserError(
            "eviction.when=before_prefill: a layer's tokens are chosen before later layers exist, so layers cannot "
            "hold one set. Use eviction.granularity=layer, or eviction.when=after_prefill."
        )
    if config.when == "before_prefill":
        shared = [method.label for method in methods if method.params.get("share", indexer.share) == "model"]
        if shared:
            raise UserError(
                f"eviction.when=before_prefill: {', '.join(shared)} shares a budget between all layers (share=model), "
                "and a layer's tokens are chosen before later layers exist. Use indexer.share=layer, or "
                "eviction.when=after_prefill."
            )


def _said_share(method: MethodConfig, indexer: IndexerConfig) -> Any:
    """Which heads the spec says share a budget, if it says so."""
    return method.params.get("share", indexer.share if base_name(method) == INDEXER else None)


def _check_decoding(config: EvictionConfig, methods: list[MethodConfig]) -> None:
    if config.decode_budget is None:
        for name in DECODE_DETAILS:
            if getattr(config, name) != EvictionConfig.model_fields[name].default:
                raise UserError(
                    f"eviction.{name}={getattr(config, name)} has no effect without a budget. "
                    "Set eviction.decode_budget=TOKENS, or leave it out."
                )
        return
    if config.decode_budget != "budget":
        _check_room(config, config.decode_budget, f"eviction.decode_budget={config.decode_budget}")
    unfit = [method.label for method in methods if not can_decode(method)]
    if unfit:
        raise UserError(
            f"eviction.decode_budget: {', '.join(unfit)} cannot rank a cache that grows. "
            f"Methods that can: {', '.join(DECODING)}, each also as NAME+memory."
        )


def _check_room(config: EvictionConfig, budget: int, what: str) -> None:
    """A cache that is held at `budget` tokens needs room beside those that always stay."""
    always = config.always_kept
    in_blocks = f", in whole blocks of {config.block}" if config.block > 1 else ""
    if budget <= always:
        raise UserError(
            f"{what} is filled by tokens that always stay: {config.sinks} sinks and {config.decode_window} recent "
            f"ones{in_blocks}. Use a budget above {always}, or a smaller eviction.decode_window."
        )


def _check_order(config: EvictionConfig, methods: list[MethodConfig]) -> None:
    if config.when == "after_prefill":
        return
    unfit = [method.label for method in methods if method.name not in SPARSE]
    if unfit:
        raise UserError(
            f"eviction.when=before_prefill: {', '.join(unfit)} needs K and V of all tokens. "
            f"Methods that choose before they exist: {', '.join(SPARSE)}."
        )
    if config.sinks < 1:
        raise UserError(
            "eviction.when=before_prefill needs eviction.sinks=1 or more: "
            "a token before the first kept one would have nothing to attend to."
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
