"""Forward passes of a decode batch. On a GPU a repeated one-token step is captured once and replayed as a CUDA graph.

Decoding small batches is bound by kernel launches: a 30-layer model launches about a thousand kernels per step, which
takes the host longer than the GPU needs to run them. A replay launches them all at once.
Shapes: R rows, n new tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from indexmem.engine.cache import RaggedCache
from indexmem.models.backbone import Backbone

WORTH_CAPTURING = 4  # steps left: capturing costs about as much as two steps without a graph


def read(
    backbone: Backbone,
    cache: RaggedCache,
    ids_Rn: Tensor,
    positions_Rn: Tensor,
    valid_Rn: Tensor,
    keep: int = 1,
    watched: Mapping[str, Any] = MappingProxyType({}),
) -> Tensor:
    """Feed n tokens per row, False marks padding; logits of the last `keep` of them [R, keep, V]."""
    cache.extend(valid_Rn)
    with cache.memories.adding_residuals(backbone.model):
        logits: Tensor = backbone.model(
            ids_Rn,
            past_key_values=cache,
            position_ids=positions_Rn,
            cache_position=torch.arange(ids_Rn.shape[1], device=ids_Rn.device),
            use_cache=True,
            kv_view=cache,
            logits_to_keep=keep,
            **watched,
        ).logits
    return logits


class Steps:
    """Feeds tokens to a batch; `watched` are keywords with which observers see the passes, which rules out graphs.

    `choose` makes each row's next token of the logits [R, V], with device work alone.
    """

    def __init__(
        self, backbone: Backbone, cache: RaggedCache, watched: Mapping[str, Any], choose: Callable[[Tensor], Tensor]
    ) -> None:
        self._backbone, self._cache, self._watched, self._choose = backbone, cache, watched, choose
        self._capturable = backbone.device.type == "cuda" and not watched
        self._graph: torch.cuda.CUDAGraph | None = None
        self._shape = self._last_shape = (0, 0)  # rows and reach that the graph, and the last step, were made for
        self._token_R = self._position_R = torch.empty(0)  # what the graph reads and advances

    def feed(self, ids_Rn: Tensor, positions_Rn: Tensor, valid_Rn: Tensor) -> Tensor:
        """Feed n tokens per row, False marks padding; the next token of each row [R]."""
        logits_R1V = read(self._backbone, self._cache, ids_Rn, positions_Rn, valid_Rn, watched=self._watched)
        return self._choose(logits_R1V[:, -1])

    def next(self, token_R: Tensor, position_R: Tensor, remaining: int, forced: bool = False) -> Tensor:
        """Feed each row's last token at its position, or one that is `forced` on it; `remaining` steps at most will
        follow in all."""
        if not self._capturable:
            return self._feed_one(token_R, position_R)
        shape = (len(token_R), self._cache.opened.reach_after(1))
        if self._graph is not None and shape == self._shape:
            self._cache.opened.replayed()
            if forced:
                self._token_R.copy_(token_R)
            self._graph.replay()
        elif shape == self._last_shape and remaining >= WORTH_CAPTURING:
            self._capture(token_R, position_R)
            self._shape = shape
        else:  # the first step of a shape runs as it is: it warms up what capturing must not
            self._graph, self._last_shape = None, shape
            return self._feed_one(token_R, position_R)
        return self._token_R.clone()

    def _feed_one(self, token_R: Tensor, position_R: Tensor) -> Tensor:
        valid_R1 = torch.ones(len(token_R), 1, dtype=torch.bool, device=token_R.device)
        return self.feed(token_R[:, None], position_R[:, None], valid_R1)

    def _capture(self, token_R: Tensor, position_R: Tensor) -> None:
        """Capture this step, then run it."""
        self._token_R, self._position_R = token_R.clone(), position_R.clone()
        # By hand: `torch.cuda.graph` first collects garbage and empties the allocator, which takes longer than this.
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                self._token_R.copy_(self._feed_one(self._token_R, self._position_R))
                self._position_R += 1
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = graph
        graph.replay()
