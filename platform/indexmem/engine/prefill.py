"""One prefill of a context, scored by every method at once.

Prefill attends to the full context and does not depend on method or ratio, so one pass serves all cells of a sample.
Layers are scored as they go by, several together where a method allows (TapStack); what is kept is K and V
once, and one ranking per method and layer, made of all layers' scores at once. Methods with a pass of their own run it
afterwards, over the finished cache; its time is theirs.
Shapes: N layers, n of them, H KV heads, L context tokens.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from indexmem.engine.chunked import forward_in_chunks
from indexmem.errors import detached, of_machine
from indexmem.eviction.context import ContextCache, Window
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.ranking import has_nan, nan_error
from indexmem.models.attention import LayerTap, tapping
from indexmem.models.backbone import Backbone
from indexmem.models.prompt import BARE, PromptFormat

FORWARD, DURING, AFTERWARDS = "forward", "during ", "afterwards "  # parts of the time
# K and V of a stack's layers, in bytes: larger ones keep a device busy alone, and what scores them needs memory.
STACK_BYTES = {"cpu": 2 * 2**20, "cuda": 64 * 2**20}


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
    prompt: PromptFormat = BARE,
) -> Prefill:
    """Run the backbone over one context and rank its tokens by every method.

    `chunk`: tokens that pass a layer at a time, to bound the memory of long contexts; None: all at once.
    `prompt`: what the context begins with besides its text, and what follows a question.
    """
    scoring = _Scoring(backbone, context_ids, methods, sinks, prompt)
    ids_1L = torch.tensor([context_ids], device=backbone.device)
    with scoring.watch.timing(FORWARD):
        if chunk is None or chunk >= len(context_ids):
            with tapping(backbone.model, scoring.visit, scoring.see_window) as kwargs:
                backbone.model.get_decoder()(ids_1L, use_cache=False, **kwargs)
        else:
            forward_in_chunks(backbone, ids_1L, chunk, scoring.visit, scoring.see_window)
    return scoring.finished()


class _Scoring:
    """All methods' scoring of one context."""

    def __init__(
        self,
        backbone: Backbone,
        context_ids: list[int],
        methods: Mapping[str, EvictionMethod],
        sinks: int,
        prompt: PromptFormat,
    ) -> None:
        self.backbone, self.context_ids, self.methods, self.sinks = backbone, context_ids, methods, sinks
        self._prompt = prompt
        self.watch = Stopwatch(backbone.device)
        self._done = Prefill(ContextCache(tokens=len(context_ids)), {label: [] for label in methods})
        for label, method in methods.items():
            if len(context_ids) < method.min_context:
                self._done.errors[label] = ValueError(
                    f"the method ranks contexts of {method.min_context} tokens or more; this one has {len(context_ids)}"
                )
        self._scores_nHL: dict[str, list[Tensor]] = {label: [] for label in methods}  # one or more layers each
        on_taps = {label: method for label, method in methods.items() if not method.own_pass}
        self._alone = {label: method for label, method in on_taps.items() if method.last_queries is None}
        self._together = {label: method for label, method in on_taps.items() if label not in self._alone}
        queries = max((method.last_queries or 0 for method in self._together.values()), default=0)
        self._stack = TapStack(queries, backbone.device)

    def visit(self, tap: LayerTap) -> None:
        """Keep a layer's K and V and score its tokens by every method that can do so now."""
        context = self._done.context
        context.keys_HLd.append(tap.key_BHLd[0])
        context.values_HLd.append(tap.value_BHLd[0])
        context.modules.append(tap.module)
        context.cos_Lr, context.sin_Lr = tap.cos_BLr[0], tap.sin_BLr[0]
        self._score(self._alone, tap, DURING)
        if self._together:
            self._stack.add(tap)
            if self._stack.is_full:
                self._score(self._together, self._stack.take(), DURING)

    def see_window(self, layer: int, key_BHLd: Tensor, value_BHLd: Tensor) -> None:
        """Keep what a sliding-window layer holds at the end."""
        assert self.backbone.geometry.window is not None
        window = Window.of(layer, self.backbone.geometry.window, key_BHLd[0], value_BHLd[0])
        self._done.context.windows.append(window)

    def finished(self) -> Prefill:
        """Score what waited, rank everything, and read the clock."""
        self._score(self._together, self._stack.take(), AFTERWARDS)
        found_nan: dict[str, Tensor] = {}  # asked about once: waiting for the device method by method would idle it
        for label, method in self.methods.items():
            self._attempt(label, AFTERWARDS, partial(self._rank, label, method, found_nan))
        self._refuse(found_nan)
        seconds = self.watch.seconds()
        during = {label: seconds.get(DURING + label, 0.0) for label in self.methods}
        self._done.score_seconds = {x: during[x] + seconds.get(AFTERWARDS + x, 0.0) for x in self.methods}
        self._done.seconds = seconds[FORWARD] - sum(during.values())
        return self._done

    def _score(self, methods: Mapping[str, EvictionMethod], tap: LayerTap | None, when: str) -> None:
        """Each method's scores of the tap's layers."""
        if tap is not None:
            for label, method in methods.items():
                self._attempt(label, when, partial(self._score_by, label, method, tap))

    def _score_by(self, label: str, method: EvictionMethod, tap: LayerTap) -> None:
        self._scores_nHL[label].append(method.score(tap))

    def _rank(self, label: str, method: EvictionMethod, found_nan: dict[str, Tensor]) -> None:
        if method.own_pass:
            own = method.score_context(self.backbone, self._done.context, self.context_ids, self._prompt)
            scores_NHL = torch.stack(list(own))
        else:
            scores_NHL = torch.cat(self._scores_nHL.pop(label))
        if method.cross_layer:
            scores_NHL = torch.stack(method.combine(list(scores_NHL)))
        found_nan[label] = has_nan(scores_NHL)
        self._done.rankings_HL[label] = list(method.selection.rank(scores_NHL, self.sinks))

    def _refuse(self, found_nan: Mapping[str, Tensor]) -> None:
        """Leave out the methods whose scores hold NaN."""
        found = torch.stack(list(found_nan.values())).tolist() if found_nan else []
        self._done.errors |= {label: nan_error() for label, nan in zip(found_nan, found) if nan}

    def _attempt(self, label: str, when: str, work: Callable[[], None]) -> None:
        """A method that fails is out for this context; the others go on."""
        if label in self._done.errors:
            return
        try:
            with self.watch.timing(when + label):
                work()
        except Exception as error:  # whatever a method raises
            if of_machine(error):
                raise  # the caller has a smaller batch to try
            self._done.errors[label] = detached(error)


class TapStack:
    """Collects layers and puts them side by side as a batch, for methods that read little of each.

    Scoring a layer of a small model takes the GPU less time than launching its kernels takes the host. K and V stay in
    memory anyway, so what reads them and a few queries alone can score many layers in one go.
    Shapes: W last queries, Q query heads, d head_dim.
    """

    def __init__(self, queries: int, device: torch.device) -> None:
        """`queries`: W, of the context's last tokens."""
        self._queries, self._limit = queries, STACK_BYTES[device.type]
        self._layers: list[LayerTap] = []

    def add(self, tap: LayerTap) -> None:
        """Hold K, V and the last queries of a layer; its batch is one context."""
        first = max(0, tap.query_BQLd.shape[2] - self._queries)
        # Cloned: a slice would keep the hidden states and the queries of all tokens alive.
        nothing_1L0, last_1QWd = tap.hidden_BLD[..., :0].clone(), tap.query_BQLd[:, :, first:].clone()
        self._layers.append(replace(tap, hidden_BLD=nothing_1L0, query_BQLd=last_1QWd))

    @property
    def is_full(self) -> bool:
        """Whether one layer more would be too much."""
        held = sum(tap.key_BHLd.nbytes + tap.value_BHLd.nbytes for tap in self._layers)
        return held + held // max(1, len(self._layers)) > self._limit

    def take(self) -> LayerTap | None:
        """All layers as one tap whose batch is them, with the first one's module; None if there are none."""
        layers, self._layers = self._layers, []
        if len(layers) < 2:
            return layers[0] if layers else None
        return replace(
            layers[0],
            hidden_BLD=torch.cat([tap.hidden_BLD for tap in layers]),
            query_BQLd=torch.cat([tap.query_BQLd for tap in layers]),
            key_BHLd=torch.cat([tap.key_BHLd for tap in layers]),
            value_BHLd=torch.cat([tap.value_BHLd for tap in layers]),
        )


class Stopwatch:
    """Seconds of named parts of a computation. On CUDA it records events and reads them once, at the end, so that the
    GPU does not wait for the clock; elsewhere it reads the clock."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._spans: dict[str, list[tuple[float | torch.cuda.Event, float | torch.cuda.Event]]] = defaultdict(list)

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Add the time spent within to `part`, also when it ends with an error."""
        begin = self._now()
        try:
            yield
        finally:
            self._spans[part].append((begin, self._now()))

    def seconds(self) -> dict[str, float]:
        """Time of each part so far. Waits for the GPU."""
        if self._cuda:
            torch.cuda.synchronize()
        return {part: sum(_between(*span) for span in spans) for part, spans in self._spans.items()}

    def _now(self) -> float | torch.cuda.Event:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between(begin: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        return float(end) - float(begin)  # type: ignore[arg-type]
    return begin.elapsed_time(end) / 1000
