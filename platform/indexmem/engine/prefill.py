"""One prefill of a context, scored by every method at once.

Prefill attends to the full context and does not depend on method or ratio, so one pass serves all cells of a sample.
Layers are scored as they go by; what is kept is K and V once, and one ranking per method and layer.
Shapes: H KV heads, L context tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from indexmem.eviction.context import ContextCache
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.models.attention import LayerTap, tapping
from indexmem.models.backbone import Backbone


@dataclass
class Prefill:
    """A context's cache and every method's rankings of it."""

    context: ContextCache
    rankings_HL: dict[str, list[Tensor]] = field(default_factory=dict)  # method label -> one per layer
    errors: dict[str, Exception] = field(default_factory=dict)  # methods that could not score this context
    seconds: float = 0.0  # the forward pass, scoring not counted
    score_seconds: dict[str, float] = field(default_factory=dict)


@torch.inference_mode()
def prefill(backbone: Backbone, context_ids: list[int], methods: Mapping[str, EvictionMethod], sinks: int) -> Prefill:
    """Run the backbone over one context and rank its tokens by every method."""
    done = Prefill(ContextCache(tokens=len(context_ids)), {label: [] for label in methods})
    done.score_seconds = dict.fromkeys(methods, 0.0)
    waiting: dict[str, list[Tensor]] = {label: [] for label, method in methods.items() if method.cross_layer}

    def score(label: str, method: EvictionMethod, tap: LayerTap) -> None:
        scores_HL = method.score(tap)[0]
        if method.cross_layer:
            waiting[label].append(scores_HL)
        else:
            done.rankings_HL[label].append(method.rank(scores_HL, sinks))

    def timed(label: str, work: Callable[[], None]) -> None:
        if label in done.errors:
            return
        started = _clock(backbone.device)
        try:
            work()
        except torch.OutOfMemoryError:
            raise  # not the method's fault: the caller has a smaller batch to try
        except (ValueError, AssertionError, RuntimeError) as error:
            done.errors[label] = error
        done.score_seconds[label] += _clock(backbone.device) - started

    def visit(tap: LayerTap) -> None:
        done.context.keys_HLd.append(tap.key_BHLd[0])
        done.context.values_HLd.append(tap.value_BHLd[0])
        done.context.modules.append(tap.module)
        done.context.cos_Lr, done.context.sin_Lr = tap.cos_BLr[0], tap.sin_BLr[0]
        for label, method in methods.items():
            timed(label, partial(score, label, method, tap))

    def combine(label: str) -> None:
        method = methods[label]
        done.rankings_HL[label] = [method.rank(scores_HL, sinks) for scores_HL in method.combine(waiting[label])]

    started = _clock(backbone.device)
    ids = torch.tensor([context_ids], device=backbone.device)
    with tapping(backbone.model, visit) as kwargs:
        backbone.model.get_decoder()(ids, use_cache=False, **kwargs)
    done.seconds = _clock(backbone.device) - started - sum(done.score_seconds.values())
    for label in waiting:
        timed(label, partial(combine, label))
    return done


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
