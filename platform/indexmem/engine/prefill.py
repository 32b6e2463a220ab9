"""One prefill of a context, scored by every method at once.

Prefill attends to the full context and does not depend on method or ratio, so one pass serves all cells of a sample.
Layers are scored as they go by; what is kept is K and V once, and one ranking per method and layer. Methods with a pass
of their own run it afterwards, over the finished cache; its time is theirs.
Shapes: H KV heads, L context tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from indexmem.engine.chunked import forward_in_chunks
from indexmem.engine.stopwatch import Stopwatch
from indexmem.eviction.context import ContextCache, Window
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.policy import has_nan, nan_error
from indexmem.models.attention import LayerTap, tapping
from indexmem.models.backbone import Backbone

FORWARD, DURING, AFTERWARDS = "forward", "during ", "afterwards "  # parts of the time


@dataclass
class Prefill:
    """A context's cache and every method's rankings of it."""

    context: ContextCache
    rankings_HL: dict[str, list[Tensor]] = field(default_factory=dict)  # method label -> one per layer
    errors: dict[str, Exception] = field(default_factory=dict)  # methods that could not score this context
    seconds: float = 0.0  # the forward pass, scoring not counted
    score_seconds: dict[str, float] = field(default_factory=dict)


@torch.inference_mode()
def prefill(
    backbone: Backbone,
    context_ids: list[int],
    methods: Mapping[str, EvictionMethod],
    sinks: int,
    chunk: int | None = None,
) -> Prefill:
    """Run the backbone over one context and rank its tokens by every method.

    `chunk`: tokens that pass a layer at a time, to bound the memory of long contexts; None: all at once.
    """
    scoring = _Scoring(backbone, context_ids, methods, sinks)
    ids_1L = torch.tensor([context_ids], device=backbone.device)
    with scoring.watch.timing(FORWARD):
        if chunk is None or chunk >= len(context_ids):
            with tapping(backbone.model, scoring.visit, scoring.see_window) as kwargs:
                backbone.model.get_decoder()(ids_1L, use_cache=False, **kwargs)
        else:
            forward_in_chunks(backbone, ids_1L, chunk, scoring.visit, scoring.see_window)
    return scoring.finished()


class _Scoring:
    """All methods' scoring of one context, layer by layer."""

    def __init__(
        self, backbone: Backbone, context_ids: list[int], methods: Mapping[str, EvictionMethod], sinks: int
    ) -> None:
        self.backbone, self.context_ids, self.methods, self.sinks = backbone, context_ids, methods, sinks
        self.watch = Stopwatch(backbone.device)
        self._done = Prefill(ContextCache(tokens=len(context_ids)), {label: [] for label in methods})
        self._nan: dict[str, list[Tensor]] = {label: [] for label in methods}  # asked about once, at the end
        self._waiting: dict[str, list[Tensor]] = {label: [] for label, m in methods.items() if m.cross_layer}

    def visit(self, tap: LayerTap) -> None:
        """Keep a layer's K and V and rank its tokens by every method that can do so now."""
        context = self._done.context
        context.keys_HLd.append(tap.key_BHLd[0])
        context.values_HLd.append(tap.value_BHLd[0])
        context.modules.append(tap.module)
        context.cos_Lr, context.sin_Lr = tap.cos_BLr[0], tap.sin_BLr[0]
        for label, method in self.methods.items():
            if not method.own_pass:
                self._attempt(label, DURING, partial(self._score, label, method, tap))

    def see_window(self, layer: int, key_BHLd: Tensor, value_BHLd: Tensor) -> None:
        """Keep what a sliding-window layer holds at the end."""
        assert self.backbone.geometry.window is not None
        window = Window.of(layer, self.backbone.geometry.window, key_BHLd[0], value_BHLd[0])
        self._done.context.windows.append(window)

    def finished(self) -> Prefill:
        """Rank what had to wait for all layers, and read the clock."""
        for label, method in self.methods.items():
            if method.own_pass or method.cross_layer:
                self._attempt(label, AFTERWARDS, partial(self._score_afterwards, label, method))
        self._refuse_nan()
        seconds = self.watch.seconds()
        during = {label: seconds.get(DURING + label, 0.0) for label in self.methods}
        self._done.score_seconds = {x: during[x] + seconds.get(AFTERWARDS + x, 0.0) for x in self.methods}
        self._done.seconds = seconds[FORWARD] - sum(during.values())
        return self._done

    def _refuse_nan(self) -> None:
        """What the device knows of NaN scores by now; waiting for it in each layer would leave it idle."""
        asked = {label: torch.stack(flags).any() for label, flags in self._nan.items() if flags}
        found = torch.stack(list(asked.values())).tolist() if asked else []
        bad = [label for label, nan in zip(asked, found) if nan and label not in self._done.errors]
        self._done.errors |= {label: nan_error() for label in bad}

    def _score(self, label: str, method: EvictionMethod, tap: LayerTap) -> None:
        scores_HL = method.score(tap)[0]
        if method.cross_layer:
            self._waiting[label].append(scores_HL)
        else:
            self._rank(label, method, scores_HL)

    def _score_afterwards(self, label: str, method: EvictionMethod) -> None:
        scores_HL: Sequence[Tensor]
        if method.own_pass:
            scores_HL = method.score_context(self.backbone, self._done.context, self.context_ids)
        else:
            scores_HL = method.combine(self._waiting[label])
        for layer_HL in scores_HL:
            self._rank(label, method, layer_HL)

    def _rank(self, label: str, method: EvictionMethod, scores_HL: Tensor) -> None:
        self._nan[label].append(has_nan(scores_HL))
        self._done.rankings_HL[label].append(method.rank(scores_HL, self.sinks))

    def _attempt(self, label: str, when: str, work: Callable[[], None]) -> None:
        """A method that fails is out for this context; the others go on."""
        if label in self._done.errors:
            return
        try:
            with self.watch.timing(when + label):
                work()
        except torch.OutOfMemoryError:
            raise  # not the method's fault: the caller has a smaller batch to try
        except (ValueError, AssertionError, RuntimeError) as error:
            self._done.errors[label] = error
