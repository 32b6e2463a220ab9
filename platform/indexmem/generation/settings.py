"""What an IndexMemCache is made with, checked: each mistake is a sentence that says what to give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from transformers import PreTrainedModel

from indexmem.config.budget import Budget
from indexmem.config.schema import MethodConfig
from indexmem.errors import UserError
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.models.geometry import Geometry

MethodName = str | Mapping[str, Any]  # "snapkv", or {"name": "snapkv", "params": {"window_size": 32}}


def geometry_of(model: PreTrainedModel) -> Geometry:
    if not isinstance(model, PreTrainedModel):
        raise UserError(
            f"IndexMemCache needs a model of transformers, and got a {type(model).__name__}. Give it what "
            "AutoModelForCausalLM.from_pretrained returns; of a PEFT model, model.get_base_model()."
        )
    if len({parameter.device for parameter in model.parameters()}) > 1:
        raise UserError("IndexMemCache needs a model on one device: load it without device_map, then model.to(device).")
    return Geometry.of(model.config)


def budget_of(compression_ratio: float | None, budget: str | None) -> Budget:
    if (compression_ratio is None) == (budget is None):
        raise UserError("IndexMemCache needs a compression_ratio, such as 0.9 (evicted), or a budget='512 tokens'.")
    try:
        return Budget.of_ratio(compression_ratio) if compression_ratio is not None else Budget.parse(budget)
    except (ValueError, TypeError) as error:
        given = f"compression_ratio={compression_ratio!r}" if budget is None else f"budget={budget!r}"
        raise UserError(f"{given}: {error}.") from None


def method_of(method: MethodName, context: MethodContext) -> EvictionMethod:
    try:
        config = MethodConfig.model_validate(method)
    except ValidationError:
        raise UserError(
            f"method={method!r}: expected a name, such as 'snapkv', or {{'name': 'snapkv', 'params': {{...}}}}."
        ) from None
    made = make_method(config, context)
    if made.own_pass:
        raise UserError(
            f"Method '{config.label}' scores a context by a pass of its own, which `generate` does not make. Use one "
            "that scores what is read, such as 'snapkv' or 'keydiff'."
        )
    return made
